// Ranks of tensor and pipeline parallelism, simulated one after another: each reads a part of a
// sequence that no other one reads, and together they have it back, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "cpu/parallel.h"
#include "model/checkpoint.h"
#include "model/forward.h"
#include "model/hidden_restorer.h"
#include "model/synth.h"
#include "restore/hidden_extents.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr int kWholeBlocks = 9;
constexpr int kWholeTokens = kWholeBlocks * kBlockTokens + 1;
constexpr int kLayers = 5, kHeads = 8, kKvHeads = 4, kHidden = 64;

std::string config_of(int ranks) {
  return R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
    "head_dim": 32, "num_hidden_layers": 5, "vocab_size": 200, "max_position_embeddings": 1024,
    "torch_dtype": "bfloat16", "tie_word_embeddings": false, "num_attention_heads": )" +
         std::to_string(kHeads / ranks) + R"(, "num_key_value_heads": )" +
         std::to_string(kKvHeads / ranks) + "}";
}

// One rank's part of a tensor of attention: rows of its heads, or of the output projection columns.
Bytes part_of(const std::string& name, const TensorView& whole, int ranks, int rank,
              std::vector<std::int64_t>& shape) {
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  const bool by_rows = has("q_proj") || has("k_proj") || has("v_proj");
  Bytes bytes(whole.bytes.begin(), whole.bytes.end());
  if (!by_rows && !has("o_proj")) return bytes;
  const std::size_t rows = by_rows ? 1 : static_cast<std::size_t>(shape[0]);
  shape[by_rows ? 0 : 1] /= ranks;
  const std::size_t part = bytes.size() / rows / ranks;
  Bytes own;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>((row * ranks + rank) * part);
    own.insert(own.end(), from, from + static_cast<std::ptrdiff_t>(part));
  }
  return own;
}

// As a rank would load it: the whole model but for other ranks' heads.
std::unique_ptr<Model> rank_model(const Checkpoint& whole, int ranks, int rank) {
  const TemporaryDirectory directory;
  std::vector<TensorSpec> specs;
  Bytes data;
  for (const auto& [name, tensor] : whole.tensors()) {
    std::vector<std::int64_t> shape = tensor.shape;
    const Bytes own = part_of(name, tensor, ranks, rank, shape);
    specs.push_back({name, tensor.type, shape});
    data.insert(data.end(), own.begin(), own.end());
  }
  const Bytes header = build_safetensors_header(specs);
  std::ofstream(directory.path() / "config.json") << config_of(ranks);
  std::ofstream file(directory.path() / "model.safetensors", std::ios::binary);
  for (const Bytes* bytes : {&header, &std::as_const(data)}) {
    file.write(reinterpret_cast<const char*>(bytes->data()),
               static_cast<std::streamsize>(bytes->size()));
  }
  file.close();
  return take(Model::load(directory.path(), {}));
}

// A rank, or somebody who has everything: a model and its cache.
struct Worker {
  explicit Worker(std::unique_ptr<Model> of)
      : model(std::move(of)),
        shape(model->config().kv_shape()),
        kind(shape, nullptr),
        pool(take(BlockPool::create(shape, (kWholeBlocks + 1) * shape.block_bytes()))),
        forward(take(Forward::create(*model, kRestorePieceTokens, 1))),
        table(pool) {
    EXPECT_TRUE(table.grow(kWholeTokens).ok());
    for (int block = 0; block < table.blocks(); ++block) {
      std::fill_n(pool.block(table.id(block)), pool.block_bytes(), std::byte{0xFF});
    }
  }

  // K and V of one head in one layer of a block.
  ByteView page(int block, int layer, int head) const {
    return {reinterpret_cast<const std::byte*>(pool.page(table.id(block), layer, head)),
            shape.page_bytes()};
  }

  const std::unique_ptr<Model> model;
  const KvShape shape;
  const SlabKind kind;
  BlockPool pool;
  const std::unique_ptr<Forward> forward;
  BlockTable table;
};

// What one worker has computed, in its cache and in a store.
class Ranks : public ::testing::Test {
 protected:
  Ranks() {
    const SynthOptions options{.config_json = config_of(1)};
    const Status written = write_synthetic_checkpoint(options, checkpoint_.path() / "model");
    EXPECT_TRUE(written.ok()) << written.message();
    whole_ = std::make_unique<Worker>(take(Model::load(checkpoint_.path() / "model", {})));
    StoreOptions wanted{.create = true};
    wanted.directories.push_back({disk_.path(), 0});
    store_ = take(Store::open(wanted, take(open_store_files({}))));
    for (int i = 0; i < kWholeTokens; ++i) {
      const auto index = static_cast<std::uint32_t>(i);
      tokens_.push_back(static_cast<std::int32_t>(philox4x32(3, {index, 0, 0, 0})[0] % 200));
    }
    for (int i = 0; i < kWholeBlocks; ++i) names_[i][0] = static_cast<std::byte>(i + 1);
    compute();
  }

  void compute() {
    PassHooks hooks;
    hooks.on_normed = [this](int layer, ByteView rows) {
      hidden_[layer].insert(hidden_[layer].end(), rows.begin(), rows.end());
    };
    for (int at = 0; at < kWholeBlocks * kBlockTokens; at += kBlockTokens) {
      const ForwardSpan span{&whole_->table, std::span(tokens_).subspan(at, kBlockTokens), 0};
      EXPECT_TRUE(whole_->forward->run({&span, 1}, hooks).ok());
    }
  }

  void save_slabs(Worker& worker, const char* codec, int shards = 1, int shard = 0) {
    const Codec* const coder = take(find_codec(codec));
    {
      SlabSaver saver(worker.pool, worker.kind, *coder, *store_,
                      {.layer_last = kLayers,
                       .shards = shards,
                       .shard = shard,
                       .extent_bytes_min = 2 * worker.shape.slab_bytes()},
                      [](BlockId) {});
      for (int block = 0; block < kWholeBlocks; ++block) {
        EXPECT_TRUE(saver.add({worker.table.id(block), block, names_[block], names_[0]}));
      }
    }
    store_->flush();
  }

  void save_hidden() {
    for (int block = 0; block < kWholeBlocks; ++block) {
      ExtentHead head{.key = {.name = names_[block]}};
      describe_hidden(rows_, head);
      head.layer = 1;
      head.position = std::int64_t{block} * kBlockTokens;
      head.parts.assign(kLayers - 1, {.k_bytes = static_cast<std::uint32_t>(part_bytes())});
      ExtentDraft draft = take(store_->draft(head));
      for (int part = 0; part < kLayers - 1; ++part) {
        std::memcpy(draft.part(part).data(), hidden_[1 + part].data() + block * part_bytes(),
                    part_bytes());
      }
      store_->put(std::move(draft), 0, [](const Status& status) { EXPECT_TRUE(status.ok()); });
    }
    store_->flush();
  }
  std::size_t part_bytes() const { return kBlockTokens * rows_.stored_bytes(); }

  // All that the worker finds. Bytes that were read.
  double restore(Worker& worker, const RestorerOptions& options, RestoreDecision* decided = {}) {
    Restorer restorer(*worker.model, worker.kind, *store_, *worker.forward, options, [] {});
    FoundState found = restorer.find(names_, 0, kWholeTokens);
    EXPECT_EQ(found.decision.blocks, kWholeBlocks);
    if (decided != nullptr) *decided = found.decision;
    const auto job = take(restorer.begin(std::move(found), 0, worker.table, tokens_));
    for (auto progress = job->advance(); progress != RestoreJob::Progress::kOver;
         progress = job->advance()) {
      if (progress == RestoreJob::Progress::kWaiting) std::this_thread::yield();
    }
    EXPECT_TRUE(job->status().ok()) << job->status().message();
    EXPECT_EQ(job->blocks(), kWholeBlocks);
    return job->times().bytes;
  }

  // The worker's heads, of which the first is `head` in the whole, in these layers.
  void expect_same(const Worker& worker, int head, LayerRun layers, const std::string& what) const {
    for (int block = 0; block < kWholeBlocks; ++block) {
      for (int layer = layers.first; layer < layers.first + layers.count; ++layer) {
        for (int own = 0; own < worker.shape.kv_heads; ++own) {
          ASSERT_TRUE(std::ranges::equal(worker.page(block, layer, own),
                                         whole_->page(block, layer, head + own)))
              << what << " block " << block << " layer " << layer << " head " << head + own;
        }
      }
    }
  }

  // Parts `first` ... of an extent; the memory lives as long as the fixture.
  ByteView read(const PinnedExtent& extent, int first, int count) {
    const std::size_t bytes = extent_read_bytes(extent.head(), first, count);
    memory_.push_back(take(PageBuffer::allocate(bytes)));
    const std::span<std::byte> memory(memory_.back().data(), bytes);
    std::latch done(1);
    store_->read({{extent, first, count, memory}}, [&](std::size_t, const Status& status) {
      EXPECT_TRUE(status.ok()) << status.message();
      done.count_down();
    });
    done.wait();
    return memory;
  }

  Checkpoint checkpoint() const { return take(Checkpoint::open(checkpoint_.path() / "model")); }

  const ParallelScope one_thread_{1};  // as in restorer_test.cpp
  const TemporaryDirectory checkpoint_, disk_;
  std::unique_ptr<Worker> whole_;
  const HiddenFormat rows_{HiddenFormat::Values::kExact, ElementType::kBf16, kHidden};
  std::vector<std::int32_t> tokens_;
  std::vector<BlockName> names_{kWholeBlocks};
  std::vector<Bytes> hidden_{kLayers};
  std::vector<PageBuffer> memory_;
  std::unique_ptr<Store> store_;
};

constexpr LayerRun kAll{0, kLayers};

// Each writes and reads extents of its own.
TEST_F(Ranks, OfTensorsRestoreSlabsOfTheirHeads) {
  const Checkpoint whole = checkpoint();
  double bytes_of_one = 0;
  for (const int ranks : {1, 2, 4}) {
    double bytes = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const int heads = kKvHeads / ranks;
      Worker writer(rank_model(whole, ranks, rank)), reader(rank_model(whole, ranks, rank));
      ASSERT_EQ(writer.shape.kv_heads, heads);
      for (int block = 0; block < kWholeBlocks; ++block) {
        for (int layer = 0; layer < kLayers; ++layer) {
          std::memcpy(writer.pool.slab(writer.table.id(block), layer),
                      whole_->page(block, layer, rank * heads).data(), writer.shape.slab_bytes());
        }
      }
      save_slabs(writer, "none", ranks, rank);
      bytes += restore(reader, {.shards = ranks, .shard = rank});
      expect_same(reader, rank * heads, kAll, std::to_string(ranks) + " ranks");
    }
    if (ranks == 1) bytes_of_one = bytes;
    EXPECT_EQ(bytes, bytes_of_one);
    EXPECT_EQ(bytes, static_cast<double>(kWholeBlocks * whole_->pool.block_bytes()));
  }
}

// Each reads every so manyth block of what one worker has written, all get all rows from each other
// (here: look into the same memory), and each makes K and V of its own heads.
TEST_F(Ranks, OfTensorsGatherHiddenStates) {
  save_hidden();
  const Checkpoint whole = checkpoint();
  for (const int ranks : {1, 2, 4}) {
    const std::uint64_t before = store_->figures().read_bytes;
    std::vector<std::vector<ByteView>> gathered(kLayers, std::vector<ByteView>(kWholeBlocks));
    for (int rank = 0; rank < ranks; ++rank) {
      for (int block = rank; block < kWholeBlocks; block += ranks) {
        const auto extents = store_->find({.name = names_[block], .kind = ExtentKind::kHidden});
        ASSERT_EQ(extents.size(), 1U);
        const ByteView parts = read(extents[0], 0, kLayers - 1);
        for (int layer = 1; layer < kLayers; ++layer) {
          gathered[layer][block] = parts.subspan((layer - 1) * part_bytes(), part_bytes());
        }
      }
    }
    EXPECT_EQ(store_->figures().read_bytes - before, kWholeBlocks * (kLayers - 1) * part_bytes());
    for (int rank = 0; rank < ranks; ++rank) {
      Worker reader(rank_model(whole, ranks, rank));
      const auto restorer = take(HiddenRestorer::create(*reader.model, rows_, kRestorePieceTokens));
      const RestoreSpan span{&reader.table, kWholeTokens, 0, kWholeBlocks * kBlockTokens};
      const auto tokens = std::span(tokens_).first(span.count);
      ASSERT_TRUE(restorer->restore_embedded(span, tokens).ok());
      for (int layer = 1; layer < kLayers; ++layer) {
        ASSERT_TRUE(restorer->restore(span, layer, gathered[layer]).ok());
      }
      expect_same(reader, rank * kKvHeads / ranks, kAll, std::to_string(ranks) + " ranks");
    }
  }
}

// Uncoded planes of all heads are those of the ranks one behind the other.
TEST_F(Ranks, OfAnotherLayoutTakeTheirHeadsOutOfWholeParts) {
  save_slabs(*whole_, "none");
  const Checkpoint whole = checkpoint();
  for (const int ranks : {2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) {
      Worker reader(rank_model(whole, ranks, rank));
      const KvShape shape = reader.shape;
      const std::size_t plane = shape.page_bytes() / 2;
      for (int block = 0; block < kWholeBlocks; ++block) {
        for (const PinnedExtent& extent : store_->find({.name = names_[block]})) {
          for (int part = 0; part < extent.head().layers(); ++part) {
            const std::byte* const k = read(extent, part, 1).data();
            const std::byte* const v = k + extent.head().parts[part].k_bytes;
            for (int own = 0; own < shape.kv_heads; ++own) {
              const std::size_t at = (rank * shape.kv_heads + own) * plane;
              auto* const page = reinterpret_cast<std::byte*>(
                  reader.pool.page(reader.table.id(block), extent.head().layer + part, own));
              std::memcpy(page, k + at, plane);
              std::memcpy(page + plane, v + at, plane);
            }
          }
        }
      }
      expect_same(reader, rank * shape.kv_heads, kAll, std::to_string(ranks) + " ranks");
    }
  }
}

// Each brings back its own layers, from extents that may hold others' as well, and leaves the
// others alone.
TEST_F(Ranks, OfAPipelineRestoreTheirLayers) {
  const std::vector<std::vector<LayerRun>> ranks = {
      {{0, kLayers}}, {{0, 3}, {3, 2}}, {{0, 2}, {2, 2}, {4, 1}}};
  for (const bool hidden : {true, false}) {
    // Slabs are preferred where they are.
    if (hidden) {
      save_hidden();
    } else {
      save_slabs(*whole_, "splitzip");
    }
    std::vector<double> bytes;
    for (const std::vector<LayerRun>& each : ranks) {
      bytes.push_back(0);
      for (const LayerRun layers : each) {
        const std::string what = std::to_string(layers.first) + " layers before";
        Worker reader(take(Model::load(checkpoint_.path() / "model", {})));
        RestoreDecision decision;
        bytes.back() += restore(reader, {.layers = layers}, &decision);
        EXPECT_EQ(decision.recomputed, hidden && layers.first == 0 ? 1 : 0) << what;
        expect_same(reader, 0, layers, what);
        for (int layer = 0; layer < kLayers; ++layer) {
          if (layer >= layers.first && layer < layers.first + layers.count) continue;
          const ByteView untouched = reader.page(0, layer, 0);
          EXPECT_TRUE(
              std::ranges::all_of(untouched, [](std::byte b) { return b == std::byte{0xFF}; }))
              << what << " layer " << layer;
        }
      }
    }
    EXPECT_GT(bytes[0], 0);
    EXPECT_EQ(bytes[1], bytes[0]);
    EXPECT_EQ(bytes[2], bytes[0]);
  }
}

}  // namespace
}  // namespace kvlane
