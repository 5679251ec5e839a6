// Two ends of a link, in one process or in two, and rounds over all codecs.
// SPDX-License-Identifier: Apache-2.0
#include "bench/transfer_bench.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "bench/recorded_kv.h"
#include "calib/text_tokens.h"
#include "cpu/parallel.h"
#include "engine/kv_receiver.h"
#include "engine/kv_sender.h"
#include "transfer/tcp.h"

namespace kvlane {
namespace {

// Tokens that are computed for their values; longer prompts repeat them.
constexpr std::size_t kRecordedTokens = 4096;
constexpr Seconds kWait{600};  // for the other end

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
    KVLANE_ASSIGN(end->network, make_tcp_network());
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

// Expects one transfer after the other, into the same memory.
class Receiver {
 public:
  Receiver(const TransferBenchOptions& options, End& end, int transfers)
      : options_(options), end_(end), transfers_(transfers) {}

  Status expect_next() {
    if (next_ == transfers_) {
      done_.set_value(Status());
      return {};
    }
    const auto receiver = std::make_shared<KvReceiver>(
        *end_.table, options_.tokens, options_.isa, [this](const Result<ReceivedKv>& received) {
          // Before the sender hears of it, so that it cannot be too early with the next.
          const Status status = received.ok() ? expect_next() : received.status();
          if (!status.ok()) done_.set_value(status);
        });
    receiver->grant();
    return end_.endpoint->expect(id_of(next_++), kWait, receiver);
  }
  Status wait() { return done_.get_future().get(); }

 private:
  const TransferBenchOptions& options_;
  End& end_;
  const int transfers_;
  int next_ = 0;
  std::promise<Status> done_;
};

// What is measured of one codec.
struct Series {
  std::string codec;
  std::unique_ptr<CodecChoice> choice;
  std::unique_ptr<KvSender> sender;
  std::vector<double> seconds;
  KvBytes kv;  // of the last transfer
};

class Sender {
 public:
  Sender(const TransferBenchOptions& options, End& end, Address peer)
      : options_(options), end_(end), peer_(std::move(peer)) {}

  Status prepare() {
    for (const std::string& codec : options_.codecs) {
      Series& series = series_.emplace_back();
      series.codec = codec;
      const PlaneShape plane = plane_shape(end_.pool->shape(), kBlockTokens);
      KVLANE_ASSIGN(series.choice, CodecChoice::create(codec, options_.isa, plane));
      series.sender = std::make_unique<KvSender>(*end_.pool, ModelIdentity{}, "bf16",
                                                 *series.choice, std::vector<Codebook>());
    }
    return {};
  }

  // One transfer with each codec. `after` is called when one is over.
  Status round(bool measured, const std::function<Status(const std::string&)>& after) {
    for (Series& series : series_) {
      KVLANE_ASSIGN(const double seconds, send(series));
      if (measured) series.seconds.push_back(seconds);
      KVLANE_TRY(after(series.codec));
    }
    return {};
  }

  void report(bool shaped, std::vector<Figure>& results) const;

 private:
  Result<double> send(Series& series);

  const TransferBenchOptions& options_;
  End& end_;
  const Address peer_;
  std::vector<Series> series_;
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
    series.sender->add(job, layer, 0, end_.table->blocks());
  }
  TransferEnd end;
  end.first.push_back({});
  std::promise<SentKv> sent;
  series.sender->finish(job, std::move(end), [&](const SentKv& told) { sent.set_value(told); });
  const SentKv told = sent.get_future().get();
  const Status status = delivered.get_future().get();
  KVLANE_TRY(told.status);
  KVLANE_TRY(status);
  series.kv = told.kv;
  return seconds_since(start);
}

// The first series is the baseline.
void Sender::report(bool shaped, std::vector<Figure>& results) const {
  const Series& none = series_.front();
  const double base = median(none.seconds);
  results.push_back({"transfer_bytes", static_cast<double>(none.kv.raw), "bytes"});
  if (const auto speed = end_.endpoint->link_speed(peer_)) {
    results.push_back({"transfer_link_speed", speed->bytes_per_second * 1e-9, "GB/s"});
  }
  for (const Series& series : series_) {
    std::string name = "transfer_" + series.codec;
    std::ranges::replace(name, ':', '_');
    const double seconds = median(series.seconds);
    results.push_back({.name = name + "_seconds", .value = seconds, .unit = "s", .baseline = base});
    if (&series == &none) continue;
    const double bytes =
        static_cast<double>(none.kv.shipped) / static_cast<double>(series.kv.shipped);
    results.push_back({name + "_bytes_ratio", bytes, "ratio"});
    results.push_back({name + "_time_ratio", base / seconds, "ratio"});
    if (shaped) {
      results.push_back({.name = name + "_efficiency",
                         .value = base / seconds / bytes,
                         .unit = "ratio",
                         .goal = 0.97});
    } else if (series.codec == kAutoCodec) {
      results.push_back({.name = name + "_slowdown",
                         .value = seconds / base,
                         .unit = "ratio",
                         .goal = 1.02,
                         .better = Figure::Better::kLower});
    }
  }
}

bool same_rows(const End& a, const End& b) {
  for (int block = 0; block < a.table->blocks(); ++block) {
    if (std::memcmp(a.pool->block(a.table->id(block)), b.pool->block(b.table->id(block)),
                    a.pool->shape().block_bytes()) != 0) {
      return false;
    }
  }
  return true;
}

void wipe(const End& end) {
  for (int block = 0; block < end.table->blocks(); ++block) {
    std::memset(end.pool->block(end.table->id(block)), 0xFF, end.pool->shape().block_bytes());
  }
}

}  // namespace

Result<Report> bench_transfer(const TransferBenchOptions& options) {
  const auto say = [&](std::string_view what) {
    if (options.progress) options.progress(what);
  };
  const int transfers = (1 + options.rounds) * static_cast<int>(options.codecs.size());
  Report report{describe_machine(2) + ", kernels " + std::string(isa_name(options.isa)),
                build_commit(),
                "",
                {}};
  std::unique_ptr<End> there;
  std::unique_ptr<Receiver> receiver;
  if (!options.send_to) {
    KVLANE_ASSIGN(there, End::create(options, options.listen.value_or(Address{"127.0.0.1", 0})));
    receiver = std::make_unique<Receiver>(options, *there, transfers);
    KVLANE_TRY(receiver->expect_next());
    say("receiving");
    if (options.listen) {
      KVLANE_TRY(receiver->wait());
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
  for (int round = -1; round < options.rounds; ++round) {
    say("round " + std::to_string(round + 1) + " of " + std::to_string(options.rounds));
    // What arrives is compared in the round that is not measured, where that is possible.
    const bool compare = round < 0 && there && options.tokens % kBlockTokens == 0;
    if (compare) wipe(*there);
    KVLANE_TRY(sender.round(round >= 0, [&](const std::string& codec) -> Status {
      if (!compare) return {};
      if (!same_rows(*here, *there)) return internal_error("codec " + codec + " changed values");
      wipe(*there);
      return {};
    }));
  }
  sender.report(options.shaped, report.results);
  return report;
}

}  // namespace kvlane
