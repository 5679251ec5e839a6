// Prefill attention on a GPU against double precision, with poison around all that it writes.
// Skipped where no GPU is; there prefill_device_test.cpp runs the same device code on emulated
// threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/prefill_gpu.h"

#include <gtest/gtest.h>

#include "attention/prefill_fixture.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::prefill_fixture {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using Rows = std::vector<std::uint16_t>;

constexpr std::uint16_t kGpuPoison = 0xA5A5;  // as DeviceBytes has it

template <class T>
ByteView view(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

class PrefillGpuTest : public gpu_fixture::GpuTest {
 protected:
  // [scene.rows()][heads][head_dim], poisoned before.
  Rows run(const Scene& scene, DeviceBytes::Around around = DeviceBytes::Around::kPoison) {
    const std::vector<PrefillUnit> plan = scene.units();
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const DeviceBytes units = on_device(view(plan)), tables = on_device(view(scene.tables()));
    const DeviceBytes pool = on_device(view(scene.pool())), q = on_device(view(scene.q()));
    const DeviceBytes out =
        on_device(Bytes(scene.rows() * scene.row_values() * 2, DeviceBytes::kPoison));
    PrefillBatch batch = scene.batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.q = q.data();
    batch.out = out.data();
    const auto* const units_there = reinterpret_cast<const PrefillUnit*>(units.data());
    if (scene.shape().window) {
      const DeviceBytes max = on_device(view(scene.seen_max())),
                        sum = on_device(view(scene.seen_sum()));
      const DeviceBytes seen_out = on_device(view(scene.seen_out()));
      const SealedSeen seen{*scene.shape().window, reinterpret_cast<const float*>(max.data()),
                            reinterpret_cast<const float*>(sum.data()),
                            reinterpret_cast<const float*>(seen_out.data())};
      check(attend_window_on_gpu(batch, seen, units_there, plan.size(), stream()));
      check(stream().synchronize());
    } else {
      check(attend_prefill_on_gpu(batch, units_there, plan.size(), stream()));
      check(stream().synchronize());
    }
    const Bytes bytes = out.read();
    Rows rows(bytes.size() / 2);
    std::memcpy(static_cast<void*>(rows.data()), bytes.data(), bytes.size());
    return rows;
  }

  void expect_right(const Scene& scene, int step = 1) {
    scene.expect_right(run(scene), kGpuPoison, step);
  }
};

TEST_F(PrefillGpuTest, SmallOneOfEachKernel) {
  for (const int head_dim : {64, 128, 256}) {
    for (const int group : {1, 3, 12}) {
      const Scene scene({2 * group, 2, head_dim, {{0, 0, 1}, {1, 0, 0}, {2, 70, 100}}});
      scene.expect_right(run(scene, DeviceBytes::Around::kNothing), kGpuPoison, 9);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(PrefillGpuTest, SmallBehindSealedPages) {
  for (const KvWindow window : {KvWindow{0, 0}, KvWindow{1, 1}}) {
    for (const int head_dim : {64, 128, 256}) {
      const Scene scene({6, 2, head_dim, {{0, 0, 1}, {1, 0, 0}, {2, 150, 100}}, window});
      scene.expect_right(run(scene, DeviceBytes::Around::kNothing), kGpuPoison, 9);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(PrefillGpuTest, BehindSealedPages) {
  for (const KvWindow window :
       {KvWindow{0, 0}, KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}, KvWindow{9, 9}}) {
    for (const int head_dim : {64, 80, 128, 192, 256}) {
      for (const int group : {1, 4, 7}) {
        expect_right(Scene({group, 1, head_dim, {{0, 0, 200}, {1, 500, 90}, {2, 640, 1}}, window}),
                     7);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(PrefillGpuTest, EveryGroupAndHeadDim) {
  for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 29}) {
    for (const int head_dim : {64, 72, 80, 96, 112, 128, 160, 192, 256}) {
      expect_right(Scene({group, 1, head_dim, {{0, 0, 70}, {1, 190, 45}}}, group), 8);
      if (HasFatalFailure()) return;
    }
  }
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    expect_right(Scene({6, 2, head_dim, {{0, 0, 81}, {1, 130, 70}}}), 8);
    if (HasFatalFailure()) return;
  }
}

TEST_F(PrefillGpuTest, EveryPlaceInASequence) {
  std::vector<SpanShape> spans;
  for (const int position : {0, 1, 31, 62, 63, 64, 65, 127, 128, 200}) {
    for (const int rows : {0, 1, 2, 15, 31, 32, 33, 63, 64, 65, 128, 130}) {
      spans.push_back({static_cast<int>(spans.size()), position, rows});
    }
  }
  for (const int head_dim : {64, 128, 256}) {
    expect_right(Scene({4, 2, head_dim, spans}), 11);
    if (HasFatalFailure()) return;
  }
}

TEST_F(PrefillGpuTest, LongSequences) {
  expect_right(Scene({8, 1, 128, {{0, 0, 3000}, {1, 12000, 7}}}), 501);
  expect_right(Scene({4, 2, 64, {{0, 3001, 1000}}}), 301);
}

TEST_F(PrefillGpuTest, NothingToDo) {
  EXPECT_TRUE(run(Scene({4, 2, 64, {}})).empty());
  const Scene scene({4, 2, 64, {{0, 0, 0}, {1, 99, 0}}});
  EXPECT_EQ(run(scene), Rows(2 * scene.row_values(), kGpuPoison));
}

TEST_F(PrefillGpuTest, EveryRunHasTheSameBits) {
  for (const int head_dim : {64, 128, 256}) {
    const Scene scene({16, 2, head_dim, {{0, 0, 700}, {1, 0, 1}, {2, 300, 0}, {3, 900, 250}}});
    const Rows first = run(scene);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(run(scene), first);
  }
}

TEST_F(PrefillGpuTest, NoChunkingChangesABit) {
  constexpr int kRows = 700;
  for (const int head_dim : {64, 128, 256}) {
    for (const int heads : {1, 4, 7}) {
      const Scene whole({heads, 1, head_dim, {{0, 0, kRows}}});
      const Rows right = whole.rows_of(run(whole), 0);
      for (const int chunk : {1, 16, 64, 100, 512}) {
        // Of one sequence in one launch: each chunk has blocks of its own up to its last row.
        std::vector<SpanShape> spans;
        const int end = chunk == 1 ? 150 : kRows;
        for (int row = 0; row < end; row += chunk) {
          spans.push_back({0, row, std::min(chunk, end - row)});
        }
        const Scene cut({heads, 1, head_dim, spans});
        const Rows all = run(cut);
        Rows together;
        for (std::size_t i = 0; i < spans.size(); ++i) {
          const Rows own = cut.rows_of(all, i);
          together.insert(together.end(), own.begin(), own.end());
        }
        ASSERT_TRUE(std::equal(together.begin(), together.end(), right.begin()))
            << "chunks of " << chunk << ", head_dim " << head_dim << ", " << heads << " heads";
      }
    }
  }
}

TEST_F(PrefillGpuTest, NoCompanyChangesABit) {
  const std::vector<SpanShape> spans = {{0, 0, 700}, {1, 60, 9}, {2, 0, 1}, {3, 1000, 333}};
  for (const int head_dim : {64, 80, 128, 256}) {
    const Scene together({6, 2, head_dim, spans});
    const Rows all = run(together);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const Scene alone({6, 2, head_dim, {spans[i]}});
      EXPECT_EQ(alone.rows_of(run(alone), 0), together.rows_of(all, i)) << "span " << i;
    }
  }
}

TEST_F(PrefillGpuTest, MaximaThatMoveFar) {
  for (const int where : {0, 40, 650}) {
    for (const float size : {30.0F, -30.0F}) {
      Scene scene({4, 1, 64, {{0, 500, 200}}});
      scene.scale_key(0, where, 0, size);
      expect_right(scene, 13);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(PrefillGpuTest, SaysWhatItCannotDo) {
  const gpu::DeviceBuffer memory = take(gpu::DeviceBuffer::allocate(kDevice, 4096));
  const Scene scene({4, 2, 64, {{0, 0, 5}}});
  for (const int head_dim : {100, 264, 0}) {
    PrefillBatch batch = scene.batch();
    batch.head_dim = head_dim;
    EXPECT_EQ(attend_prefill_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  }
  PrefillBatch batch = scene.batch();
  batch.slabs = memory.data() + 8;
  EXPECT_EQ(attend_prefill_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  batch = scene.batch();
  batch.out = memory.data() + 2;
  EXPECT_EQ(attend_prefill_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
  batch = scene.batch();
  batch.kv_heads = 3;
  EXPECT_EQ(attend_prefill_on_gpu(batch, nullptr, 0, stream()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane::prefill_fixture
