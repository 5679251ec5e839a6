// Row operations on a GPU, with poison around all that they write: bit for bit what the CPU
// computes, but for norms and exponentials, within their bounds. Skipped where no GPU is; there
// rows_device_test.cpp and qkv_device_test.cpp run the same device code on emulated threads. Tests
// whose names begin with Small are for compute-sanitizer.
// SPDX-License-Identifier: Apache-2.0
#include "ops/rows_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "gpu/gpu_fixture.h"
#include "ops/qkv_fixture.h"
#include "ops/rows_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;
using gpu_fixture::values_of;
using gpu_fixture::view;
using qkv_fixture::mixed_rows;
using rows_fixture::EmbedScene;
using rows_fixture::kPoison16;
using rows_fixture::NormScene;
using rows_fixture::SiluScene;
using QkvScene = qkv_fixture::Scene;
using qkv_fixture::Written;
using rows_fixture::Normed;

class RowsGpuTest : public gpu_fixture::GpuTest {
 protected:
  template <class T>
  DeviceBytes on_device(const std::vector<T>& values) {
    return {stream(), view(values), 0, around_};
  }
  DeviceBytes poisoned(std::size_t bytes) { return on_device(Bytes(bytes, DeviceBytes::kPoison)); }
  // Null for nothing.
  static float* floats(const DeviceBytes& bytes, bool wanted = true) {
    return wanted ? reinterpret_cast<float*>(bytes.data()) : nullptr;
  }
  static const std::int32_t* numbers(const DeviceBytes& bytes, bool wanted = true) {
    return wanted ? reinterpret_cast<const std::int32_t*>(bytes.data()) : nullptr;
  }

  std::vector<float> run(const EmbedScene& scene) {
    const DeviceBytes table = on_device(scene.table()), tokens = on_device(scene.tokens());
    const DeviceBytes residual = poisoned(scene.values() * sizeof(float));
    EmbedRows rows = scene.rows();
    rows.table = table.data();
    rows.tokens = numbers(tokens);
    rows.residual = floats(residual);
    check(embed_on_gpu(rows, stream()));
    check(stream().synchronize());
    return values_of<float>(residual.read());
  }

  Normed run(const NormScene& scene) {
    const DeviceBytes residual = on_device(scene.residual()), add = on_device(scene.add());
    const DeviceBytes weight = on_device(scene.weight()), take = on_device(scene.take());
    const DeviceBytes out = poisoned(scene.out_values() * 2);
    NormRows rows = scene.rows();
    rows.residual = floats(residual);
    rows.add = floats(add, rows.add != nullptr);
    rows.take = numbers(take, rows.take != nullptr);
    rows.weight = floats(weight, rows.weight != nullptr);
    rows.out = scene.out_values() == 0 ? nullptr : out.data();
    check(norm_on_gpu(rows, stream()));
    check(stream().synchronize());
    return {values_of<float>(residual.read()), values_of<std::uint16_t>(out.read())};
  }

  // Of `count` rows, or of all.
  std::vector<std::uint16_t> run(const SiluScene& scene, std::optional<int> count = {}) {
    const DeviceBytes gate_up = on_device(scene.gate_up());
    const DeviceBytes out = poisoned(scene.values() * 2);
    SiluRows rows = scene.rows();
    rows.gate_up = floats(gate_up);
    rows.out = out.data();
    rows.rows = count.value_or(rows.rows);
    check(silu_on_gpu(rows, stream()));
    check(stream().synchronize());
    return values_of<std::uint16_t>(out.read());
  }

  Written run(const QkvScene& scene, std::optional<int> count = {}) {
    const DeviceBytes product = on_device(scene.product());
    const DeviceBytes q_norm = on_device(scene.q_norm()), k_norm = on_device(scene.k_norm());
    const DeviceBytes angles = on_device(scene.angles()), tables = on_device(scene.tables());
    const DeviceBytes positions = on_device(scene.positions());
    const DeviceBytes rotations = on_device(scene.rotations());
    const DeviceBytes sequences = on_device(scene.sequences());
    const DeviceBytes q = poisoned(scene.q_values() * 2), pool = poisoned(scene.pool_values() * 2);
    QkvRows rows = scene.rows();
    rows.product = floats(product);
    rows.q_norm = floats(q_norm, rows.q_norm != nullptr);
    rows.k_norm = floats(k_norm, rows.k_norm != nullptr);
    rows.angles = floats(angles);
    rows.rotations = floats(rotations, rows.rotations != nullptr);
    rows.positions = numbers(positions);
    rows.sequences = numbers(sequences);
    rows.tables = numbers(tables);
    rows.q = q.data();
    rows.rows = count.value_or(rows.rows);
    rows.slabs = pool.data() + scene.layer_offset();
    check(write_qkv_on_gpu(rows, stream()));
    check(stream().synchronize());
    return {values_of<std::uint16_t>(q.read()), values_of<std::uint16_t>(pool.read())};
  }

  void expect_right(const EmbedScene& scene) { scene.expect_right(run(scene)); }
  void expect_right(const SiluScene& scene) { scene.expect_right(run(scene)); }
  void expect_right(const NormScene& scene) {
    const Normed normed = run(scene);
    scene.expect_right(normed.residual, normed.out);
  }
  void expect_right(const QkvScene& scene) {
    const Written written = run(scene);
    scene.expect_right(written.q, written.pool);
  }

  DeviceBytes::Around around_ = DeviceBytes::Around::kPoison;
};
static_assert(kPoison16 == 0xA5A5 && DeviceBytes::kPoison == std::byte{0xA5});

TEST_F(RowsGpuTest, SmallOneOfEachKernel) {
  around_ = DeviceBytes::Around::kNothing;
  expect_right(EmbedScene(4, 1032));
  expect_right(SiluScene(2, 1032));
  for (const int n : {264, 1032, 4104}) expect_right(NormScene({3, n, true, true, {2, -1, 0}}));
  for (const int head_dim : {8, 80, 128, 256}) {
    expect_right(QkvScene({6, 2, head_dim, head_dim != 128, mixed_rows()}));
    expect_right(QkvScene({6, 2, head_dim, head_dim != 128, mixed_rows(), true}));
  }
}

TEST_F(RowsGpuTest, Embeddings) {
  for (const int hidden : {8, 64, 576, 1016, 1024, 1032, 4096, 16384}) {
    for (const int rows : {1, 5, 300}) {
      expect_right(EmbedScene(rows, hidden));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RowsGpuTest, Activations) {
  for (const int ffn : {8, 64, 1016, 1024, 1032, 14336, 53248}) {
    for (const int rows : {1, 5, 70}) {
      expect_right(SiluScene(rows, ffn));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RowsGpuTest, NormsOfEveryLength) {
  for (int n = 8; n <= 1280; n += 8) {
    expect_right(NormScene({5, n}, n));
    if (HasFatalFailure()) return;
  }
  for (int n = 1536; n <= kNormValuesMax; n += 264) {
    expect_right(NormScene({3, n}, n));
    if (HasFatalFailure()) return;
  }
  for (const int n : {2048, 4088, 4096, 4104, 8192, 16376, 16384}) {
    for (const int rows : {1, 70}) {
      expect_right(NormScene({rows, n}, n));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RowsGpuTest, NormsWithAndWithoutSums) {
  for (const int n : {40, 576, 2056, 4104, 16384}) {
    for (const bool add : {false, true}) {
      for (const bool norm : {false, true}) {
        expect_right(NormScene({5, n, add, norm}));
        expect_right(NormScene({5, n, add, norm, {4, 0, -1, 3}}));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(RowsGpuTest, HeadsOfEveryDim) {
  for (int head_dim = 8; head_dim <= kQkvHeadDimMax; head_dim += 8) {
    for (const bool norm : {false, true}) {
      expect_right(QkvScene({9, 3, head_dim, norm, mixed_rows()}, head_dim));
      expect_right(QkvScene({2, 1, head_dim, norm, {{0, 66}}}, head_dim));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RowsGpuTest, HeadsIntoAnotherBasis) {
  for (int head_dim = 16; head_dim <= kQkvHeadDimMax; head_dim += 16) {
    for (const bool norm : {false, true}) {
      expect_right(QkvScene({9, 3, head_dim, norm, mixed_rows(), true}, head_dim));
      if (HasFatalFailure()) return;
    }
  }
  for (const int group : {1, 2, 4, 8, 15, 29, 40}) {
    expect_right(QkvScene({2 * group, 2, 128, true, mixed_rows(), true}, group));
    if (HasFatalFailure()) return;
  }
}

TEST_F(RowsGpuTest, KeysAndValuesAlone) {
  for (const bool norm : {false, true}) {
    for (const bool turned : {false, true}) {
      expect_right(QkvScene({0, 8, 128, norm, mixed_rows(), turned}));
      expect_right(QkvScene({0, 3, 80, norm, mixed_rows(), turned}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(RowsGpuTest, HeadsOfManyRows) {
  // Two sequences' tokens, all that the table of angles has.
  std::vector<qkv_fixture::Place> rows;
  for (int i = 0; i < QkvScene::kPositions; ++i) {
    rows.push_back({0, i});
    rows.push_back({1, QkvScene::kPositions - 1 - i});
  }
  for (const bool norm : {false, true}) expect_right(QkvScene({32, 8, 128, norm, rows}));
  expect_right(QkvScene({32, 8, 128, false, rows, true}));
  expect_right(QkvScene({64, 64, 64, false, mixed_rows()}));
}

TEST_F(RowsGpuTest, NothingToDo) {
  expect_right(EmbedScene(0, 64));
  expect_right(NormScene({0, 64}));
  const auto is_poison = [](std::uint16_t bits) { return bits == kPoison16; };
  const auto activated = run(SiluScene(2, 64), 0);
  EXPECT_TRUE(std::all_of(activated.begin(), activated.end(), is_poison));
  const Written written = run(QkvScene({32, 8, 128, true, mixed_rows()}), 0);
  EXPECT_TRUE(std::all_of(written.q.begin(), written.q.end(), is_poison));
  EXPECT_TRUE(std::all_of(written.pool.begin(), written.pool.end(), is_poison));
}

TEST_F(RowsGpuTest, EveryRunHasTheSameBits) {
  const NormScene norm({300, 4096});
  const SiluScene silu(300, 4096);
  const QkvScene qkv({32, 8, 128, true, mixed_rows()});
  const Normed normed = run(norm);
  const std::vector<std::uint16_t> activated = run(silu);
  const Written written = run(qkv);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(run(norm) == normed);
    ASSERT_EQ(run(silu), activated);
    ASSERT_TRUE(run(qkv) == written);
  }
}

TEST_F(RowsGpuTest, SaysWhatItCannotDo) {
  EXPECT_EQ(embed_on_gpu({}, stream()).code(), Code::kInvalidArgument);
  EXPECT_EQ(norm_on_gpu({}, stream()).code(), Code::kInvalidArgument);
  EXPECT_EQ(write_qkv_on_gpu({}, stream()).code(), Code::kInvalidArgument);
  EXPECT_EQ(silu_on_gpu({}, stream()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
