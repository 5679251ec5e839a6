// Prefill attention over narrow pages on a GPU against double precision, with poison around all
// that it writes. Skipped where no GPU is; there narrow_prefill_device_test.cpp runs the same
// device code on emulated threads. Tests whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "attention/narrow_prefill_gpu.h"

#include <gtest/gtest.h>

#include "attention/narrow_attention_fixture.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::narrow_fixture {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;

class NarrowPrefillGpuTest : public gpu_fixture::GpuTest {
 protected:
  using Around = DeviceBytes::Around;

  void expect_right(const Scene& scene, Around around = Around::kPoison) {
    const auto& shape = scene.shape();
    const std::vector<PrefillUnit> plan =
        plan_prefill(scene.prefill_spans(),
                     take(prefill_shape(shape.heads(), shape.kv_heads(), shape.head_dim)));
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t floats) {
      return on_device(Bytes(floats * sizeof(float), DeviceBytes::kPoison));
    };
    const DeviceBytes units = on_device(view(plan)), heads = on_device(view(scene.heads()));
    const DeviceBytes tables = on_device(view(scene.tables()));
    const DeviceBytes pool = on_device(view(scene.pool())), q = on_device(view(scene.q()));
    const DeviceBytes max = poisoned(scene.rows()), sum = poisoned(scene.rows());
    const DeviceBytes out = poisoned(scene.rows() * shape.head_dim);
    NarrowPrefillBatch batch = scene.prefill_batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.pages = reinterpret_cast<const NarrowHead*>(heads.data());
    batch.q = q.data();
    batch.max = reinterpret_cast<float*>(max.data());
    batch.sum = reinterpret_cast<float*>(sum.data());
    batch.out = reinterpret_cast<float*>(out.data());
    check(attend_narrow_prefill_on_gpu(batch, scene.width_max(),
                                       reinterpret_cast<const PrefillUnit*>(units.data()),
                                       plan.size(), stream()));
    check(stream().synchronize());
    const auto maxima = values_of<float>(max.read()), sums = values_of<float>(sum.read());
    scene.expect_right(values_of<float>(out.read()), &maxima, &sums);
  }
};

TEST_F(NarrowPrefillGpuTest, SmallOneOfEachKernel) {
  for (const int width : {64, 112, 240}) {
    expect_right(
        Scene({3, {{width, 16}, {48, width}}, 256, {3, 0}, 4, {{2 * 64 + 50, 20}, {5, 1}}}),
        Around::kNothing);
    if (HasFatalFailure()) return;
  }
}

TEST_F(NarrowPrefillGpuTest, EveryPairOfWidths) {
  for (int k = 16; k <= 128; k += 16) {
    for (int v = 16; v <= 128; v += 16) {
      expect_right(Scene({3, {{k, v}}, 128, {7}, 4, {{6 * 64 + 30, 41}}}));
      if (HasFatalFailure()) return;
    }
  }
  for (int width = 16; width <= 256; width += 16) {
    expect_right(Scene({3, {{width, 272 - width}}, 256, {7}, 4, {{6 * 64 + 30, 41}}}));
    if (HasFatalFailure()) return;
  }
}

TEST_F(NarrowPrefillGpuTest, EveryGroup) {
  for (int group = 1; group <= 29; ++group) {
    expect_right(Scene({group, {{64, 48}, {16, 80}}, 128, {10}, 4, {{9 * 64, 100}}}, group));
    if (HasFatalFailure()) return;
  }
}

TEST_F(NarrowPrefillGpuTest, WindowsAndPlaces) {
  for (const KvWindow window : {KvWindow{0, 0}, KvWindow{1, 0}, KvWindow{0, 2}, KvWindow{2, 1}}) {
    expect_right(Scene({4,
                        {{48, 16}, {16, 64}},
                        64,
                        {0, 2, 1, 3, 40},
                        4,
                        {{0, 20}, {60, 70}, {64, 1}, {127, 66}, {40 * 64 - 9, 70}},
                        window}));
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvlane::narrow_fixture
