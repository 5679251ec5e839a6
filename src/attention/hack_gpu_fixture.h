// Queries of a scene on a GPU, and what decode attention makes of them, as tests of attention on
// codes want both.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "attention/decode_gpu.h"
#include "attention/hack_attention_fixture.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::hack_fixture {

class HackGpuTest : public gpu_fixture::GpuTest {
 protected:
  using DeviceBytes = gpu_fixture::DeviceBytes;
  using Around = DeviceBytes::Around;

  // Queries on the device, with codes and scales as the scalar code has them.
  struct Queries {
    DeviceBytes codes, rests, scales, terms;
    HackPrepared pointers() const {
      return {codes.data(), rests.data(), reinterpret_cast<float*>(scales.data()),
              reinterpret_cast<HackTerm*>(terms.data())};
    }
  };
  Queries prepare(const Scene& scene, Around around) {
    const std::size_t rows = scene.rows(), d = scene.shape().head_dim;
    const auto poisoned = [&](std::size_t bytes) {
      return DeviceBytes(stream(), Bytes(bytes, DeviceBytes::kPoison), 0, around);
    };
    const DeviceBytes q(stream(), gpu_fixture::view(scene.q()), 0, around);
    Queries queries{poisoned(rows * d), poisoned(2 * rows * d), poisoned(rows * sizeof(float)),
                    poisoned(rows * kHackTerms * sizeof(HackTerm))};
    HackPrepare prepare = scene.prepare();
    prepare.q = q.data();
    prepare.to = queries.pointers();
    gpu_fixture::check(prepare_hack_on_gpu(prepare, stream()));
    gpu_fixture::check(stream().synchronize());
    const auto scales = gpu_fixture::values_of<float>(queries.scales.read());
    const auto codes = gpu_fixture::values_of<std::int8_t>(queries.codes.read());
    for (const DeviceBytes* const other : {&queries.rests, &queries.terms}) other->read();
    for (std::size_t row = 0; row < rows; ++row) {
      const auto expected = scene.prepared(row);
      EXPECT_EQ(scales[row], expected->scale[0]) << "row " << row;
      EXPECT_EQ(0, std::memcmp(codes.data() + row * d, expected->codes[0], d)) << "row " << row;
    }
    return queries;
  }

  // What becomes of the scene's queries: attend(batch, units, count) leaves states of the plan's
  // units, which are merged. Everything that is written is poison before, and poison is around it.
  struct Decoded {
    std::vector<float> result, max, sum;
  };
  template <class Attend>
  Decoded decode(const Scene& scene, const DecodePlan& plan, const Queries& queries, Around around,
                 const Attend& attend) {
    const int head_dim = scene.shape().head_dim;
    const std::size_t states = plan.first_state.back(), rows = scene.rows();
    const auto on_device = [&](ByteView content) {
      return DeviceBytes(stream(), content, 0, around);
    };
    const auto poisoned = [&](std::size_t floats) {
      return on_device(Bytes(floats * sizeof(float), DeviceBytes::kPoison));
    };
    const auto floats = [](const DeviceBytes& bytes) {
      return reinterpret_cast<float*>(bytes.data());
    };
    const DeviceBytes units = on_device(gpu_fixture::view(plan.units));
    const DeviceBytes pool = on_device(gpu_fixture::view(scene.pool()));
    const DeviceBytes first_state = on_device(gpu_fixture::view(plan.first_state));
    const DeviceBytes tables = on_device(gpu_fixture::view(scene.tables()));
    const DeviceBytes max = poisoned(states), sum = poisoned(states);
    const DeviceBytes out = poisoned(states * head_dim), result = poisoned(rows * head_dim);
    const DeviceBytes total_max = poisoned(rows), total_sum = poisoned(rows);
    HackDecodeBatch batch = scene.batch();
    batch.tables = reinterpret_cast<const std::int32_t*>(tables.data());
    batch.slabs = pool.data() + scene.layer_offset();
    batch.queries = queries.pointers();
    batch.max = floats(max);
    batch.sum = floats(sum);
    batch.out = floats(out);
    gpu_fixture::check(
        attend(batch, reinterpret_cast<const DecodeUnit*>(units.data()), plan.units.size()));
    gpu_fixture::check(
        merge_on_gpu({.first_state = reinterpret_cast<const std::int32_t*>(first_state.data()),
                      .sequences = static_cast<std::int32_t>(scene.shape().blocks.size()),
                      .heads = batch.heads,
                      .head_dim = head_dim,
                      .max = batch.max,
                      .sum = batch.sum,
                      .out = batch.out,
                      .result_f32 = floats(result),
                      .result_bf16 = nullptr,
                      .total_max = floats(total_max),
                      .total_sum = floats(total_sum),
                      .total_out = nullptr},
                     stream()));
    gpu_fixture::check(stream().synchronize());
    for (const DeviceBytes* const states_of : {&max, &sum, &out}) states_of->read();
    return {gpu_fixture::values_of<float>(result.read()),
            gpu_fixture::values_of<float>(total_max.read()),
            gpu_fixture::values_of<float>(total_sum.read())};
  }
};

}  // namespace kvlane::hack_fixture
