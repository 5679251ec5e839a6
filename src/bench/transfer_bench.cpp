// Two ends of a link, in one process or in two, and rounds over all codecs.
// SPDX-License-Identifier: Apache-2.0
#include "bench/transfer_bench.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "bench/codec_pace.h"
#include "bench/recorded_kv.h"
#include "calib/text_tokens.h"
#include "cpu/parallel.h"
#include "crypto/sha256.h"
#include "engine/kv_receiver.h"
#include "engine/kv_sender.h"
#include "transfer/tcp.h"
#include "transfer/ucx.h"

namespace kvlane {
namespace {

// Tokens that are computed for their values; longer prompts repeat them.
constexpr std::size_t kRecordedTokens = 4096;
constexpr Seconds kWait{600};  // for the other end
constexpr Seconds kLastWord{1};

// What all threads of this process have used so far, in the system and outside of it.
Seconds processor_time() {
  rusage used{};
  (void)::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return Seconds(seconds(used.ru_utime) + seconds(used.ru_stime));
}

// Of one codec: medians over its transfers, which had so many uncoded bytes each.
Figure processor_figure(const std::string& codec, const std::vector<double>& seconds, double raw) {
  std::string name = "transfer_" + codec + "_cpu";
  std::ranges::replace(name, ':', '_');
  return {.name = std::move(name), .value = median(seconds) / (raw * 1e-9), .unit = "s/GB"};
}

// Both ends know which transfer comes next.
TransferId id_of(int number) {
  TransferId id;
  id.bytes.fill(0xB4);
  std::memcpy(id.bytes.data(), &number, sizeof number);
  return id;
}

// Memory for the prompt, and a door to the network.
struct End {
  static Result<std::unique_ptr<End>> create(const TransferBenchOptions& options,
                                             const Address& bind) {
    KvShape shape = kTransferBenchShape;
    shape.layers = options.layers;
    auto end = std::make_unique<End>();
    const std::size_t bytes = blocks_for(options.tokens) * shape.block_bytes();
    KVLANE_ASSIGN(BlockPool pool, BlockPool::create(shape, bytes));
    end->pool = std::make_unique<BlockPool>(std::move(pool));
    end->table = std::make_unique<BlockTable>(*end->pool);
    KVLANE_TRY(end->table->grow(options.tokens));
    if (options.ucx_devices.empty()) {
      KVLANE_ASSIGN(end->network, make_tcp_network({.streams = options.streams,
                                                    .shared_memory = options.shared_memory}));
    } else {
      KVLANE_ASSIGN(end->network, make_ucx_network({.devices = options.ucx_devices}));
    }
    EndpointOptions door;
    door.bind = bind;
    door.codecs = codec_names();
    door.outgoing_bytes_max = 2 * bytes;
    KVLANE_ASSIGN(end->endpoint, Endpoint::start(*end->network, door));
    return end;
  }

  std::unique_ptr<BlockPool> pool;
  std::unique_ptr<BlockTable> table;
  std::unique_ptr<Network> network;
  std::unique_ptr<Endpoint> endpoint;
};

// Over the rows of the prompt, in the order of blocks, layers, heads, K and V.
Result<std::uint64_t> checksum_rows(const End& end, int tokens) {
  const BlockPool& pool = *end.pool;
  const KvShape& shape = pool.shape();
  Sha256 sum;
  for (int block = 0; block < end.table->blocks(); ++block) {
    const std::size_t rows = std::min(kBlockTokens, tokens - block * kBlockTokens);
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::span page(pool.page(end.table->id(block), layer, head),
                             2 * shape.page_plane_elements());
        sum.update(std::as_bytes(page.first(rows * shape.head_dim)));
        sum.update(
            std::as_bytes(page.subspan(shape.page_plane_elements()).first(rows * shape.head_dim)));
      }
    }
  }
  std::uint64_t first_bytes = 0;
  KVLANE_ASSIGN(const Sha256Digest digest, sum.finish());
  std::memcpy(&first_bytes, digest.data(), sizeof first_bytes);
  return first_bytes;
}

// Expects one transfer after the other, into the same memory. Those of the first round, which is
// not measured, are checked: their end carries the checksum of what the sender holds, in the place
// of a sampler's seed, for nothing is sampled here.
class Receiver {
 public:
  Receiver(const TransferBenchOptions& options, End& end)
      : options_(options),
        end_(end),
        checked_(static_cast<int>(options.codecs.size())),
        transfers_(checked_ * (1 + options.rounds)),
        processor_(options.codecs.size()) {}

  Status expect_next() {
    const Seconds used = processor_time();
    if (next_ > checked_) {
      processor_[(next_ - 1) % checked_].push_back((used - used_).count());
    }
    used_ = used;
    if (next_ == transfers_) {
      // Later, for the last transfer is not acknowledged yet.
      end_.network->call_after(Seconds(0), [this] { done_.set_value(Status()); });
      return {};
    }
    if (next_ < checked_) wipe();
    const auto receiver = std::make_shared<KvReceiver>(
        *end_.table, lane_, options_.tokens, std::nullopt, options_.isa, nullptr,
        [this](const Result<ReceivedKv>& received) {
          // Before the sender hears of it, so that it cannot be too early with the next.
          Status status = received.ok() ? check(*received) : received.status();
          if (status.ok()) status = expect_next();
          if (!status.ok()) give_up(std::move(status));
        });
    receiver->grant();
    return end_.endpoint->expect(id_of(next_++), kWait, receiver);
  }
  // All came, or why not.
  Status wait() { return over_.get(); }
  // What each codec's transfers took of this process; after wait().
  void report(std::vector<Figure>& results) const {
    const double raw = static_cast<double>(end_.pool->shape().block_bytes()) / kBlockTokens *
                       static_cast<double>(options_.tokens);
    for (int codec = 0; codec < checked_; ++codec) {
      results.push_back(processor_figure(options_.codecs[codec], processor_[codec], raw));
    }
  }
  // Why not, if that is known by now.
  Status failed() {
    const bool over = over_.wait_for(Seconds(0)) == std::future_status::ready;
    return over ? over_.get() : Status();
  }

 private:
  // A process of its own stays a moment: the sender is still to hear why, and a connection that
  // ends with bytes unread takes what was on its way along.
  void give_up(Status why) {
    if (!options_.listen) return done_.set_value(std::move(why));
    end_.network->call_after(kLastWord, [this, why] { done_.set_value(why); });
  }
  // What the codec before left would do as well.
  void wipe() {
    for (int block = 0; block < end_.table->blocks(); ++block) {
      std::memset(end_.pool->block(end_.table->id(block)), 0xFF, end_.pool->shape().block_bytes());
    }
  }
  Status check(const ReceivedKv& received) {
    if (next_ > checked_) return {};
    KVLANE_ASSIGN(const std::uint64_t checksum, checksum_rows(end_, options_.tokens));
    if (checksum == received.end.seed) return {};
    return corrupt("what arrived with codec " + options_.codecs[next_ - 1] +
                   " is not what was sent");
  }

  const TransferBenchOptions& options_;
  End& end_;
  SlabLane lane_;
  const int checked_;
  const int transfers_;
  int next_ = 0;
  Seconds used_{0};
  std::vector<std::vector<double>> processor_;  // seconds of each codec's transfers
  std::promise<Status> done_;
  std::future<Status> over_ = done_.get_future();
};

// What is measured of one codec.
struct Series {
  std::string codec;
  std::unique_ptr<CodecChoice> choice;
  std::unique_ptr<KvSender> sender;
  std::vector<double> seconds;
  std::vector<double> processor;  // seconds, of all threads of this process
  double raw_bytes = 0;           // of a transfer
  double shipped_bytes = 0;       // of all that were measured
  std::optional<CodecPace> pace;  // of a codec that does something
};

class Sender {
 public:
  Sender(const TransferBenchOptions& options, End& end, Address peer)
      : options_(options), end_(end), peer_(std::move(peer)) {}

  Status prepare() {
    KVLANE_ASSIGN(checksum_, checksum_rows(end_, options_.tokens));
    for (const std::string& codec : options_.codecs) {
      Series& series = series_.emplace_back();
      series.codec = codec;
      const PlaneShape plane = plane_shape(end_.pool->shape(), kBlockTokens);
      KVLANE_ASSIGN(series.choice, CodecChoice::create(codec, options_.isa, plane));
      series.sender = std::make_unique<KvSender>(*end_.pool, SlabLane(), ModelIdentity{}, nullptr,
                                                 *series.choice, std::vector<Codebook>());
      if (codec == kAutoCodec || codec == "none") continue;
      if (options_.progress) options_.progress("speed of " + codec);
      KVLANE_ASSIGN(const Codec* alone, find_codec(codec, options_.isa));
      KVLANE_ASSIGN(series.pace, measure_pace(*alone, *end_.table, options_.tokens));
    }
    return {};
  }

  // One transfer with each codec in turn. Round 0 is not measured.
  Status round(int round) {
    for (Series& series : series_) {
      if (options_.progress) {
        options_.progress("round " + std::to_string(round) + " of " +
                          std::to_string(options_.rounds) + ": " + series.codec);
      }
      const Seconds used = processor_time();
      KVLANE_ASSIGN(const double seconds, send(series));
      if (round > 0) series.seconds.push_back(seconds);
      if (round > 0) series.processor.push_back((processor_time() - used).count());
      if (round == 0) series.shipped_bytes = 0;
    }
    return {};
  }

  void report(std::vector<Figure>& results) const;

 private:
  Result<double> send(Series& series);

  const TransferBenchOptions& options_;
  End& end_;
  const Address peer_;
  std::vector<Series> series_;
  std::uint64_t checksum_ = 0;
  int next_ = 0;
};

Result<double> Sender::send(Series& series) {
  const KvShape& shape = end_.pool->shape();
  const auto link = [this] { return end_.endpoint->link_speed(peer_); };
  const Codec& codec = series.choice->for_transfer(link());
  const TransferBegin begin{options_.tokens, shape.layers, "bf16", std::string(codec.name())};
  const std::size_t plane = codec.bound(plane_shape(shape, kBlockTokens));
  std::promise<Status> delivered;
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(
      auto outgoing,
      end_.endpoint->push(
          peer_, id_of(next_++), begin, outgoing_bytes_needed(begin, kFrameHeaderBytes + 2 * plane),
          [&](const Result<Durations>& answer) { delivered.set_value(answer.status()); }));
  const auto job = std::make_shared<KvSender::Job>(std::move(outgoing), *end_.table,
                                                   options_.tokens, codec, link);
  for (int layer = 0; layer < shape.layers; ++layer) {
    series.sender->add(job, layer, 0, end_.table->blocks(), nullptr);
  }
  TransferEnd end;
  end.first.push_back({});
  end.seed = checksum_;
  std::promise<SentKv> sent;
  series.sender->finish(job, std::move(end), [&](const SentKv& told) { sent.set_value(told); });
  const SentKv told = sent.get_future().get();
  const Status status = delivered.get_future().get();
  KVLANE_TRY(told.status);
  KVLANE_TRY(status);
  series.raw_bytes = static_cast<double>(told.kv.raw);
  series.shipped_bytes += static_cast<double>(told.kv.shipped);
  return seconds_since(start);
}

// How many times as fast as the baseline in the same round: the middle of all rounds.
double time_ratio(const Series& baseline, const Series& series) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < series.seconds.size(); ++i) {
    ratios.push_back(baseline.seconds[i] / series.seconds[i]);
  }
  return median(std::move(ratios));
}

// Where the codec stops to pay: up to that speed of the link it takes less time than no codec.
void report_pace(const CodecPace& pace, const std::string& name, std::vector<Figure>& results) {
  results.push_back({name + "_encode_speed", pace.encode * 1e-9, "GB/s"});
  results.push_back({name + "_decode_speed", pace.decode * 1e-9, "GB/s"});
  results.push_back({name + "_crossover", crossover(pace) * 1e-9, "GB/s"});
  results.push_back({name + "_crossover_serial", crossover_serial(pace) * 1e-9, "GB/s"});
}

// The first series is the baseline.
void Sender::report(std::vector<Figure>& results) const {
  const Series& first = series_.front();
  const double raw = first.raw_bytes;
  results.push_back({"transfer_bytes", raw, "bytes"});
  if (const auto speed = end_.endpoint->link_speed(peer_)) {
    results.push_back({"transfer_link_speed", speed->bytes_per_second * 1e-9, "GB/s"});
  }
  for (const Series& series : series_) {
    std::string name = "transfer_" + series.codec;
    std::ranges::replace(name, ':', '_');
    const double seconds = median(series.seconds);
    results.push_back({.name = name + "_seconds",
                       .value = seconds,
                       .unit = "s",
                       .baseline = median(first.seconds)});
    results.push_back({name + "_speed", raw / seconds * 1e-9, "GB/s"});
    results.push_back(processor_figure(series.codec, series.processor, raw));
    if (series.pace) report_pace(*series.pace, name, results);
    if (&series == &first) continue;
    const double bytes = first.shipped_bytes / series.shipped_bytes;
    const double time = time_ratio(first, series);
    results.push_back({name + "_bytes_ratio", bytes, "ratio"});
    results.push_back({name + "_time_ratio", time, "ratio"});
    if (options_.shaped) {
      results.push_back(
          {.name = name + "_efficiency", .value = time / bytes, .unit = "ratio", .goal = 0.97});
    } else if (series.codec == kAutoCodec) {
      results.push_back({.name = name + "_slowdown",
                         .value = 1 / time,
                         .unit = "ratio",
                         .goal = 1.02,
                         .better = Figure::Better::kLower});
    }
  }
}

}  // namespace

Result<Report> bench_transfer(const TransferBenchOptions& options) {
  const auto say = [&](std::string_view what) {
    if (options.progress) options.progress(what);
  };
  Report report{
      describe_machine(parallel_threads()) + ", kernels " + std::string(isa_name(options.isa)),
      build_commit(),
      "",
      {}};
  std::unique_ptr<Receiver> receiver;  // the other end may call it to its own end
  std::unique_ptr<End> there;
  if (!options.send_to) {
    KVLANE_ASSIGN(there, End::create(options, options.listen.value_or(Address{"127.0.0.1", 0})));
    receiver = std::make_unique<Receiver>(options, *there);
    KVLANE_TRY(receiver->expect_next());
    if (options.listen) {
      if (options.listening) options.listening(there->endpoint->address());
      KVLANE_TRY(receiver->wait());
      receiver->report(report.results);
      return report;
    }
  }
  KVLANE_ASSIGN(const std::unique_ptr<End> here, End::create(options, {"127.0.0.1", 0}));
  say("computing KV");
  {
    KVLANE_ASSIGN(const auto tokens,
                  read_text_tokens(options.directory, options.text, kRecordedTokens));
    KVLANE_ASSIGN(const auto model, Model::load(options.directory, {.isa = options.isa}));
    KVLANE_TRY(fill_with_recorded_kv(*model, tokens, *here->table, options.tokens));
  }
  Sender sender(options, *here, options.send_to ? *options.send_to : there->endpoint->address());
  KVLANE_TRY(sender.prepare());
  for (int round = 0; round <= options.rounds; ++round) {
    const Status status = sender.round(round);
    // The receiver of this process knows better why.
    if (receiver && !status.ok()) KVLANE_TRY(receiver->failed());
    KVLANE_TRY(status);
  }
  if (receiver) KVLANE_TRY(receiver->wait());
  const LinkCounts links = here->endpoint->links();
  if (links.shared_memory > 0) report.machine += ", through shared memory";
  if (links.ucx > 0) report.machine += ", over UCX on " + options.ucx_devices;
  if (links.tcp_streams > 1) {
    report.machine += ", over " + std::to_string(links.tcp_streams) + " TCP connections";
  }
  sender.report(report.results);
  return report;
}

}  // namespace kvlane
