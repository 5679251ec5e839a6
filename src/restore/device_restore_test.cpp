// Slabs between a store and the memory of a device, one of emulated threads: the bytes that the
// CPU's cache gives and gets, and nobody else's loss where the device refuses.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "cpu/memory.h"
#include "model/device_forward.h"
#include "model/emulated_accelerator.h"
#include "model/format_codes.h"
#include "model/forward.h"
#include "quant/tables_fixture.h"
#include "restore/hidden_gatherer.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"
#include "restore/tiny_model_fixture.h"

namespace kvlane {
namespace {

using tiny_model_fixture::block_names;
using tiny_model_fixture::tiny_format;
using tiny_model_fixture::tiny_model;

constexpr int kRestoredBlocks = kPieceBlocks + 1;  // pieces in both halves of the rooms
constexpr int kRestoredTokens = kRestoredBlocks * kBlockTokens + 1;

EmulatedAccelerator& device() {
  static EmulatedAccelerator device;
  return device;
}

const Model& model_on(Accelerator* device) {
  static const std::unique_ptr<Model> on_device =
      tiny_model_fixture::load({.device = &kvlane::device()});
  return device == nullptr ? tiny_model() : *on_device;
}

// A cache of the host or of a device, whose blocks 0, 1, 2 ... are those of a sequence.
class Cache {
 public:
  // cppcheck-suppress uninitMemberVar  ; device_ is: it loses the thread here
  Cache(Accelerator* device, const SlabKind& kind)
      : kind_(kind), device_(device), model_(model_on(device)) {
    EXPECT_TRUE(table.grow(kRestoredBlocks * kBlockTokens).ok());
  }

  SlabLane lane() const {
    return device_ == nullptr ? SlabLane()
                              : take(SlabLane::open(*device_, kind_.shape(), kPieceBlocks,
                                                    sizes().largest(), SlabLanding::kRooms));
  }
  std::unique_ptr<ForwardPass> forward(KeptLayers kept = {}) const {
    const KvFormat* const format = kind_.format();
    if (device_ == nullptr) return take(Forward::create(model_, kRestorePieceTokens, 1, format));
    std::optional<DeviceFormat> kernels;
    if (format != nullptr) kernels = take(device_codes(*format));
    return take(DeviceForward::create(model_.on_device(), *device_, kRestorePieceTokens, 1, true,
                                      kernels, kept));
  }
  const Model& model() const { return model_; }

  void write(int block, int layer, const Bytes& slab) {
    EXPECT_TRUE(copy_(pool.slab_memory(table.id(block), layer), slab.data(), slab.size()).ok());
  }
  Bytes read(int block, int layer) {
    Bytes slab(kind_.slab_bytes(layer));
    EXPECT_TRUE(copy_(slab.data(), pool.slab_memory(table.id(block), layer), slab.size()).ok());
    return slab;
  }

 private:
  SlabSizes sizes() const {
    const KvShape& shape = kind_.shape();
    return kind_.format() != nullptr ? kind_.format()->slab_sizes()
                                     : SlabSizes(shape.layers, shape.slab_bytes());
  }
  // Of a pass.
  std::size_t rows_bytes() const { return kRestoredBlocks * kind_.shape().block_bytes(); }
  Accelerator::Memory allocate(std::size_t bytes) const {
    if (device_ == nullptr) return {};
    return take(device_->allocate(bytes));
  }
  BlockPool make_pool() {
    const KvShape& shape = kind_.shape();
    const std::span memory(memory_.get(), bytes_);
    if (kind_.format() == nullptr) {
      return take(device_ == nullptr ? BlockPool::create(shape, bytes_)
                                     : BlockPool::over(shape, memory, copy_));
    }
    return take(device_ == nullptr ? BlockPool::create_sealed(shape, sizes(), bytes_)
                                   : BlockPool::over_sealed(shape, sizes(), memory, copy_));
  }
  BlockPool make_rows() {
    return take(device_ == nullptr
                    ? BlockPool::create(kind_.shape(), rows_bytes())
                    : BlockPool::over(kind_.shape(), {rows_memory_.get(), rows_bytes()}, copy_));
  }
  BlockTable make_table() {
    if (kind_.format() == nullptr) return BlockTable(pool);
    return {pool, rows_, {}};
  }

  const SlabKind& kind_;
  Accelerator* const device_;
  const Model& model_;
  const MemoryCopy copy_ = device_ != nullptr ? take(device_->copies()) : MemoryCopy(copy_on_host);
  const std::size_t bytes_ = kRestoredBlocks * sizes().block_bytes();
  const Accelerator::Memory memory_ = allocate(bytes_), rows_memory_ = allocate(rows_bytes());

 public:
  BlockPool pool = make_pool();

 private:
  BlockPool rows_ = make_rows();

 public:
  BlockTable table = make_table();
};

struct Disk {
  Disk() {
    StoreOptions options{.create = true};
    options.directories.push_back({directory.path(), 0});
    store = take(Store::open(options, take(open_store_files({}))));
  }

  void save(Cache& cache, const SlabKind& kind, const char* codec, int first_layer = 0) {
    {
      const Codec* const coder = take(find_codec(codec));
      SlabSaver saver(
          cache.pool, kind, *coder, *store,
          {.layer_first = first_layer,
           .layer_last = kind.shape().layers,
           .extent_bytes_min = 1 << 20},
          [](BlockId) {}, cache.lane());
      for (int block = 0; block < kRestoredBlocks; ++block) {
        EXPECT_TRUE(saver.add({cache.table.id(block), block, names[block], names[0]}));
      }
      saver.flush();
      EXPECT_EQ(saver.failed(), 0);
    }
    store->flush();
  }

  // Codec and planes of everything, in the order of blocks.
  std::vector<std::pair<std::string, Bytes>> content() {
    std::vector<std::pair<std::string, Bytes>> all;
    for (const BlockName& name : names) {
      for (PinnedExtent& extent : store->find({.name = name, .kind = ExtentKind::kKv})) {
        const ExtentHead& head = extent.head();
        const std::size_t bytes = extent_read_bytes(head, 0, head.layers());
        PageBuffer buffer = take(PageBuffer::allocate(bytes));
        std::atomic<int> done = 0;
        std::vector<ExtentRead> read{{extent, 0, head.layers(), {buffer.data(), bytes}}};
        store->read(std::move(read), [&](std::size_t, const Status& status) {
          EXPECT_TRUE(status.ok()) << status.message();
          ++done;
        });
        while (done == 0) std::this_thread::yield();
        for (const ExtentPart& part : head.parts) {
          const auto* const at =
              buffer.data() + std::size_t{part.page - head.parts[0].page} * kExtentPageBytes;
          all.emplace_back(head.format + " " + head.codec, Bytes(at, at + part.bytes()));
        }
      }
    }
    return all;
  }

  const TemporaryDirectory directory;
  const std::vector<BlockName> names = block_names(kRestoredBlocks);
  std::unique_ptr<Store> store;
};

std::vector<std::int32_t> tokens_of_all() {
  std::vector<std::int32_t> tokens(kRestoredTokens);
  for (int i = 0; i < kRestoredTokens; ++i) tokens[i] = i * 7919 % tiny_model().config().vocab;
  return tokens;
}

// A sequence in the device's cache, and hidden states of all layers but the first on the disk.
void compute(Cache& cache, const char* form, Disk& disk) {
  const Model& model = cache.model();
  const int layers = model.config().layers;
  const auto forward = cache.forward({1, layers});
  const HiddenFormat format = take(HiddenFormat::parse(form, model));
  const auto gatherer = take(HiddenGatherer::create(
      *disk.store, model, {.format = format, .layer_first = 1, .layer_last = layers}));
  const auto rows = gatherer->begin();
  const std::vector<std::int32_t> tokens = tokens_of_all();
  for (int at = 0; at < kRestoredBlocks * kBlockTokens; at += kRestorePieceTokens) {
    const int count = std::min(kRestorePieceTokens, kRestoredBlocks * kBlockTokens - at);
    const ForwardSpan span{&cache.table, std::span(tokens).subspan(at, count), 0};
    const auto keep = [&](const KeptRows& kept) {
      const PassRows all{rows.get(), at, kept.first[0], count};
      return gatherer->fetch({&all, 1}, kept);
    };
    const Status status = forward->run({&span, 1}, {.on_kept = keep});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  for (int block = 0; block < kRestoredBlocks; ++block) {
    gatherer->complete(*rows, block, disk.names[block], disk.names[0]);
  }
  gatherer->flush();
  disk.store->flush();
  EXPECT_EQ(gatherer->figures().blocks, std::uint64_t{kRestoredBlocks});
}

// What was found, until the job is over. The table then has the blocks that came back.
std::unique_ptr<RestoreJob> restore(Restorer& restorer, Cache& cache, FoundState found) {
  auto job = take(restorer.begin(std::move(found), 0, cache.table, tokens_of_all()));
  for (auto progress = job->advance(); progress != RestoreJob::Progress::kOver;
       progress = job->advance()) {
    if (progress == RestoreJob::Progress::kWaiting) std::this_thread::yield();
  }
  return job;
}
std::unique_ptr<RestoreJob> restore(Restorer& restorer, Cache& cache, const Disk& disk) {
  return restore(restorer, cache, restorer.find(disk.names, 0, kRestoredTokens));
}

// Slabs like those of a model, sealed if there is a format. [block][layer]
std::vector<std::vector<Bytes>> make_slabs(const SlabKind& kind) {
  std::vector<std::vector<Bytes>> slabs(kRestoredBlocks);
  for (int block = 0; block < kRestoredBlocks; ++block) {
    for (int layer = 0; layer < kind.shape().layers; ++layer) {
      const auto rows =
          tables_fixture::to_bits(tables_fixture::plain_rows(kind.shape(), 10 * block + layer));
      Bytes& slab = slabs[block].emplace_back(kind.slab_bytes(layer));
      if (kind.format() == nullptr) {
        std::memcpy(slab.data(), rows.data(), slab.size());
        continue;
      }
      // Slabs want to begin at a multiple of 64.
      PageBuffer sealed = take(PageBuffer::allocate(slab.size()));
      std::memset(sealed.data(), 0, slab.size());
      const Status status =
          kind.format()->seal({layer, block * kBlockTokens}, rows.data(), sealed.data());
      EXPECT_TRUE(status.ok()) << status.message();
      std::memcpy(slab.data(), sealed.data(), slab.size());
    }
  }
  return slabs;
}

TEST(DeviceRestore, CachesOfHostAndDeviceGiveAndGetTheSameBytes) {
  const std::pair<const char*, const char*> cases[] = {{"bf16", "none"},
                                                       {"bf16", "splitzip"},
                                                       {"bf16", "splitzip:channel"},
                                                       {"hack", "none"},
                                                       {"hack:p=64", "splitzip"},
                                                       {"zack:keep=0.5", "none"},
                                                       {"zack:keep=0.5", "splitzip:channel"}};
  for (const auto& [name, codec] : cases) {
    SCOPED_TRACE(std::string(name) + " " + codec);
    const auto format = tiny_format(name);
    const SlabKind kind(tiny_model().config().kv_shape(), format.get());
    const auto slabs = make_slabs(kind);
    std::array<Disk, 2> disks;
    for (const bool on_device : {false, true}) {
      Cache cache(on_device ? &device() : nullptr, kind);
      for (int block = 0; block < kRestoredBlocks; ++block) {
        for (int layer = 0; layer < kind.shape().layers; ++layer) {
          cache.write(block, layer, slabs[block][layer]);
        }
      }
      disks[on_device].save(cache, kind, codec);
    }
    const auto stored = disks[0].content();
    EXPECT_EQ(stored.size(), std::size_t(kRestoredBlocks) * kind.shape().layers);
    EXPECT_TRUE(disks[1].content() == stored);
    for (const bool saved_on_device : {false, true}) {
      for (const bool on_device : {false, true}) {
        Disk& disk = disks[saved_on_device];
        Cache cache(on_device ? &device() : nullptr, kind);
        const auto forward = cache.forward();
        Restorer restorer(
            cache.model(), kind, *disk.store, *forward, {}, [] {}, cache.lane());
        const auto job = restore(restorer, cache, disk);
        ASSERT_TRUE(job->status().ok()) << job->status().message();
        ASSERT_EQ(job->blocks(), kRestoredBlocks);
        EXPECT_EQ(cache.table.tokens(), kRestoredBlocks * kBlockTokens);
        for (int block = 0; block < kRestoredBlocks; ++block) {
          for (int layer = 0; layer < kind.shape().layers; ++layer) {
            EXPECT_TRUE(cache.read(block, layer) == slabs[block][layer])
                << saved_on_device << on_device << " " << block << " " << layer;
          }
        }
      }
    }
  }
}

// The first layers need not be stored: a device computes them, too, and seals them.
TEST(DeviceRestore, FirstLayersAreComputedFromTokens) {
  for (const char* const name : {"bf16", "hack"}) {
    SCOPED_TRACE(name);
    const auto format = tiny_format(name);
    const SlabKind kind(tiny_model().config().kv_shape(), format.get());
    Cache computed(&device(), kind), back(&device(), kind);
    const auto forward = computed.forward();
    const std::vector<std::int32_t> tokens = tokens_of_all();
    for (int at = 0; at < kRestoredBlocks * kBlockTokens; at += kRestorePieceTokens) {
      const int count = std::min(kRestorePieceTokens, kRestoredBlocks * kBlockTokens - at);
      const ForwardSpan span{&computed.table, std::span(tokens).subspan(at, count), 0};
      ASSERT_TRUE(forward->run({&span, 1}, {}).ok());
    }
    Disk disk;
    disk.save(computed, kind, "none", 2);
    // Whose verdicts about layers are nobody's yet.
    const auto again = back.forward();
    Restorer restorer(
        back.model(), kind, *disk.store, *again, {}, [] {}, back.lane());
    const auto job = restore(restorer, back, disk);
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    ASSERT_EQ(job->blocks(), kRestoredBlocks);
    EXPECT_EQ(job->decision().recomputed, 2);
    for (int block = 0; block < kRestoredBlocks; ++block) {
      for (int layer = 0; layer < kind.shape().layers; ++layer) {
        EXPECT_TRUE(back.read(block, layer) == computed.read(block, layer)) << block << layer;
      }
    }
  }
}

void expect_same(Cache& back, Cache& computed, const SlabKind& kind) {
  for (int block = 0; block < kRestoredBlocks; ++block) {
    for (int layer = 0; layer < kind.shape().layers; ++layer) {
      EXPECT_TRUE(back.read(block, layer) == computed.read(block, layer)) << block << " " << layer;
    }
  }
}

// Hidden states, slabs and tokens in one job: the bits of a sequence that never left. The parameter
// is the KV format.
class DeviceRestoreOf : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Formats, DeviceRestoreOf,
                         ::testing::Values("bf16", "hack", "hack:p=64", "zack:keep=0.5"));

TEST_P(DeviceRestoreOf, AnyMixtureOfSourcesGivesTheSameBits) {
  const char* const name = GetParam();
  const auto format = tiny_format(name);
  const SlabKind kind(tiny_model().config().kv_shape(), format.get());
  const int layers = kind.shape().layers;
  Cache computed(&device(), kind);
  Disk disk;
  compute(computed, "hidden", disk);
  disk.save(computed, kind, "none");
  const std::vector<std::pair<int, int>> mixtures = {
      {1, 3}, {1, layers}, {3, 4}, {2, layers}, {0, 0}};
  for (const auto& [recomputed, slabs_from] : every_other_if(kSanitized, mixtures)) {
    SCOPED_TRACE(std::string(name) + " " + std::to_string(recomputed) + " recomputed, slabs from " +
                 std::to_string(slabs_from));
    Cache back(&device(), kind);
    const auto forward = back.forward();
    Restorer restorer(
        back.model(), kind, *disk.store, *forward, {}, [] {}, back.lane());
    FoundState found = restorer.find(disk.names, 0, kRestoredTokens);
    ASSERT_EQ(found.decision.blocks, kRestoredBlocks);
    found.decision.recomputed = recomputed;
    for (int layer = 0; layer < layers; ++layer) {
      found.decision.sources[layer] =
          layer < slabs_from ? RestoreSource::kHidden : RestoreSource::kSlabs;
    }
    const auto job = restore(restorer, back, std::move(found));
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    ASSERT_EQ(job->blocks(), kRestoredBlocks);
    expect_same(back, computed, kind);
  }
}

// Rows in 8 bits are the same rows for all restores, on a CPU too: K and V differ by what products
// round there.
TEST(DeviceRestore, EightBitsComeBackAsTheyAreStored) {
  const SlabKind kind(tiny_model().config().kv_shape(), nullptr);
  Cache computed(&device(), kind), first(&device(), kind), again(&device(), kind);
  Disk disk;
  compute(computed, "hidden:int8", disk);
  for (Cache* back : {&first, &again}) {
    const auto forward = back->forward();
    Restorer lossless(
        back->model(), kind, *disk.store, *forward, {}, [] {}, back->lane());
    EXPECT_FALSE(lossless.find(disk.names, 0, kRestoredTokens).stored);
    Restorer restorer(
        back->model(), kind, *disk.store, *forward, {.lossy = true}, [] {}, back->lane());
    const auto job = restore(restorer, *back, disk);
    ASSERT_TRUE(job->status().ok()) << job->status().message();
    EXPECT_EQ(job->blocks(), kRestoredBlocks);
    EXPECT_EQ(job->decision().recomputed, 1);
  }
  expect_same(again, first, kind);
  // The layer that was computed has no error, the others have one.
  EXPECT_TRUE(first.read(0, 0) == computed.read(0, 0));
  EXPECT_FALSE(first.read(0, 1) == computed.read(0, 1));
}

// Whichever call fails, in the line of passes or beside it: what is said to be back is, and the
// store keeps what it has.
TEST(DeviceRestore, AnyCallMayFailWhileHiddenStatesComeBack) {
  const auto format = tiny_format("hack");
  const SlabKind kind(tiny_model().config().kv_shape(), format.get());
  Cache computed(&device(), kind);
  Disk disk;
  compute(computed, "hidden", disk);
  disk.save(computed, kind, "none");
  const std::size_t stored = disk.store->all().size();
  int refused = 0;
  for (int n = 1;; n += kSanitized ? 7 : 3) {
    Cache back(&device(), kind);
    const auto forward = back.forward();
    Restorer restorer(
        back.model(), kind, *disk.store, *forward, {}, [] {}, back.lane());
    FoundState found = restorer.find(disk.names, 0, kRestoredTokens);
    // Layers 1 and 2 from hidden states, the others from slabs.
    found.decision.recomputed = 1;
    for (const int layer : {1, 2}) found.decision.sources[layer] = RestoreSource::kHidden;
    device().fail_call(n);
    const auto job = restore(restorer, back, std::move(found));
    const int calls = device().calls();
    device().fail_call(0);
    EXPECT_EQ(job->status().code(), calls < n ? Code::kOk : Code::kInternal) << n;
    refused += job->status().ok() ? 0 : 1;
    for (int block = 0; block < job->blocks(); ++block) {
      for (int layer = 0; layer < kind.shape().layers; ++layer) {
        EXPECT_TRUE(back.read(block, layer) == computed.read(block, layer)) << n << " " << block;
      }
    }
    EXPECT_EQ(disk.store->all().size(), stored) << n;
    if (calls < n) break;
  }
  EXPECT_GT(refused, 10);
}

class DeviceRestoreTest : public testing::Test {
 protected:
  DeviceRestoreTest() {
    for (int block = 0; block < kRestoredBlocks; ++block) {
      for (int layer = 0; layer < kind_.shape().layers; ++layer) {
        cache_.write(block, layer, slabs_[block][layer]);
      }
    }
  }
  ~DeviceRestoreTest() override { device().fail_call(0); }

  bool has(Cache& cache, int block) const {
    for (int layer = 0; layer < kind_.shape().layers; ++layer) {
      if (cache.read(block, layer) != slabs_[block][layer]) return false;
    }
    return true;
  }

  const SlabKind kind_{tiny_model().config().kv_shape(), nullptr};
  const std::vector<std::vector<Bytes>> slabs_ = make_slabs(kind_);
  Cache cache_{&device(), kind_};
  Disk disk_;
};

// Whichever call fails: what is said to be back is, and the store keeps what it has.
TEST_F(DeviceRestoreTest, AnyCallMayFailWhileSlabsComeBack) {
  for (const char* const codec : {"none", "splitzip"}) {
    Disk disk;
    disk.save(cache_, kind_, codec);
    const std::size_t stored = disk.store->all().size();
    int refused = 0;
    for (int n = 1;; n += kSanitized ? 3 : 1) {
      Cache back(&device(), kind_);
      const auto forward = back.forward();
      Restorer restorer(
          back.model(), kind_, *disk.store, *forward, {}, [] {}, back.lane());
      device().fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
      const auto job = restore(restorer, back, disk);
      const int calls = device().calls();
      device().fail_call(0);
      EXPECT_EQ(job->status().code(), calls < n ? Code::kOk : Code::kInternal) << n;
      refused += job->status().ok() ? 0 : 1;
      for (int block = 0; block < job->blocks(); ++block) EXPECT_TRUE(has(back, block)) << n;
      EXPECT_EQ(disk.store->all().size(), stored) << n;
      if (calls < n) break;
    }
    EXPECT_GT(refused, 5) << codec;
  }
}

// The same while slabs are saved: a block is in the store, right, or counted.
TEST_F(DeviceRestoreTest, AnyCallMayFailWhileSlabsAreSaved) {
  for (const char* const codec : {"none", "splitzip"}) {
    int failed = 0;
    for (int n = 1;; n += 7) {
      Disk disk;
      SlabSaver saver(
          cache_.pool, kind_, *take(find_codec(codec)), *disk.store,
          {.layer_last = kind_.shape().layers}, [](BlockId) {}, cache_.lane());
      device().fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
      for (int block = 0; block < kRestoredBlocks; ++block) {
        EXPECT_TRUE(saver.add({cache_.table.id(block), block, disk.names[block], disk.names[0]}));
      }
      saver.flush();
      const int calls = device().calls();
      device().fail_call(0);
      disk.store->flush();
      EXPECT_EQ(saver.failed(), calls < n ? 0 : 1) << codec << " " << n;
      EXPECT_EQ(disk.content().size(),
                std::size_t(kRestoredBlocks - saver.failed()) * kind_.shape().layers)
          << codec << " " << n;
      failed += static_cast<int>(saver.failed());
      if (calls < n) break;
    }
    EXPECT_GT(failed, 3) << codec;
  }
}

// Slabs of one layer to the blocks of a cache.
class LandingTest : public DeviceRestoreTest {
 protected:
  std::vector<StoredSlab> stored(const char* codec_name, int layer) {
    const Codec& codec = *take(find_codec(codec_name));
    const PlaneShape shape = plane_shape(kind_.shape(), kBlockTokens);
    std::vector<StoredSlab> all;
    for (int block = 0; block < kPieceBlocks; ++block) {
      std::array<ByteView, 2> planes;
      for (int part = 0; part < 2; ++part) {
        const std::size_t page = kind_.shape().page_bytes();
        const PlaneView values{slabs_[block][layer].data() + part * page / 2, page};
        Bytes& body = bodies_.emplace_back(codec.bound(shape));
        body.resize(codec.encode(shape, values, nullptr, body));
        planes[part] = body;
      }
      all.push_back({codec_name, {planes[0], planes[1]}, block, back_.table.id(block)});
    }
    return all;
  }

  Cache back_{&device(), kind_};
  SlabLanding landing_{kind_, back_.model().isa(), back_.lane()};
  std::vector<Status> verdicts_ = std::vector<Status>(kPieceBlocks);
  std::deque<Bytes> bodies_;
};

// Blocks that were saved in different codecs, one of them damaged.
TEST_F(LandingTest, ADamagedSlabSpoilsNoOther) {
  std::vector<StoredSlab> mixed = stored("splitzip", 1);
  const std::vector<StoredSlab> plain = stored("none", 1), other = stored("splitzip:channel", 1);
  mixed[2] = plain[2];
  mixed[3] = plain[3];
  mixed[6] = other[6];
  for (const std::size_t damaged : {0, 3, 6}) {
    std::vector<StoredSlab> slabs = mixed;
    slabs[damaged].coded.v = slabs[damaged].coded.v.first(slabs[damaged].coded.v.size() - 1);
    ASSERT_TRUE(landing_.land(back_.pool, 1, slabs, verdicts_).ok());
    ASSERT_TRUE(landing_.finish(0).ok());
    for (std::size_t i = 0; i < slabs.size(); ++i) {
      const int block = static_cast<int>(i);
      EXPECT_EQ(verdicts_[i].code(), i == damaged ? Code::kCorrupt : Code::kOk) << i;
      EXPECT_NE(back_.read(block, 1) == slabs_[block][1], i == damaged) << damaged << i;
      back_.write(block, 1, Bytes(kind_.slab_bytes(1)));
    }
  }
}

// Nobody waits for a copy before its rooms are wanted; and an error is that of all who had slabs on
// their way, whoever of them asks first, and of nobody else.
TEST_F(LandingTest, AnErrorIsToldToAllWhoMayHaveLostSomething) {
  const std::vector<StoredSlab> slabs = stored("none", 0);
  EXPECT_EQ(landing_.given(), 0U);
  ASSERT_TRUE(landing_.land(back_.pool, 0, slabs, verdicts_).ok());
  EXPECT_FALSE(back_.read(0, 0) == slabs_[0][0]);
  const std::uint64_t second = landing_.given();
  ASSERT_TRUE(landing_.land(back_.pool, 0, slabs, verdicts_).ok());
  device().fail_call(1, EmulatedAccelerator::Counted::kBesideTheLine);
  EXPECT_EQ(landing_.finish(second).code(), Code::kInternal);
  device().fail_call(0);
  EXPECT_EQ(landing_.finish(0).code(), Code::kInternal);
  const std::uint64_t third = landing_.given();
  ASSERT_TRUE(landing_.land(back_.pool, 0, slabs, verdicts_).ok());
  EXPECT_TRUE(landing_.finish(third).ok());
  for (int block = 0; block < kPieceBlocks; ++block) {
    EXPECT_TRUE(back_.read(block, 0) == slabs_[block][0]) << block;
  }
}

}  // namespace
}  // namespace kvlane
