// A head and its ranks, each on a thread of its own, over TCP: what the head gets is what one
// process has, and whoever goes is missed at once.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cache/block_arena.h"
#include "model/expected_fixture.h"
#include "model/sequence_fixture.h"
#include "model/slab_lane.h"
#include "quant/format_fixture.h"
#include "quant/heads_together.h"
#include "ranks/letter.h"
#include "ranks/rank_group.h"
#include "ranks/rank_link.h"
#include "ranks/rank_process.h"
#include "ranks/ranks_fixture.h"
#include "transfer/tcp.h"
#include "transfer/test_link.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using ranks_fixture::key_of;
using ranks_fixture::RankThreads;
using sequence_fixture::random_tokens;

constexpr int kTokens = 150;
constexpr int kBlocks = 8;
constexpr int kArena = 2;

// A head with ranks that have their model.
class Group : public RankThreads {
 public:
  // `make_format`: of a rank's part; null for "bf16".
  using MakeFormat = std::function<std::shared_ptr<const KvFormat>(const Model& part)>;

  Group(const std::string& model, int stages, int ranks, TransferId key = key_of(1),
        const MakeFormat& make_format = {})
      : RankThreads(
            kModels / model, stages, ranks,
            [make_format](const Model& part, RankProcessOptions& options) {
              if (!make_format) return;
              options.make_format = [&part, make_format](const std::string&) {
                return Result(make_format(part));
              };
            },
            key),
        whole(take(Model::load(kModels / model, {.weights = false}))) {}

  void prepare(const KvFormat* format = nullptr) {
    Status status = group->wait_for_ranks(*whole);
    ASSERT_TRUE(status.ok()) << status.message();
    const KvShape shape = whole->config().kv_shape();
    const Plan plan{.format = format != nullptr ? format->name() : "bf16",
                    .blocks = kBlocks,
                    .row_blocks = format != nullptr ? kBlocks : 0,
                    .arena_blocks = kArena,
                    .rows_max = kTokens,
                    .logits_max = 4,
                    .context = whole->context()};
    status = group->prepare(shape, format, plan);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<Model> whole;
};

// Logits behind the prompt, and a slab of one layer.
struct Outcome {
  std::vector<float> logits;
  std::vector<std::vector<std::byte>> slabs;  // of each layer the first
  std::vector<int> layers;                    // as they were told
};

std::vector<float> copy_of(std::span<const float> row) { return {row.begin(), row.end()}; }

// Slabs: those of block `block`.
Outcome compute_alone(const std::string& name, int block = 0) {
  const auto model = take(Model::load(kModels / name, {.isa = best_isa()}));
  const KvShape shape = model->config().kv_shape();
  auto pool = take(BlockPool::create(shape, kBlocks * shape.block_bytes()));
  const auto forward = take(Forward::create(*model, kTokens, 1));
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(kTokens).ok());
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const ForwardSpan span{&table, std::span(tokens).first(kTokens), 1};
  EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
  Outcome outcome{copy_of(forward->logits(0)), {}, {}};
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::byte* const slab = pool.slab_memory(table.id(block), layer);
    outcome.slabs.emplace_back(slab, slab + pool.slab_bytes(layer));
  }
  return outcome;
}

// What the head's pool, lane and pass make of it.
Outcome compute_in(Group& group) {
  const KvShape shape = group.whole->config().kv_shape();
  auto pool =
      take(BlockPool::over(shape, group.group->places(RankMemory::kBlocks), group.group->copies()));
  const auto forward = group.group->forward(*group.whole);
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(kTokens).ok());
  const auto tokens = random_tokens(kTokens, group.whole->config().vocab, 5);
  Outcome outcome;
  PassHooks hooks;
  hooks.on_layer = [&](int layer, const auto&) { outcome.layers.push_back(layer); };
  const ForwardSpan span{&table, std::span(tokens).first(kTokens), 1};
  const Status status = forward->run({&span, 1}, hooks);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(table.tokens(), kTokens);
  outcome.logits = copy_of(forward->logits(0));

  // A block goes to the arena and comes back as another; slabs of that are the first's.
  auto arena = BlockArena::over(shape.block_bytes(), group.group->places(RankMemory::kArena),
                                group.group->copies());
  BlockName name{};
  arena.put(name, pool.block(table.id(0)));
  const BlockId other = take(pool.allocate());
  EXPECT_TRUE(arena.get(name, pool.block(other)));
  SlabLane lane = take(SlabLane::over(group.group->lane(), shape.slab_bytes()));
  const Status begun = lane.begin(pool, other, 0, shape.layers);
  EXPECT_TRUE(begun.ok()) << begun.message();
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::byte* const slab = take(lane.next());
    outcome.slabs.emplace_back(slab, slab + pool.slab_bytes(layer));
  }

  // What is written is what is read.
  const int last = shape.layers - 1;
  std::byte* const room = lane.room(pool, other, last);
  std::fill_n(room, pool.slab_bytes(last), std::byte{7});
  EXPECT_TRUE(lane.store(pool, other, last).ok());
  EXPECT_TRUE(lane.begin(pool, other, last, 1).ok());
  const std::byte* const read = take(lane.next());
  EXPECT_TRUE(
      std::all_of(read, read + pool.slab_bytes(last), [](auto b) { return b == std::byte{7}; }));
  return outcome;
}

TEST(Ranks, AHeadHasWhatOneProcessHas) {
  for (const char* const model :
       {"llama-gqa-bf16-llama3-sharded", "falcon-29-bf16-one-norm", "opt-mha-bf16"}) {
    const Outcome expected = compute_alone(model);
    const ModelConfig config = take(Model::load(kModels / model, {.weights = false}))->config();
    for (const auto& [stages, ranks] :
         {std::pair(1, 1), std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
      if (ranks > config.kv_heads || stages > config.layers) continue;
      SCOPED_TRACE(std::string(model) + " " + std::to_string(stages) + " x " +
                   std::to_string(ranks));
      Group group(model, stages, ranks);
      group.prepare();
      const Outcome outcome = compute_in(group);
      EXPECT_EQ(0, std::memcmp(outcome.logits.data(), expected.logits.data(),
                               expected.logits.size() * sizeof(float)));
      EXPECT_EQ(outcome.slabs, expected.slabs);
      std::vector<int> layers(expected.slabs.size());
      for (std::size_t layer = 0; layer < layers.size(); ++layer)
        layers[layer] = static_cast<int>(layer);
      EXPECT_EQ(outcome.layers, layers);
      group.end();
      for (const Status& end : group.ends) EXPECT_TRUE(end.ok()) << end.message();
    }
  }
}

// A rank that says what it is told to: enough to be taken for one.
class FakeRank {
 public:
  FakeRank(const Address& head, const Model& model) : network_(take(make_tcp_network())) {
    link_ = take(RankLink::connect(*network_, head, key_of(1),
                                   [this](RankLink&, Bytes letter) {
                                     letters_.push_back(take(kind_of(letter)));
                                     if (letters_.back() == LetterKind::kPass) asked_.set_value();
                                     return Status();
                                   },
                                   {}));
    say(encode_join({1, 1, 0, model.identity(), {"127.0.0.1", 1}}));
  }
  void say(const Bytes& letter) { EXPECT_TRUE(link_->send(letter).ok()); }
  void wait_for_pass() { asked_.get_future().wait(); }
  void go() { link_->close(); }

 private:
  std::vector<LetterKind> letters_;
  std::promise<void> asked_;
  std::shared_ptr<RankLink> link_;
  std::unique_ptr<Network> network_;
};

// A head whose only rank is a fake.
struct HeadOfFake {
  HeadOfFake() : model(take(Model::load(kModels / kModel, {.weights = false}))) {
    RankGroupOptions options;
    options.key = key_of(1);
    options.on_lost = [this](const Status& why) { lost.set_value(why); };
    group = take(RankGroup::listen(take(make_tcp_network()), std::move(options)));
    rank = std::make_unique<FakeRank>(group->address(), *model);
    EXPECT_TRUE(group->wait_for_ranks(*model).ok());
    rank->say(encode_ready());
    const KvShape shape = model->config().kv_shape();
    const Plan plan{.format = "bf16", .blocks = 2, .rows_max = 8, .logits_max = 1};
    EXPECT_TRUE(group->prepare(shape, nullptr, plan).ok());
    pool.emplace(take(BlockPool::over(shape, group->places(RankMemory::kBlocks), group->copies())));
    table.emplace(*pool);
    EXPECT_TRUE(table->grow(1).ok());
    forward = group->forward(*model);
  }
  Status run() {
    const std::int32_t token = 1;
    const ForwardSpan span{&*table, {&token, 1}, 1};
    return forward->run({&span, 1}, {});
  }

  static constexpr const char* kModel = "llama-gqa-bf16-llama3-sharded";
  std::unique_ptr<Model> model;
  std::promise<Status> lost;
  std::unique_ptr<RankGroup> group;
  std::unique_ptr<FakeRank> rank;
  std::optional<BlockPool> pool;
  std::optional<BlockTable> table;
  std::unique_ptr<ForwardPass> forward;
};

TEST(Ranks, ARankThatGoesIsMissed) {
  HeadOfFake head;
  auto pass = std::async(std::launch::async, [&] { return head.run(); });
  head.rank->wait_for_pass();
  head.rank->go();
  EXPECT_EQ(pass.get().code(), Code::kUnavailable);
  const Status lost = head.lost.get_future().get();
  EXPECT_EQ(lost.code(), Code::kUnavailable);
  EXPECT_NE(lost.message().find("rank 0 has gone"), std::string::npos) << lost.message();
  EXPECT_EQ(head.run().code(), Code::kUnavailable);
  EXPECT_EQ(head.table->tokens(), 0);
  EXPECT_EQ(head.pool->copy_block(1, 0).code(), Code::kUnavailable);
}

TEST(Ranks, APassThatARankFailsLeavesTablesAsTheyWere) {
  HeadOfFake head;
  auto pass = std::async(std::launch::async, [&] { return head.run(); });
  head.rank->wait_for_pass();
  head.rank->say(encode_pass_end({1, exhausted("no memory"), {}, {}}));
  const Status failed = pass.get();
  EXPECT_EQ(failed.code(), Code::kExhausted);
  EXPECT_EQ(failed.message(), "rank 0: no memory");
  EXPECT_EQ(head.table->tokens(), 0);
}

TEST(Ranks, ARankThatTalksNonsenseIsLost) {
  // Pass 0 is the one before the first.
  for (const Bytes& letter : {Bytes(1, std::byte{99}), encode_join({1, 1, 0, {}, {}}),
                              encode_layer({0, 0}), encode_pass_end({0, {}, {}, {}}),
                              encode_reply({77, {}, {}}), encode_peer(0), Bytes(9, std::byte{8})}) {
    HeadOfFake head;
    head.rank->say(letter);
    EXPECT_EQ(head.lost.get_future().get().code(), Code::kUnavailable);
  }
}

// Slabs are rows, but no rank may have less than all heads of them.
class Together final : public format_fixture::Identity, public HeadsTogether {
 public:
  using Identity::Identity;
};

// A coded cache of a group, as the head's engine has it.
struct CodedCache {
  CodedCache(Group& group, const KvFormat& format)
      : shape(group.whole->config().kv_shape()),
        sealed(take(BlockPool::over_sealed(shape, format.slab_sizes(),
                                           group.group->places(RankMemory::kBlocks),
                                           group.group->copies()))),
        rows(take(
            BlockPool::over(shape, group.group->places(RankMemory::kRows), group.group->copies()))),
        lane(take(SlabLane::over(group.group->lane(), shape.slab_bytes()))) {}

  std::vector<std::vector<std::byte>> read(BlockPool& pool, BlockId id) {
    std::vector<std::vector<std::byte>> slabs;
    const Status begun = lane.begin(pool, id, 0, shape.layers);
    EXPECT_TRUE(begun.ok()) << begun.message();
    for (int layer = 0; layer < shape.layers; ++layer) {
      const std::byte* const slab = take(lane.next());
      slabs.emplace_back(slab, slab + pool.slab_bytes(layer));
    }
    return slabs;
  }

  const KvShape shape;
  BlockPool sealed;
  BlockPool rows;
  SlabLane lane;
};

// Whichever rank of a stage is asked, and ranks take turns by the block's number.
TEST(Ranks, SlabsOfHeadsThatAreCodedTogetherAreWholeInEachRank) {
  constexpr const char* kModel = "llama-gqa-bf16-llama3-sharded";
  Group group(kModel, 2, 2, key_of(1), [](const Model& part) {
    return std::make_shared<Together>(part.whole_config().kv_shape());
  });
  const Together format(group.whole->config().kv_shape());
  group.prepare(&format);
  CodedCache cache(group, format);
  const auto forward = group.group->forward(*group.whole);
  BlockTable table(cache.sealed, cache.rows, format.window());
  ASSERT_TRUE(table.grow(kTokens).ok());
  const auto tokens = random_tokens(kTokens, group.whole->config().vocab, 5);
  const ForwardSpan span{&table, std::span(tokens).first(kTokens), 1};
  const Status status = forward->run({&span, 1}, {});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(copy_of(forward->logits(0)), compute_alone(kModel).logits);

  // Sealed blocks, each read from one rank and, copied, from the other.
  const std::vector<BlockId> more = {take(cache.sealed.allocate()), take(cache.sealed.allocate())};
  const auto of_other_rank = [&](BlockId id) { return more[more[0] % 2 == id % 2 ? 1 : 0]; };
  ASSERT_NE(more[0] % 2, more[1] % 2);
  for (const int block : {0, 1}) {
    const auto expected = compute_alone(kModel, block).slabs;
    EXPECT_EQ(cache.read(cache.sealed, table.id(block)), expected) << block;
    const BlockId other = of_other_rank(table.id(block));
    ASSERT_TRUE(cache.sealed.copy_block(other, table.id(block)).ok());
    EXPECT_EQ(cache.read(cache.sealed, other), expected) << block;
  }

  // The open block's rows.
  const auto slabs = cache.read(cache.rows, table.rows_id(2));
  const auto expected = compute_alone(kModel, 2).slabs;
  const std::size_t written = kTokens % kBlockTokens * cache.shape.head_dim * sizeof(bf16);
  for (int layer = 0; layer < cache.shape.layers; ++layer) {
    for (std::size_t plane = 0; plane < 2U * cache.shape.kv_heads; ++plane) {
      const std::size_t at = plane * cache.shape.page_plane_elements() * sizeof(bf16);
      EXPECT_EQ(0, std::memcmp(&slabs[layer][at], &expected[layer][at], written)) << layer;
    }
  }

  // What is written, all ranks have.
  const int last = cache.shape.layers - 1;
  std::fill_n(cache.lane.room(cache.sealed, more[0], last), cache.sealed.slab_bytes(last),
              std::byte{7});
  ASSERT_TRUE(cache.lane.store(cache.sealed, more[0], last).ok());
  ASSERT_TRUE(cache.sealed.copy_block(more[1], more[0]).ok());
  const std::vector<std::byte> sevens(cache.sealed.slab_bytes(last), std::byte{7});
  for (const BlockId id : more) EXPECT_EQ(cache.read(cache.sealed, id)[last], sevens) << id;
}

// What one rank cannot seal costs the pass, and nothing else.
TEST(Ranks, ASlabThatCannotBeSealedFailsItsPassAlone) {
  const auto make_format = [](const Model& part) -> std::shared_ptr<const KvFormat> {
    KvShape shape = part.whole_config().kv_shape();
    shape.kv_heads = part.config().kv_heads;
    if (part.part().rank == 0) return std::make_shared<format_fixture::Identity>(shape);
    return std::make_shared<format_fixture::Failing>(shape, SlabPlace{0, 64});
  };
  Group group("llama-gqa-bf16-llama3-sharded", 2, 2, key_of(1), make_format);
  const KvShape shape = group.whole->config().kv_shape();
  const format_fixture::Identity format(shape);
  group.prepare(&format);
  auto sealed = take(BlockPool::over_sealed(
      shape, format.slab_sizes(), group.group->places(RankMemory::kBlocks), group.group->copies()));
  auto rows =
      take(BlockPool::over(shape, group.group->places(RankMemory::kRows), group.group->copies()));
  const auto forward = group.group->forward(*group.whole);
  const auto tokens = random_tokens(kTokens, group.whole->config().vocab, 5);
  const auto run = [&](int count) {
    BlockTable table(sealed, rows, format.window());
    EXPECT_TRUE(table.grow(count).ok());
    const ForwardSpan span{&table, std::span(tokens).first(count), 1};
    Status status = forward->run({&span, 1}, {});
    EXPECT_EQ(table.tokens(), status.ok() ? count : 0);
    return status;
  };
  EXPECT_TRUE(run(100).ok());
  const Status failed = run(kTokens);
  EXPECT_EQ(failed.code(), Code::kInvalidArgument);
  EXPECT_EQ(failed.message(), "rank 1: this slab is bad");
  const Status after = run(100);
  EXPECT_TRUE(after.ok()) << after.message();
  group.end();
  for (const Status& end : group.ends) EXPECT_TRUE(end.ok()) << end.message();
}

TEST(Ranks, AStrangerThatSaysNothingIsTurnedAway) {
  auto network = TestNetwork::create({});
  TestNetwork& time = *network;
  const auto group =
      take(RankGroup::listen(std::move(network), {.ranks = 2, .key = random_transfer_id()}));
  const auto stranger = std::make_shared<testing::RecordingEvents>();
  const auto link = take(time.connect(group->address(), stranger));
  time.run_for(Seconds(9));
  EXPECT_FALSE(stranger->closed().has_value());
  time.run_for(Seconds(2));
  EXPECT_TRUE(stranger->closed().has_value());
  EXPECT_TRUE(group->lost().ok());
}

TEST(Ranks, AnotherKeyIsAnotherGroup) {
  Group group("llama-gqa-bf16-llama3-sharded", 1, 2, key_of(2));
  group.join();
  for (const Status& end : group.ends) EXPECT_FALSE(end.ok());
}

TEST(Ranks, AnotherModelIsTurnedAway) {
  Group group("llama-gqa-bf16-llama3-sharded", 1, 2);
  const auto other = take(Model::load(kModels / "qwen2-gqa-bf16", {.weights = false}));
  const Status refused = group.group->wait_for_ranks(*other);
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("another model"), std::string::npos);
}

TEST(Ranks, WhoSharesNothingOnItsWayIsTold) {
  Group group("llama-gqa-bf16-llama3-sharded", 2, 1);
  group.prepare();
  const auto forward = group.group->forward(*group.whole);
  const KvShape shape = group.whole->config().kv_shape();
  auto pool =
      take(BlockPool::over(shape, group.group->places(RankMemory::kBlocks), group.group->copies()));
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(1).ok());
  const std::int32_t token = 1;
  const ForwardSpan span{&table, {&token, 1}, 1};
  PassHooks hooks;
  hooks.on_normed = [](int, ByteView) {};
  EXPECT_EQ(forward->run({&span, 1}, hooks).code(), Code::kUnsupported);
  EXPECT_EQ(forward->run({&span, 1}, {.kv_layers = 1}).code(), Code::kUnsupported);
  // And goes on.
  EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
}

}  // namespace
}  // namespace kvlane
