// Sequences that come back from a store: K and V as the forward pass wrote them, bit for bit, from
// any mixture of sources, and what is left of them when something is damaged.
// SPDX-License-Identifier: Apache-2.0
#include "restore/restorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "cpu/parallel.h"
#include "model/forward.h"
#include "model/forward_fixture.h"
#include "restore/hidden_extents.h"
#include "restore/slab_saver.h"
#include "restore/tiny_model_fixture.h"
#include "store/faulty_files.h"
#include "store/paced_files.h"

namespace kvlane {
namespace {

using forward_fixture::random_tokens;
using tiny_model_fixture::block_names;
using tiny_model_fixture::tiny_format;
using tiny_model_fixture::tiny_model;

constexpr int kStoredBlocks = 9;  // more than a piece, and no whole number of them
constexpr int kStoredTokens = kStoredBlocks * kBlockTokens + 20;
constexpr int kChunk = 320;

// A model's cache, a store, and what connects them.
class World {
 public:
  explicit World(const std::string& format_name = "bf16", std::unique_ptr<StoreFiles> files = {},
                 std::uint64_t memory_bytes_max = 0)
      : format(tiny_format(format_name)),
        shape(tiny_model().config().kv_shape()),
        kind(shape, format.get()),
        rows_(take(BlockPool::create(shape, 4 * kStoredBlocks * shape.block_bytes()))),
        sealed_(take(BlockPool::create_sealed(
            shape, format ? format->slab_sizes() : SlabSizes(shape.layers, 64),
            4 * kStoredBlocks *
                (format ? format->slab_sizes().block_bytes() : 64 * shape.layers)))),
        forward(take(Forward::create(tiny_model(), kRestorePieceTokens, 1, format.get()))),
        names(block_names(kStoredBlocks)),
        tokens(random_tokens(kStoredTokens, tiny_model().config().vocab, 9)) {
    StoreOptions options{.create = true, .memory_bytes_max = memory_bytes_max};
    options.directories.push_back({directory_.path(), 0});
    if (files == nullptr) files = take(open_store_files({}));
    store = take(Store::open(options, std::move(files)));
  }

  BlockPool& pool() { return format ? sealed_ : rows_; }
  BlockTable new_table() {
    return format ? BlockTable(sealed_, rows_, format->window()) : BlockTable(rows_);
  }
  Restorer restorer(RestorerOptions options = {}) {
    return {tiny_model(), kind, *store, *forward, std::move(options), [this] { ++woken; }};
  }

  // All but the last tokens, in whole blocks, and the hidden states of each layer.
  BlockTable compute() {
    BlockTable table = new_table();
    hidden.assign(shape.layers, {});
    EXPECT_TRUE(table.grow(kStoredTokens).ok());
    PassHooks hooks;
    hooks.on_normed = [this](int layer, ByteView rows) {
      hidden[layer].insert(hidden[layer].end(), rows.begin(), rows.end());
    };
    for (int at = 0; at < kStoredBlocks * kBlockTokens; at += kChunk) {
      const int count = std::min(kChunk, kStoredBlocks * kBlockTokens - at);
      const ForwardSpan span{&table, std::span(tokens).subspan(at, count), 0};
      const Status status = forward->run({&span, 1}, hooks);
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return table;
  }

  void save_slabs(const BlockTable& table, const char* codec, int first_layer = 0,
                  int blocks = kStoredBlocks) {
    std::atomic<int> saved = 0;
    {
      const Codec* const coder = take(find_codec(codec));
      SlabSaver saver(pool(), kind, *coder, *store,
                      {.layer_first = first_layer,
                       .layer_last = shape.layers,
                       .extent_bytes_min = 2 * kind.slab_bytes(0)},
                      [&saved](BlockId) { ++saved; });
      for (int block = 0; block < blocks; ++block) {
        EXPECT_TRUE(saver.add({table.id(block), block, names[block], names[0]}));
      }
    }
    store->flush();
    EXPECT_EQ(saved, blocks);
  }

  void save_hidden(const char* form) {
    const HiddenFormat rows = take(HiddenFormat::parse(form, tiny_model()));
    for (int block = 0; block < kStoredBlocks; ++block) {
      ExtentHead head{.key = {.name = names[block]}};
      describe_hidden(rows, head);
      head.layer = 1;
      head.position = std::int64_t{block} * kBlockTokens;
      const auto bytes = static_cast<std::uint32_t>(kBlockTokens * rows.stored_bytes());
      head.parts.assign(shape.layers - 1, ExtentPart{.k_bytes = bytes});
      ExtentDraft draft = take(store->draft(head));
      for (int part = 0; part < head.layers(); ++part) {
        const std::size_t at = std::size_t(block) * kBlockTokens * rows.row_bytes();
        const ByteView from =
            ByteView(hidden[1 + part]).subspan(at, kBlockTokens * rows.row_bytes());
        EXPECT_TRUE(rows.encode(from, kBlockTokens, draft.part(part).data()).ok());
      }
      store->put(std::move(draft), 0, [](const Status& status) { EXPECT_TRUE(status.ok()); });
    }
    store->flush();
  }

  // What was found behind the tokens of the table, until it is over.
  std::unique_ptr<RestoreJob> restore(Restorer& restorer, FoundState found, BlockTable& table) {
    const int first = table.tokens() / kBlockTokens;
    EXPECT_TRUE(table.grow(kStoredTokens).ok());
    auto job = take(restorer.begin(std::move(found), first, table, tokens));
    for (auto progress = job->advance(); progress != RestoreJob::Progress::kOver;
         progress = job->advance()) {
      if (progress == RestoreJob::Progress::kWaiting) std::this_thread::yield();
    }
    return job;
  }

  // K and V of all layers of a block: what attention reads.
  Bytes content(const BlockTable& table, int block) {
    Bytes bytes;
    for (int layer = 0; layer < shape.layers; ++layer) {
      const std::byte* const slab = pool().slab_memory(table.id(block), layer);
      bytes.insert(bytes.end(), slab, slab + kind.slab_bytes(layer));
    }
    return bytes;
  }

  void expect_blocks(const BlockTable& table, const BlockTable& truth, int first, int count,
                     const std::string& what) {
    for (int block = first; block < first + count; ++block) {
      EXPECT_TRUE(content(table, block) == content(truth, block)) << what << " block " << block;
    }
  }

  // The logits behind the tokens of the table.
  std::vector<float> logits(BlockTable& table) {
    const ForwardSpan span{&table, std::span(tokens).subspan(table.tokens()), 1};
    EXPECT_TRUE(forward->run({&span, 1}, {}).ok());
    const std::span<const float> row = forward->logits(0);
    return {row.begin(), row.end()};
  }

  // Threads that wait for each other on a busy machine would take most of the time.
  const ParallelScope one_thread{1};
  const std::shared_ptr<const KvFormat> format;
  const KvShape shape;
  const SlabKind kind;

 private:
  BlockPool rows_;
  BlockPool sealed_;
  TemporaryDirectory directory_;

 public:
  std::unique_ptr<Forward> forward;
  std::vector<BlockName> names;
  std::vector<std::int32_t> tokens;
  std::vector<Bytes> hidden;
  std::unique_ptr<Store> store;
  std::atomic<int> woken = 0;
};

// All blocks, all layers from `recomputed` on from these sources.
void force(FoundState& found, int recomputed, int slabs_from) {
  const int layers = static_cast<int>(found.decision.sources.size());
  found.decision.recomputed = recomputed;
  for (int layer = 0; layer < layers; ++layer) {
    found.decision.sources[layer] =
        layer < slabs_from ? RestoreSource::kHidden : RestoreSource::kSlabs;
  }
}

TEST(Restorer, SlabsOfEveryFormatAndCodecComeBackBitForBit) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"bf16", "none"},        {"bf16", "splitzip"},      {"bf16", "splitzip:channel"},
      {"int4", "none"},        {"int4", "splitzip"},      {"hack", "none"},
      {"kivi:bits=2", "none"}, {"zack:keep=0.5", "none"}, {"zack:keep=0.5", "splitzip:channel"},
  };
  for (const auto& [format, codec] : every_other_if(kThreadSanitized, cases)) {
    const std::string what = std::string(format) + " " + codec;
    World world(format);
    BlockTable truth = world.compute();
    world.save_slabs(truth, codec);
    Restorer restorer = world.restorer();
    FoundState found = restorer.find(world.names, 0, kStoredTokens);
    ASSERT_EQ(found.decision.blocks, kStoredBlocks) << what;
    EXPECT_EQ(found.decision.recomputed, 0) << what;
    BlockTable table = world.new_table();
    const auto job = world.restore(restorer, std::move(found), table);
    ASSERT_TRUE(job->status().ok()) << what << ": " << job->status().message();
    EXPECT_EQ(job->blocks(), kStoredBlocks);
    EXPECT_EQ(table.tokens(), kStoredBlocks * kBlockTokens);
    EXPECT_GT(job->times().bytes, 0);
    EXPECT_GT(world.woken, 0);
    world.expect_blocks(table, truth, 0, kStoredBlocks, what);
    // It goes on as the sequence that was never gone.
    EXPECT_EQ(world.logits(table), world.logits(truth)) << what;
  }
}

TEST(Restorer, AnyMixtureOfSourcesGivesTheSameBits) {
  for (const char* format : {"bf16", "int4"}) {
    World world(format);
    BlockTable truth = world.compute();
    world.save_slabs(truth, "splitzip");
    world.save_hidden("hidden");
    const int layers = world.shape.layers;
    for (int recomputed = 0; recomputed < layers; ++recomputed) {
      for (int slabs_from = recomputed; slabs_from <= layers;
           slabs_from += kThreadSanitized ? 2 : 1) {
        if (recomputed == 0 && slabs_from > 0) continue;  // hidden states of layer 0 are not stored
        const std::string what = std::string(format) + " recomputed " + std::to_string(recomputed) +
                                 " slabs from " + std::to_string(slabs_from);
        Restorer restorer = world.restorer();
        FoundState found = restorer.find(world.names, 0, kStoredTokens);
        ASSERT_EQ(found.decision.blocks, kStoredBlocks) << what;
        force(found, recomputed, slabs_from);
        BlockTable table = world.new_table();
        const auto job = world.restore(restorer, std::move(found), table);
        ASSERT_TRUE(job->status().ok()) << what << ": " << job->status().message();
        EXPECT_EQ(table.tokens(), kStoredBlocks * kBlockTokens) << what;
        world.expect_blocks(table, truth, 0, kStoredBlocks, what);
      }
    }
  }
}

// An engine with small chunks has no buffers for a whole piece.
TEST(Restorer, FirstLayersAreComputedInPassesOfAnySize) {
  for (const char* format : {"bf16", "int4"}) {
    World world(format);
    BlockTable truth = world.compute();
    world.save_slabs(truth, "none");
    for (const int rows : {48, 80}) {
      const std::string what = std::string(format) + " " + std::to_string(rows);
      world.forward = take(Forward::create(tiny_model(), rows, 1, world.format.get()));
      Restorer restorer = world.restorer({.pass_rows_max = rows});
      FoundState found = restorer.find(world.names, 0, kStoredTokens);
      ASSERT_EQ(found.decision.blocks, kStoredBlocks) << what;
      force(found, 2, 2);
      BlockTable table = world.new_table();
      const auto job = world.restore(restorer, std::move(found), table);
      ASSERT_TRUE(job->status().ok()) << what << ": " << job->status().message();
      EXPECT_EQ(table.tokens(), kStoredBlocks * kBlockTokens) << what;
      world.expect_blocks(table, truth, 0, kStoredBlocks, what);
    }
  }
}

TEST(Restorer, BehindBlocksThatAreInTheCache) {
  World world;
  BlockTable truth = world.compute();
  world.save_slabs(truth, "none", 2);
  world.save_hidden("hidden");
  constexpr int kFirst = 3;
  for (const int recomputed : {1, 2}) {
    Restorer restorer = world.restorer();
    FoundState found = restorer.find(world.names, kFirst, kStoredTokens);
    ASSERT_EQ(found.decision.blocks, kStoredBlocks - kFirst);
    force(found, recomputed, 4);
    BlockTable table = world.new_table();
    for (int block = 0; block < kFirst; ++block) {
      world.pool().retain(truth.id(block));
      table.append_sealed(truth.id(block));
    }
    const auto job = world.restore(restorer, std::move(found), table);
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    EXPECT_EQ(table.tokens(), kStoredBlocks * kBlockTokens);
    world.expect_blocks(table, truth, kFirst, kStoredBlocks - kFirst, "behind");
  }
}

TEST(Restorer, AFewBuffersAreEnough) {
  World world;
  BlockTable truth = world.compute();
  world.save_slabs(truth, "splitzip:channel");
  Restorer restorer = world.restorer({.buffer_bytes = 1});
  BlockTable table = world.new_table();
  const auto job = world.restore(restorer, restorer.find(world.names, 0, kStoredTokens), table);
  ASSERT_TRUE(job->status().ok()) << job->status().message();
  world.expect_blocks(table, truth, 0, kStoredBlocks, "few buffers");
}

TEST(Restorer, FindsAsMuchAsIsThereInARow) {
  World world;
  BlockTable truth = world.compute();
  EXPECT_EQ(world.restorer().find(world.names, 0, kStoredTokens).decision.blocks, 0);
  world.save_slabs(truth, "none", 0, 7);
  Restorer restorer = world.restorer();
  EXPECT_EQ(restorer.find(world.names, 0, kStoredTokens).decision.blocks, 7);
  EXPECT_EQ(restorer.find(world.names, 5, kStoredTokens).decision.blocks, 2);
  EXPECT_EQ(restorer.find(world.names, 7, kStoredTokens).decision.blocks, 0);
  // One token at least is computed, for its logits.
  EXPECT_EQ(restorer.find(world.names, 0, 4 * kBlockTokens).decision.blocks, 3);
  EXPECT_EQ(restorer.find(world.names, 0, 4 * kBlockTokens + 1).decision.blocks, 4);
  for (const PinnedExtent& extent : world.store->find({.name = world.names[2]})) {
    world.store->forget(extent);
  }
  world.store->flush();
  EXPECT_EQ(restorer.find(world.names, 0, kStoredTokens).decision.blocks, 2);
  EXPECT_EQ(restorer.find(world.names, 3, kStoredTokens).decision.blocks, 4);
}

// Of a machine on which hidden states take so long a token of a layer.
RestorerOptions profiled(const World& world, double hidden_seconds, double prefill_seconds,
                         double read_rate) {
  MachineProfile profile;
  profile.layers = world.shape.layers;
  profile.prefill = {{512, prefill_seconds}};
  profile.project = {{512, 1e-3}};
  profile.forms = {{"hidden", RestoreSource::kHidden, 128, hidden_seconds}};
  profile.read_rate = read_rate;
  return {.profile = std::make_shared<MachineProfile>(profile)};
}

// A profile that is far off, so that what is learned at once is as much as ever is.
TEST(Restorer, LearnsHowLongRestoresTake) {
  World world;
  BlockTable truth = world.compute();
  world.save_hidden("hidden");
  for (const double seconds : {1e3, 1e-12}) {
    Restorer restorer = world.restorer(profiled(world, seconds, 1e6, 1e9));
    const RestoreSeconds before = restorer.find(world.names, 0, kStoredTokens).decision.expected;
    EXPECT_NEAR(before.project, (world.shape.layers - 1) * kStoredBlocks * kBlockTokens * seconds,
                1e-9 * seconds);
    BlockTable table = world.new_table();
    const auto job = world.restore(restorer, restorer.find(world.names, 0, kStoredTokens), table);
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    EXPECT_GT(job->times().busy.read, 0);
    EXPECT_LE(job->times().busy.read, job->times().total);
    const RestoreSeconds after = restorer.find(world.names, 0, kStoredTokens).decision.expected;
    EXPECT_NEAR(after.project / before.project, seconds < 1e-6 ? 16 : 1.0 / 16, 1e-9);
  }
}

// The disk is so slow that a restore is nothing but reading, though some extents are in memory.
TEST(Restorer, OnlyDisksTeachHowFastDisksAre) {
  constexpr std::uint64_t kExtentBytes = 9 * 4096;  // a header and 4 layers of 64 rows
  for (const int in_memory : {0, 4}) {
    World world("bf16", paced_files(take(open_store_files({})), {.read_bytes_per_second = 5e5}, 1),
                in_memory * kExtentBytes);
    BlockTable truth = world.compute();
    world.save_hidden("hidden");
    Restorer restorer = world.restorer(profiled(world, 1e-9, 1e6, 1e30));
    const double before = restorer.find(world.names, 0, kStoredTokens).decision.expected.read;
    BlockTable table = world.new_table();
    const auto job = world.restore(restorer, restorer.find(world.names, 0, kStoredTokens), table);
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    EXPECT_EQ(world.store->figures().memory_reads, in_memory);
    const double after = restorer.find(world.names, 0, kStoredTokens).decision.expected.read;
    // A machine may compute even more slowly.
    const bool read_bound = job->times().busy.read >= 0.8 * job->times().total;
    EXPECT_NEAR(after / before, in_memory == 0 && read_bound ? 16 : 1, 1e-9);
  }
}

TEST(Restorer, OnlyWhoComputesInsteadForgetsWhatWasLearned) {
  World world;
  BlockTable truth = world.compute();
  world.save_hidden("hidden");
  Restorer restorer = world.restorer(profiled(world, 1e-12, 1e6, 1e9));
  FoundState found = restorer.find(world.names, 0, kStoredTokens);
  ASSERT_EQ(found.decision.blocks, kStoredBlocks);
  BlockTable table = world.new_table();
  (void)world.restore(restorer, std::move(found), table);
  const double learned = restorer.find(world.names, 0, kStoredTokens).decision.expected.project;
  restorer.forgo(restorer.find(world.names, 0, kStoredTokens));  // it was worth bringing back
  EXPECT_EQ(restorer.find(world.names, 0, kStoredTokens).decision.expected.project, learned);
  FoundState not_worth_it = restorer.find(world.names, 0, kStoredTokens);
  not_worth_it.decision.blocks = 0;
  restorer.forgo(not_worth_it);
  EXPECT_LT(restorer.find(world.names, 0, kStoredTokens).decision.expected.project, learned);
}

TEST(Restorer, LayersThatNobodyStoredAreNoDecision) {
  World world;
  BlockTable truth = world.compute();
  world.save_slabs(truth, "none");
  world.save_hidden("hidden");
  Restorer restorer = world.restorer();
  FoundState found = restorer.find(world.names, 0, kStoredTokens);
  force(found, 0, 2);  // of layer 0 there are no hidden states
  BlockTable table = world.new_table();
  ASSERT_TRUE(table.grow(kStoredTokens).ok());
  EXPECT_EQ(restorer.begin(std::move(found), 0, table, world.tokens).status().code(),
            Code::kNotFound);
}

TEST(Restorer, EightBitsAreForThoseWhoAskForThem) {
  World world;
  BlockTable truth = world.compute();
  world.save_hidden("hidden:int8");
  EXPECT_EQ(world.restorer().find(world.names, 0, kStoredTokens).decision.blocks, 0);
  Restorer restorer = world.restorer({.lossy = true});
  FoundState found = restorer.find(world.names, 0, kStoredTokens);
  ASSERT_EQ(found.decision.blocks, kStoredBlocks);
  EXPECT_EQ(found.decision.recomputed, 1);
  BlockTable table = world.new_table();
  const auto job = world.restore(restorer, std::move(found), table);
  ASSERT_TRUE(job->status().ok()) << job->status().message();
  // Not the same, and near.
  const Bytes there = world.content(table, 4), expected = world.content(truth, 4);
  ASSERT_FALSE(there == expected);
  double error = 0, square = 0;
  for (std::size_t i = 0; i < there.size(); i += 2) {
    bf16 a, b;
    std::memcpy(&a, there.data() + i, 2);
    std::memcpy(&b, expected.data() + i, 2);
    error += std::pow(to_float(a) - to_float(b), 2);
    square += std::pow(to_float(b), 2);
  }
  EXPECT_LT(std::sqrt(error / square), 0.02);
}

// Each damage: what the job says, and how much of the sequence is left.
TEST(Restorer, WhatIsDamagedOrCannotBeReadEndsTheSequenceThere) {
  for (const bool damaged : {true, false}) {
    const auto disk = std::make_shared<FaultyDisk>();
    World world("bf16", std::make_unique<FaultyFiles>(disk));
    BlockTable truth = world.compute();
    world.save_slabs(truth, "splitzip");
    constexpr int kBad = 7;
    if (damaged) {
      // Extents lie in the order in which blocks were saved.
      Bytes& segment = disk->files().begin()->second.now;
      ASSERT_GT(segment.size(), std::size_t{1} << 19);
      const std::size_t each = segment.size() / kStoredBlocks;
      // More than the padding behind a part.
      const std::size_t begin = kBad * each + each / 2;
      for (std::size_t at = begin; at < begin + 8192; ++at) segment[at] ^= std::byte{1};
    } else {
      disk->fault = [](FaultyDisk::Kind kind, int number, const std::string&) {
        return kind == FaultyDisk::Kind::kRead && number == kBad ? unavailable("no such luck")
                                                                 : Status();
      };
    }
    Restorer restorer = world.restorer();
    BlockTable table = world.new_table();
    const auto job = world.restore(restorer, restorer.find(world.names, 0, kStoredTokens), table);
    EXPECT_EQ(job->status().code(), damaged ? Code::kCorrupt : Code::kUnavailable);
    EXPECT_LT(job->blocks(), kStoredBlocks);
    EXPECT_GT(job->blocks(), 4);
    EXPECT_EQ(table.tokens(), job->blocks() * kBlockTokens);
    world.expect_blocks(table, truth, 0, job->blocks(), "before the damage");
    world.store->flush();
    // What was damaged is forgotten; what could not be read may be read the next time.
    const int next = restorer.find(world.names, 0, kStoredTokens).decision.blocks;
    EXPECT_EQ(next, damaged ? job->blocks() : kStoredBlocks);
  }
}

TEST(Restorer, MayBeGivenUpWhileReadsAreUnderWay) {
  World world("bf16", paced_files(take(open_store_files({})),
                                  {.read_bytes_per_second = 4e6, .latency = Seconds(0.002)}, 1));
  BlockTable truth = world.compute();
  world.save_slabs(truth, "none");
  for (int turns = 0; turns < 12; ++turns) {
    Restorer restorer = world.restorer();
    BlockTable table = world.new_table();
    ASSERT_TRUE(table.grow(kStoredTokens).ok());
    const auto job =
        take(restorer.begin(restorer.find(world.names, 0, kStoredTokens), 0, table, world.tokens));
    for (int i = 0; i < 1000 * turns; ++i) (void)job->advance();
  }
}

}  // namespace
}  // namespace kvlane
