// Strategies are plans: layers from tokens, from hidden states, from slabs.
// SPDX-License-Identifier: Apache-2.0
#include "bench/restore_bench.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "bench/new_folders.h"
#include "bench/read_rate.h"
#include "bench/restore_profile.h"
#include "bench/token_split.h"
#include "cpu/parallel.h"
#include "engine/block_names.h"
#include "model/forward.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"
#include "store/paced_files.h"

namespace kvlane {
namespace {

constexpr const char* kCodedSlabs = "splitzip";
constexpr std::size_t kReadRateBytes = std::size_t{256} << 20;
constexpr std::uint64_t kDraftBytes = std::uint64_t{1} << 30;

// A disk, told by how its rate compares with that at which hidden states are read as fast as they
// are projected.
struct Regime {
  const char* name;
  double times;
  std::optional<double> over_kv, over_tokens;  // goals of models without grouped heads
};
constexpr Regime kRegimes[] = {
    {"slow_disk", 0.25, 2.0, {}}, {"balanced", 1, 1.5, 3.0}, {"slow_compute", 4, {}, {}}};

struct Strategy {
  std::string name;
  RestorePlan plan;
  RestoreSeconds expected;
  std::vector<RestoreSource> forms;      // of its runs, by their index
  std::string slabs;                     // codec of stored slabs
  std::optional<TokenSplit> split = {};  // instead of a plan
  std::vector<double> seconds = {};
};

// Of one layer, for a median.
constexpr int kProjections = 9;

// Restores by the plan from which factors of the profile are learned, as an engine does.
constexpr int kLearningRestores = 3;

// Wakes whoever waits for reads.
class Bell {
 public:
  void ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

class RestoreBench {
 public:
  RestoreBench(const Model& model, const RestoreBenchOptions& options)
      : model_(model),
        options_(options),
        shape_(model.config().kv_shape()),
        kind_(shape_, nullptr) {}

  Result<Report> run() {
    const int longest = *std::max_element(options_.tokens.begin(), options_.tokens.end());
    KVLANE_TRY(allocate(longest));
    ProfileOptions wanted;
    wanted.tokens_max = longest;
    wanted.repeats = options_.repeats;
    wanted.progress = options_.progress;
    KVLANE_ASSIGN(profile_, measure_restore_profile(model_, nullptr, wanted));
    say("reading");
    KVLANE_ASSIGN(const ReadRates rates, measure_read_rates(options_.directories, kReadRateBytes));
    disk_rate_ = rates.together;
    for (const int tokens : options_.tokens) {
      NewFolders folders;
      KVLANE_TRY(folders.make(options_.directories));
      KVLANE_TRY(save(tokens, folders));
      for (const Regime& regime : kRegimes) KVLANE_TRY(measure(tokens, regime, folders));
    }
    report_.machine = describe_machine(parallel_threads());
    report_.commit = build_commit();
    return std::move(report_);
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }

  Status allocate(int tokens) {
    const int tables = options_.ablations ? 3 : 2;
    const std::size_t bytes = tables * std::size_t(blocks_for(tokens)) * shape_.block_bytes();
    KVLANE_ASSIGN(auto pool, BlockPool::create(shape_, bytes));
    pool_ = std::make_unique<BlockPool>(std::move(pool));
    truth_ = std::make_unique<BlockTable>(*pool_);
    table_ = std::make_unique<BlockTable>(*pool_);
    rest_ = std::make_unique<BlockTable>(*pool_);
    KVLANE_ASSIGN(forward_, Forward::create(model_, kRestorePieceTokens, 1));
    for (int i = 0; i < tokens; ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      tokens_.push_back(static_cast<std::int32_t>(philox4x32(1, {index, 0, 0, 0})[0] %
                                                  static_cast<unsigned>(model_.config().vocab)));
    }
    return {};
  }

  Result<std::unique_ptr<Store>> open_store(const NewFolders& folders, double read_rate) const {
    StoreOptions wanted{.create = true, .saving_bytes_max = kDraftBytes};
    for (const auto& path : folders.paths()) wanted.directories.push_back({path / "store", 0});
    const auto devices = static_cast<int>(folders.paths().size());
    KVLANE_ASSIGN(auto files, open_store_files({.devices = devices}));
    if (read_rate > 0) {
      files =
          paced_files(std::move(files), {.read_bytes_per_second = read_rate / devices}, devices);
    }
    return Store::open(wanted, std::move(files));
  }

  // Names of the sequence's blocks; those of each codec are others, so that all are in one store.
  Result<std::vector<BlockName>> names(std::string_view codec, int tokens) const {
    KVLANE_ASSIGN(const BlockName root,
                  BlockNames::root(model_.identity(), element_name(shape_.type), codec));
    BlockNames chain(root);
    KVLANE_TRY(chain.extend(std::span(tokens_).first(tokens)));
    return std::vector<BlockName>(chain.all().begin(), chain.all().end());
  }

  Status save(int tokens, const NewFolders& folders) {
    say("computing " + std::to_string(tokens) + " tokens");
    KVLANE_ASSIGN(const auto store, open_store(folders, 0));
    KVLANE_ASSIGN(names_["none"], names("none", tokens));
    KVLANE_ASSIGN(names_[kCodedSlabs], names(kCodedSlabs, tokens));
    KVLANE_TRY(compute_and_save_hidden(tokens, *store));
    for (const char* codec : {"none", kCodedSlabs}) {
      say("saving");
      KVLANE_TRY(save_slabs(*store, codec, tokens / kBlockTokens));
    }
    store->flush();
    return {};
  }

  Status compute_and_save_hidden(int tokens, Store& store) {
    const std::vector<BlockName>& names = names_["none"];
    const int layers = shape_.layers;
    const HiddenFormat rows(HiddenFormat::Values::kExact, hidden_type(model_),
                            model_.config().hidden);
    const std::size_t ring = rows.row_bytes() * kRestorePieceTokens * layers;
    std::unique_ptr<HiddenGatherer> gatherer;
    if (layers > 1) {
      KVLANE_ASSIGN(gatherer,
                    HiddenGatherer::create(
                        store, model_, {.format = rows, .layer_last = layers, .ring_bytes = ring}));
    }
    const std::shared_ptr<SavedRows> saved = gatherer ? gatherer->begin() : nullptr;
    truth_->clear();
    KVLANE_TRY(truth_->grow(tokens));
    for (int at = 0; at < tokens; at += kRestorePieceTokens) {
      const int count = std::min(kRestorePieceTokens, tokens - at);
      const ForwardSpan span{truth_.get(), std::span(tokens_).subspan(at, count), 0};
      const PassRows pass{saved.get(), at, 0, count};
      PassHooks hooks;
      if (gatherer) {
        hooks.on_normed = [&](int layer, ByteView normed) {
          gatherer->copy(layer, {&pass, 1}, normed);
        };
      }
      KVLANE_TRY(forward_->run({&span, 1}, hooks));
      for (int block = at / kBlockTokens; gatherer && block < (at + count) / kBlockTokens;
           ++block) {
        gatherer->complete(*saved, block, names[block], names.front());
      }
      // Nothing may be lost here.
      if (gatherer) gatherer->flush();
      store.flush();
    }
    if (gatherer && gatherer->figures().tokens_lost > 0) {
      return exhausted("hidden states could not be saved: is the disk full?");
    }
    return {};
  }

  Status save_slabs(Store& store, const char* codec_name, int blocks) {
    KVLANE_ASSIGN(const Codec* const codec, find_codec(codec_name, model_.isa()));
    SlabSaver saver(*pool_, kind_, *codec, store,
                    {.model = model_.identity(), .layer_last = shape_.layers}, [](BlockId) {});
    const std::vector<BlockName>& names = names_[codec_name];
    for (int block = 0; block < blocks; ++block) {
      while (!saver.add({truth_->id(block), block, names[block], names.front()})) {
        std::this_thread::sleep_for(Seconds(0.001));
      }
    }
    return {};
  }

  double balanced_rate() const {
    for (const ProfiledForm& form : profile_.forms) {
      if (form.name == "hidden") return form.bytes / form.seconds;
    }
    return 0;
  }

  // What plans with these forms cost, in their order.
  static RestoreCosts costs_with(const MachineProfile& profile, int tokens,
                                 std::span<const std::string> forms) {
    const RestoreCosts all = restore_costs(profile, tokens, profile.read_rate);
    RestoreCosts costs = all;
    costs.forms.clear();
    for (const std::string& name : forms) {
      costs.forms.push_back(
          *std::find_if(all.forms.begin(), all.forms.end(),
                        [&](const RestoreForm& form) { return form.name == name; }));
      // Embeddings are not stored.
      RestoreForm& form = costs.forms.back();
      constexpr double kNever = std::numeric_limits<double>::infinity();
      if (form.source == RestoreSource::kHidden) form.layers[0] = {0, kNever, kNever};
    }
    return costs;
  }

  std::vector<Strategy> strategies(const MachineProfile& profile, int tokens) const {
    const std::string coded = std::string("kv+") + kCodedSlabs;
    const std::string with[][2] = {{"hidden", "kv"}, {"hidden", coded}};
    const RestoreCosts raw_costs = costs_with(profile, tokens, with[0]);
    const RestoreCosts small_costs = costs_with(profile, tokens, with[1]);
    const RestoreCosts none_costs = costs_with(profile, tokens, std::span(with[0]).last(1));
    const RestoreChoice raw = plan_restore(raw_costs);
    const RestoreChoice small = plan_restore(small_costs);
    const RestorePlan none = plan_restore(none_costs).best;
    const std::vector<RestoreSource> both = {RestoreSource::kHidden, RestoreSource::kSlabs};
    const auto strategy = [&](const char* name, const RestoreCosts& costs, const RestorePlan& plan,
                              const char* slabs) {
      return Strategy{name, plan, seconds_of(costs, plan), both, slabs};
    };
    std::vector<Strategy> all = {
        strategy("tokens", raw_costs, raw.from_tokens, "none"),
        strategy("kv", raw_costs, raw.from_forms[1], "none"),
        strategy("kv_splitzip", small_costs, small.from_forms[1], kCodedSlabs),
        strategy("hidden", raw_costs, raw.from_forms[0], "none"),
        strategy("no_hidden", none_costs, none, "none")};
    all.back().forms = {RestoreSource::kSlabs};
    if (options_.ablations) {
      all.push_back(strategy("layerwise", raw_costs, raw.best, "none"));
      all.push_back({.name = "tokenwise",
                     .plan = {},
                     .expected = {},
                     .forms = {},
                     .slabs = "none",
                     .split = best_token_split(profile, tokens, kBlockTokens)});
    }
    const RestorePlan plan = prudent_plan(raw_costs);
    const RestorePlan with_codec = prudent_plan(small_costs);
    all.push_back(with_codec.seconds < plan.seconds
                      ? strategy("plan", small_costs, with_codec, kCodedSlabs)
                      : strategy("plan", raw_costs, plan, "none"));
    return all;
  }

  static RestoreDecision decision(const Strategy& strategy, int blocks) {
    const RestorePlan& plan = strategy.plan;
    RestoreDecision decision{.blocks = blocks, .recomputed = plan.recomputed};
    decision.sources.assign(plan.recomputed, RestoreSource::kHidden);
    for (const RestoreRun& run : plan.runs) {
      decision.sources.insert(decision.sources.end(), run.layers, strategy.forms[run.form]);
    }
    return decision;
  }

  // Of blocks `first` ... `first` + decision.blocks - 1.
  FoundState find(Store& store, RestoreDecision decision, const std::string& slabs, int first = 0) {
    FoundState found;
    for (int block = first; block < first + decision.blocks; ++block) {
      found.blocks.push_back(
          {store.find({.name = names_["none"][block], .kind = ExtentKind::kHidden}),
           store.find({.name = names_[slabs][block], .kind = ExtentKind::kKv})});
    }
    found.decision = std::move(decision);
    return found;
  }

  // Until all layers of all tokens are there.
  Result<RestoreTimes> restore(Store& store, Restorer& restorer, Bell& bell,
                               const Strategy& strategy, int tokens) {
    table_->clear();
    rest_->clear();
    if (strategy.split) return restore_split(store, restorer, bell, *strategy.split, tokens);
    KVLANE_TRY(table_->grow(tokens));
    if (strategy.plan.recomputed == shape_.layers) return recompute(tokens);
    FoundState found = find(store, decision(strategy, tokens / kBlockTokens), strategy.slabs);
    KVLANE_ASSIGN(const auto job,
                  restorer.begin(std::move(found), 0, *table_, std::span(tokens_).first(tokens)));
    for (;;) {
      const RestoreJob::Progress progress = job->advance();
      if (progress == RestoreJob::Progress::kOver) break;
      if (progress == RestoreJob::Progress::kWaiting) bell.wait();
    }
    KVLANE_TRY(job->status());
    return job->times();
  }

  // All layers of so many blocks from one source; from hidden states all but the first.
  RestoreDecision from_one(RestoreSource source, int blocks) const {
    return {.blocks = blocks,
            .recomputed = source == RestoreSource::kHidden ? 1 : 0,
            .sources = std::vector<RestoreSource>(shape_.layers, source)};
  }

  // The sequence's two parts at once, as two sequences: the second one's table has room for the
  // first, and nothing in it.
  Result<RestoreTimes> restore_split(Store& store, Restorer& restorer, Bell& bell,
                                     const TokenSplit& split, int tokens) {
    using Progress = RestoreJob::Progress;
    const auto all = std::span(tokens_).first(tokens);
    const int cut = split.tokens / kBlockTokens;
    KVLANE_TRY(table_->grow(split.tokens));
    KVLANE_TRY(rest_->grow(tokens));
    rest_->set_tokens(split.tokens);
    const TimePoint start = SteadyClock::now();
    std::vector<std::unique_ptr<RestoreJob>> jobs;
    if (cut > 0 && !split.recomputes) {
      FoundState found = find(store, from_one(RestoreSource::kHidden, cut), "none");
      KVLANE_ASSIGN(auto job,
                    restorer.begin(std::move(found), 0, *table_, all.first(split.tokens)));
      jobs.push_back(std::move(job));
    }
    if (split.tokens < tokens) {
      const auto source = split.recomputes ? RestoreSource::kHidden : RestoreSource::kSlabs;
      FoundState found = find(store, from_one(source, tokens / kBlockTokens - cut), "none", cut);
      KVLANE_ASSIGN(auto job, restorer.begin(std::move(found), cut, *rest_, all));
      jobs.push_back(std::move(job));
    }
    int computed = split.recomputes ? 0 : split.tokens;
    for (bool over = false; !over;) {
      bool worked = computed < split.tokens;
      if (worked) {
        KVLANE_TRY(compute_piece(computed, split.tokens));
        computed += kRestorePieceTokens;
      }
      over = computed >= split.tokens;
      for (const auto& job : jobs) {
        const Progress progress = job->advance();
        worked |= progress == Progress::kWorked;
        over &= progress == Progress::kOver;
      }
      if (!worked && !over) bell.wait();
    }
    for (const auto& job : jobs) KVLANE_TRY(job->status());
    RestoreTimes times;
    times.total = seconds_since(start);
    return times;
  }

  Result<RestoreTimes> recompute(int tokens) {
    const TimePoint start = SteadyClock::now();
    for (int at = 0; at < tokens; at += kRestorePieceTokens) KVLANE_TRY(compute_piece(at, tokens));
    RestoreTimes times;
    times.total = times.busy.recompute = seconds_since(start);
    return times;
  }

  // Of the first `end` tokens those from `at` on, as many as make a piece.
  Status compute_piece(int at, int end) {
    PassHooks hooks;
    hooks.kv_layers = shape_.layers;
    const int count = std::min(kRestorePieceTokens, end - at);
    const ForwardSpan span{table_.get(), std::span(tokens_).subspan(at, count), 0};
    return forward_->run({&span, 1}, hooks);
  }

  // What the strategy before has left in memory must not pass for this one's.
  void forget(int tokens) {
    table_->clear();
    rest_->clear();
    for (BlockTable* const table : {table_.get(), rest_.get()}) {
      if (!table->grow(tokens).ok()) continue;
      for (int block = 0; block < table->blocks(); ++block) {
        std::fill_n(pool_->block(table->id(block)), pool_->block_bytes(), std::byte{0xFF});
      }
    }
  }

  Status compare(const Strategy& strategy, int blocks) const {
    const int in_first = strategy.split ? strategy.split->tokens / kBlockTokens : blocks;
    for (int block = 0; block < blocks; ++block) {
      const BlockTable& table = block < in_first ? *table_ : *rest_;
      if (std::memcmp(pool_->block(table.id(block)), pool_->block(truth_->id(block)),
                      pool_->block_bytes()) != 0) {
        return internal_error("block " + std::to_string(block) + " came back wrong by strategy " +
                              strategy.name);
      }
    }
    return {};
  }

  Status measure(int tokens, const Regime& regime, const NewFolders& folders) {
    const double rate = regime.times * balanced_rate();
    const std::string prefix =
        "restore_" + std::to_string(tokens) + "_" + std::string(regime.name) + "_";
    report_.results.push_back({.name = prefix + "read_rate", .value = rate / 1e9, .unit = "GB/s"});
    // No pace makes a disk faster.
    if (rate > disk_rate_) return {};
    KVLANE_ASSIGN(const auto store, open_store(folders, rate));
    // The last callback may come when all is over.
    const auto bell = std::make_shared<Bell>();
    Restorer restorer(model_, kind_, *store, *forward_, {}, [bell] { bell->ring(); });
    MachineProfile profile = profile_;
    profile.read_rate = rate;
    ProfileFactors factors;
    std::vector<Strategy> all = strategies(profile, tokens);
    const double first_estimate = all.back().plan.seconds;
    for (int i = 0; i < kLearningRestores; ++i) {
      const Strategy& plan = all.back();
      say(prefix + "plan, learning");
      forget(tokens);  // as in a server, which has done something else meanwhile
      KVLANE_ASSIGN(const RestoreTimes times, restore(*store, restorer, *bell, plan, tokens));
      factors = learned(factors, plan.expected, times.busy, times.total);
      all = strategies(scaled(profile, factors), tokens);
    }
    for (int round = 0; round < options_.repeats; ++round) {
      for (Strategy& each : all) {
        say(prefix + each.name);
        const bool last = round + 1 == options_.repeats;
        if (last) forget(tokens);
        KVLANE_ASSIGN(const RestoreTimes times, restore(*store, restorer, *bell, each, tokens));
        each.seconds.push_back(times.total);
        if (last) KVLANE_TRY(compare(each, tokens / kBlockTokens));
      }
    }
    add_figures(prefix, regime, all, first_estimate);
    return options_.ablations ? add_ablations(prefix, scaled(profile, factors), tokens, all)
                              : Status();
  }

  // Microseconds a token that K and V of one layer take, in the parts in which restores project; in
  // turns.
  Status add_projections(const std::string& prefix, int ragged, int rounded) {
    const HiddenFormat rows(HiddenFormat::Values::kExact, hidden_type(model_),
                            model_.config().hidden);
    KVLANE_ASSIGN(const auto restorer, HiddenRestorer::create(model_, rows, kRestorePieceTokens));
    const std::vector<std::byte> stored(rounded * rows.stored_bytes());
    table_->clear();
    KVLANE_TRY(table_->grow(rounded));
    std::vector<double> times[2];
    for (int i = 0; i < 2 * kProjections; ++i) {
      const int tokens = i % 2 == 0 ? ragged : rounded;
      const ByteView view(stored.data(), tokens * rows.stored_bytes());
      const TimePoint start = SteadyClock::now();
      KVLANE_TRY(
          restorer->restore({table_.get(), tokens, 0, tokens}, shape_.layers - 1, {&view, 1}));
      times[i % 2].push_back(seconds_since(start) / tokens * 1e6);
    }
    for (const int which : {0, 1}) {
      report_.results.push_back(
          {.name = prefix + (which == 0 ? "project_ragged" : "project_rounded"),
           .value = median(times[which]),
           .unit = "us/token"});
    }
    return {};
  }

  // HCache, section 6.3.2: what a split by tokens takes, and what its hidden states take where it
  // is rounded to blocks and where it is not.
  Status add_ablations(const std::string& prefix, const MachineProfile& profile, int tokens,
                       const std::vector<Strategy>& all) {
    const auto strategy = [&](std::string_view name) -> const Strategy& {
      return *std::find_if(all.begin(), all.end(),
                           [&](const Strategy& each) { return each.name == name; });
    };
    const Strategy& by_tokens = strategy("tokenwise");
    const auto add = [&](const char* name, double value, const char* unit) {
      report_.results.push_back({.name = prefix + name, .value = value, .unit = unit});
    };
    const TokenSplit exact = best_token_split(profile, tokens, 1);
    const int ragged = exact.hidden_tokens(tokens);
    const int rounded = std::min(blocks_for(ragged) * kBlockTokens, tokens);
    add("tokenwise_hidden_tokens", by_tokens.split->hidden_tokens(tokens), "tokens");
    add("tokenwise_expected", by_tokens.split->seconds, "s");
    add("tokenwise_exact_hidden_tokens", ragged, "tokens");
    add("tokenwise_exact_expected", exact.seconds, "s");
    add("layerwise_over_tokenwise",
        median(by_tokens.seconds) / median(strategy("layerwise").seconds), "ratio");
    return ragged > 0 ? add_projections(prefix, ragged, rounded) : Status();
  }

  void add_figures(const std::string& prefix, const Regime& regime,
                   const std::vector<Strategy>& all, double first_estimate) {
    const auto seconds = [&](std::string_view name) {
      return median(std::find_if(all.begin(), all.end(), [&](const Strategy& each) {
                      return each.name == name;
                    })->seconds);
    };
    for (const Strategy& each : all) {
      report_.results.push_back({.name = prefix + each.name,
                                 .value = median(each.seconds),
                                 .unit = "s",
                                 .better = Figure::Better::kLower,
                                 .runs = each.seconds});
    }
    const double plan = seconds("plan");
    const double pure =
        std::min({seconds("tokens"), seconds("kv"), seconds("kv_splitzip"), seconds("hidden")});
    const bool grouped = model_.config().heads != model_.config().kv_heads;
    const auto ratio = [&](const char* name, double value, std::optional<double> goal) {
      report_.results.push_back(
          {.name = prefix + name, .value = value, .unit = "ratio", .goal = goal});
    };
    ratio("plan_over_kv", seconds("kv") / plan, grouped ? std::nullopt : regime.over_kv);
    ratio("plan_over_tokens", seconds("tokens") / plan,
          grouped ? std::nullopt : regime.over_tokens);
    ratio("plan_over_pure", pure / plan, 1.0);
    ratio("estimate", all.back().plan.seconds / plan, {});
    ratio("first_estimate", first_estimate / plan, {});
  }

  const Model& model_;
  const RestoreBenchOptions& options_;
  const KvShape shape_;
  const SlabKind kind_;
  MachineProfile profile_;
  double disk_rate_ = 0;  // bytes a second
  std::vector<std::int32_t> tokens_;
  std::map<std::string, std::vector<BlockName>, std::less<>> names_;  // by codec
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<BlockTable> truth_, table_;  // as computed, and as restored
  std::unique_ptr<BlockTable> rest_;           // behind the tokens of a split
  std::unique_ptr<Forward> forward_;
  Report report_;
};

}  // namespace

Result<Report> bench_restore(const Model& model, const RestoreBenchOptions& options) {
  if (options.tokens.empty() || options.directories.empty() || options.repeats < 1) {
    return invalid_argument("there must be a length, a directory and a round");
  }
  for (const int tokens : options.tokens) {
    if (tokens < kBlockTokens || tokens % kBlockTokens != 0 || tokens > model.context()) {
      return invalid_argument("sequences have a multiple of " + std::to_string(kBlockTokens) +
                              " tokens, up to the model's context of " +
                              std::to_string(model.context()) + ", not " + std::to_string(tokens));
    }
  }
  return RestoreBench(model, options).run();
}

}  // namespace kvlane
