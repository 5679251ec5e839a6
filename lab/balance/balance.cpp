// How busy machines are with attention over heads of different widths, by how work is shared among
// them; computed from works alone. And how long planning takes, which is measured.
//
//   balance decode|pieces|prefill|cost|ranks
//
// Prints Markdown tables.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "format/shape.h"
#include "plan/decode_balance.h"
#include "plan/decode_units.h"
#include "plan/narrow_decode_plan.h"
#include "plan/prefill_balance.h"
#include "quant/zack_ranks.h"

namespace kvlane {
namespace {

// Llama-3.1-8B.
constexpr int kLayers = 32, kKvHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr double kParameters = 8.03e9;
constexpr int kSplitBlocks = 16;  // as attention/attention.h has it
constexpr int kRounds = 4;        // batches of each kind
constexpr int kMachines[] = {2, 16, 108, 132, 144};

using Layers = std::vector<std::vector<HeadWidths>>;

enum class Widths { kEqual, kUniform, kDecaying };
enum class Lengths { kEqual, kMixed };

// The smallest multiple of 16 that leaves at most `tail` of the singular values exp(-i / decay).
int kept(double decay, double tail) {
  const double last = std::exp(-kHeadDim / decay);
  for (int k = 16; k < kHeadDim; k += 16) {
    if ((std::exp(-k / decay) - last) / (1 - last) <= tail) return k;
  }
  return kHeadDim;
}

// kDecaying: spectra that fall as exp(-i / decay), decay lognormal over heads around 24, and one
// tail for all, such that about half of all dimensions are kept.
Layers make_widths(Widths kind, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> decays(std::size_t{2} * kLayers * kKvHeads);
  for (double& decay : decays) decay = 24 * std::exp(0.5 * normal(random));
  double low = 0, high = 1;
  for (int step = 0; step < 40; ++step) {
    const double tail = (low + high) / 2;
    double dimensions = 0;
    for (const double decay : decays) dimensions += kept(decay, tail);
    (dimensions > 0.5 * kHeadDim * static_cast<double>(decays.size()) ? low : high) = tail;
  }
  auto decay = decays.begin();
  const auto width = [&]() -> std::int32_t {
    if (kind == Widths::kDecaying) return kept(*decay++, high);
    if (kind == Widths::kUniform) return static_cast<std::int32_t>(16 + random() % 8 * 16);
    return kHeadDim / 2;
  };
  Layers layers(kLayers, std::vector<HeadWidths>(kKvHeads));
  for (auto& layer : layers) {
    for (HeadWidths& head : layer) {
      head.k = width();
      head.v = width();
    }
  }
  return layers;
}

// kMixed: from 1K to 32K, all doublings alike.
std::vector<std::int32_t> make_lengths(Lengths kind, int batch, std::mt19937& random) {
  std::uniform_real_distribution<double> exponent(10, 15);
  std::vector<std::int32_t> lengths(batch, 8192);
  if (kind == Lengths::kMixed) {
    for (std::int32_t& tokens : lengths) tokens = static_cast<std::int32_t>(exp2(exponent(random)));
  }
  return lengths;
}

// Layers follow each other, so what counts is the sum of their makespans.
struct Use {
  std::int64_t total = 0, makespan = 0;
  void add(std::int64_t work, std::int64_t until) {
    total += work;
    makespan += until;
  }
  double share(int machines) const { return machine_use(total, machines, makespan); }
};

void row(const std::string& head, int machines, const std::vector<Use>& uses) {
  std::printf("| %s |", head.c_str());
  for (const Use& use : uses) std::printf(" %.3f |", use.share(machines));
  std::printf("\n");
}

// Tasks in the order of sequences and heads.
std::vector<std::int64_t> decode_tasks(const std::vector<std::int32_t>& tokens,
                                       const std::vector<HeadWidths>& heads) {
  std::vector<std::int64_t> work;
  for (const std::int32_t count : tokens) {
    for (const HeadWidths& head : heads) work.push_back(std::int64_t{count} * key_work(head));
  }
  return work;
}

// What plan/decode_units does, which knows no widths: units as they come, to SMs as they are free.
std::vector<std::int64_t> decode_units(const std::vector<std::int32_t>& tokens,
                                       const std::vector<HeadWidths>& heads, int machines) {
  const DecodePlan plan = plan_decode(tokens, {kKvHeads * kGroup, kKvHeads, kGroup, machines});
  std::vector<std::int64_t> work;
  for (const DecodeUnit& unit : plan.units) {
    work.push_back(std::int64_t{unit.end_token - unit.first_token} * key_work(heads[unit.kv_head]));
  }
  return work;
}

std::vector<Use> decode_uses(int machines, int batch, Widths widths, Lengths lengths) {
  std::mt19937 random(7);
  DecodeBalancer balancer;
  std::vector<Use> uses(7);
  for (int round = 0; round < kRounds; ++round) {
    const Layers layers = make_widths(widths, random);
    const std::vector<std::int32_t> tokens = make_lengths(lengths, batch, random);
    for (const auto& heads : layers) {
      const auto add = [&](Use& use, const DecodeBalanceShape& shape) {
        const DecodeBalance& plan = balancer.balance(tokens, heads, shape);
        use.add(plan.total, plan.makespan);
        return plan.total;
      };
      const std::int64_t total = add(uses[0], {machines, 0, false});
      uses[1].add(total, list_makespan(decode_tasks(tokens, heads), machines));
      add(uses[2], {machines, 0, true});
      add(uses[3], {machines, kSplitBlocks, false});
      uses[4].add(total, list_makespan(decode_units(tokens, heads, machines), machines));
      add(uses[5], {machines, kSplitBlocks, true});
      add(uses[6], {machines, kDecodeUnitBlocksMin, true});
    }
  }
  return uses;
}

constexpr const char* kDecodeColumns =
    " round-robin | head order, as free | LPT | splits, round-robin | `decode_units`, as free "
    "| splits, LPT | splits of 8, LPT |\n|---|---|---|---|---|---|---|---|\n";

void decode() {
  std::printf("| machines, batch |%s", kDecodeColumns);
  for (const int machines : kMachines) {
    for (const int batch : {1, 4, 16, 64}) {
      row(std::to_string(machines) + ", " + std::to_string(batch), machines,
          decode_uses(machines, batch, Widths::kDecaying, Lengths::kMixed));
    }
  }
  std::printf("\n| widths, lengths, batch |%s", kDecodeColumns);
  const struct {
    const char* name;
    Widths widths;
    Lengths lengths;
  } kinds[] = {{"equal, equal", Widths::kEqual, Lengths::kEqual},
               {"equal, mixed", Widths::kEqual, Lengths::kMixed},
               {"decaying, equal", Widths::kDecaying, Lengths::kEqual},
               {"uniform, equal", Widths::kUniform, Lengths::kEqual},
               {"uniform, mixed", Widths::kUniform, Lengths::kMixed}};
  for (const auto& kind : kinds) {
    for (const int batch : {16, 64}) {
      row(std::string(kind.name) + ", " + std::to_string(batch), 132,
          decode_uses(132, batch, kind.widths, kind.lengths));
    }
  }
}

// Pieces of a machine's share.
void pieces() {
  constexpr int kPieces[] = {1, 2, 4, 8, 16, 32};
  std::printf(
      "| machines, batch | 1 | 2 | 4 | 8 | 16 | 32 | pieces a machine at 16 | units of "
      "`decode_units` |\n");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
  for (const int machines : {16, 132}) {
    for (const int batch : {1, 4, 16, 64}) {
      std::mt19937 random(7);
      DecodeBalancer balancer;
      std::vector<Use> uses(std::size(kPieces));
      std::size_t count = 0, units = 0;
      for (int round = 0; round < kRounds; ++round) {
        const Layers layers = make_widths(Widths::kDecaying, random);
        const std::vector<std::int32_t> tokens = make_lengths(Lengths::kMixed, batch, random);
        for (const auto& heads : layers) {
          units += decode_units(tokens, heads, machines).size();
          for (std::size_t i = 0; i < std::size(kPieces); ++i) {
            const DecodeBalance& plan =
                balancer.balance(tokens, heads, {machines, kSplitBlocks, true, kPieces[i]});
            uses[i].add(plan.total, plan.makespan);
            if (kPieces[i] == kDecodePiecesMachine) count += plan.pieces.size();
          }
        }
      }
      std::printf("| %d, %d |", machines, batch);
      for (const Use& use : uses) std::printf(" %.3f |", use.share(machines));
      const double plans = kRounds * kLayers * machines;
      std::printf(" %.1f | %.1f |\n", static_cast<double>(count) / plans,
                  static_cast<double>(units) / plans);
    }
  }
}

// A list of units that was dealt round-robin, in its order again.
std::vector<std::int64_t> in_head_order(const PrefillBalance& plan,
                                        const std::vector<HeadWidths>& heads) {
  const auto machines = plan.first.size() - 1;
  std::vector<std::int64_t> work(plan.units.size());
  for (std::size_t i = 0; i < work.size(); ++i) {
    const PrefillUnit& unit = plan.units[plan.first[i % machines] + i / machines];
    work[i] = prefill_visible_keys(unit, kGroup) * key_work(heads[unit.kv_head]);
  }
  return work;
}

std::vector<Use> prefill_uses(int machines, const std::vector<PrefillSpan>& spans) {
  constexpr PrefillBalanceSteps kSteps[] = {
      {false, false, false}, {true, false, false}, {false, true, false}, {false, false, true},
      {true, true, false},   {false, true, true},  {true, false, true},  {true, true, true}};
  std::mt19937 random(7);
  PrefillBalancer balancer;
  std::vector<Use> uses(1 + std::size(kSteps));
  for (const auto& heads : make_widths(Widths::kDecaying, random)) {
    for (std::size_t i = 0; i < std::size(kSteps); ++i) {
      const PrefillBalance& plan = balancer.balance(
          spans, heads, {.group = kGroup, .machines = machines, .steps = kSteps[i]});
      uses[i + 1].add(plan.total, plan.makespan);
      if (i == 0) uses[0].add(plan.total, list_makespan(in_head_order(plan, heads), machines));
    }
  }
  return uses;
}

void prefill() {
  std::printf(
      "| machines, prompts | none, as free | none | rows | last round | long first | rows, last "
      "round | last round, long first | rows, long first | all |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
  const struct {
    const char* name;
    std::vector<PrefillSpan> spans;
  } kinds[] = {{"256", {{0, 256, 0}}},
               {"1K", {{0, 1024, 0}}},
               {"4K", {{0, 4096, 0}}},
               {"32K", {{0, 32768, 0}}},
               {"1K, 2K, 5K, 12K", {{0, 1024, 0}, {0, 2048, 0}, {0, 5120, 0}, {0, 12288, 0}}},
               {"512 behind 32K", {{32768, 512, 0}}},
               {"2K behind 32K", {{32768, 2048, 0}}}};
  for (const int machines : kMachines) {
    for (const auto& kind : kinds) {
      row(std::to_string(machines) + "; " + kind.name, machines,
          prefill_uses(machines, kind.spans));
    }
  }
}

double thread_seconds() {
  std::timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Microseconds {
  double median, p99;
};

// Of so many calls.
Microseconds time_calls(int calls, const std::function<void()>& call) {
  std::vector<double> times(calls);
  for (double& time : times) {
    const double start = thread_seconds();
    call();
    time = 1e6 * (thread_seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

// Plans for all layers, as a step needs them whose sequences have other pages than the one before;
// beside the time that an A100 takes at least: to read all weights, K and V at 2.04 TB/s, or to
// multiply by the weights at 312 TFLOPS.
void cost() {
  std::printf("| 32 layers, 132 machines | median, us | P99, us | step, us | P99 of it |\n");
  std::printf("|---|---|---|---|---|\n");
  std::mt19937 random(7);
  const Layers layers = make_widths(Widths::kDecaying, random);
  const auto row = [](const std::string& name, const std::function<void()>& plan) {
    const Microseconds time = time_calls(500, plan);
    std::printf("| %s | %.0f | %.0f |", name.c_str(), time.median, time.p99);
    return time.p99;
  };
  for (const int batch : {4, 16, 64, 256}) {
    const std::vector<std::int32_t> tokens = make_lengths(Lengths::kMixed, batch, random);
    double bytes = 2 * kParameters;
    for (const auto& heads : layers) {
      for (const HeadWidths& head : heads) {
        for (const std::int32_t count : tokens) bytes += 2.0 * count * (head.k + head.v);
      }
    }
    const double step = bytes / 2.04e6;
    const std::string name = "decode " + std::to_string(batch);
    DecodeBalancer balancer;
    for (const int split_blocks : {0, kSplitBlocks}) {
      const double p99 = row(name + (split_blocks > 0 ? ", splits" : ""), [&] {
        for (const auto& heads : layers) balancer.balance(tokens, heads, {132, split_blocks});
      });
      std::printf(" %.0f | %.3f |\n", step, p99 / step);
    }
    std::vector<NarrowSpan> spans;
    std::int32_t state = 0;
    for (const std::int32_t count : tokens) {
      spans.push_back({0, count / kBlockTokens, state});
      state += spans.back().runs() * kKvHeads * kGroup;
    }
    NarrowDecodePlanner planner;
    const double p99 = row(name + ", pages of the GPU path", [&] {
      for (const auto& heads : layers) {
        planner.plan(spans, heads, {.heads = kKvHeads * kGroup, .machines = 132});
      }
    });
    std::printf(" %.0f | %.3f |\n", step, p99 / step);
  }
  PrefillBalancer prefill_balancer;
  for (const std::int32_t rows : {1024, 8192, 32768}) {
    const std::vector<PrefillSpan> spans = {{0, rows, 0}};
    const double step = 2 * kParameters * rows / 312e6;
    const double p99 = row("prefill " + std::to_string(rows), [&] {
      for (const auto& heads : layers) {
        prefill_balancer.balance(spans, heads, {.group = kGroup, .machines = 132});
      }
    });
    std::printf(" %.0f | %.3f |\n", step, p99 / step);
  }
}

// The step function of widths (quant/zack_ranks.h) and one share looked up in it, 8 KV heads of 128
// a layer. Spectra as those of kDecaying widths.
void ranks() {
  std::printf("| model's layers | | median, us | P99, us |\n|---|---|---|---|\n");
  for (const int layers : {32, 80}) {
    std::mt19937 random(7);
    std::lognormal_distribution<double> scale(std::log(24.0), 0.5);
    constexpr int kDim = 128;
    std::vector<float> planes[2];
    for (std::vector<float>& plane : planes) {
      for (int head = 0; head < layers * kKvHeads; ++head) {
        const double t = scale(random);
        for (int i = 0; i < kDim; ++i) plane.push_back(static_cast<float>(std::exp(-i / t)));
      }
    }
    const zack::Spectra spectra{kDim, planes[0], planes[1]};
    const auto make = [&] { return zack::Rates::make(spectra, zack::Weigh::kValues); };
    const auto rates = make();
    const auto row = [&](const char* what, const std::function<void()>& call) {
      const Microseconds time = time_calls(2000, call);
      std::printf("| %d | %s | %.1f | %.1f |\n", layers, what, time.median, time.p99);
    };
    row("all steps", [&] { (void)make(); });
    int share = 1500;
    row("one share", [&] {
      if (!rates->at(share).ok()) std::abort();
      share = share < 9900 ? share + 7 : 1500;
    });
  }
}

}  // namespace
}  // namespace kvlane

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what == "decode")
    kvlane::decode();
  else if (what == "pieces")
    kvlane::pieces();
  else if (what == "prefill")
    kvlane::prefill();
  else if (what == "cost")
    kvlane::cost();
  else if (what == "ranks")
    kvlane::ranks();
  else
    return 1;
}
