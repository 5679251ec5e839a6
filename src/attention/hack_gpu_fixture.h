// Queries of a scene on a GPU, as tests of attention on codes want them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

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
};

}  // namespace kvlane::hack_fixture
