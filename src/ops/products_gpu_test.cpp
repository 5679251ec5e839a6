// Products by cuBLASLt against sums in double precision.
// SPDX-License-Identifier: Apache-2.0
#include "ops/products_gpu.h"

#include <cmath>
#include <limits>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "gpu/gpu_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;

std::vector<bf16> random_bf16s(std::size_t count, std::uint32_t seed) {
  std::vector<bf16> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0})[0];
    values[i] = to_bf16(static_cast<float>(bits * 0x1p-31 - 1));
  }
  return values;
}

template <class T>
gpu::DeviceBuffer on_device(const gpu::Stream& stream, const std::vector<T>& values) {
  gpu::DeviceBuffer buffer =
      take(gpu::DeviceBuffer::allocate(stream.device(), values.size() * sizeof(T)));
  check(gpu::copy(stream, buffer.data(), reinterpret_cast<const std::byte*>(values.data()),
                  buffer.bytes()));
  check(stream.synchronize());
  return buffer;
}

class ProductsGpuTest : public gpu_fixture::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) products_ = take(GpuProducts::create(kDevice));
  }

  // y after y = x W^T, or y += x W^T where y was 1, 2, 3 ... before.
  std::vector<float> multiply(int rows, int n, int k, bool add) {
    const gpu::DeviceBuffer w = on_device(stream(), random_bf16s(std::size_t(n) * k, 1));
    const gpu::DeviceBuffer x = on_device(stream(), random_bf16s(std::size_t(rows) * k, 2));
    std::vector<float> y(std::size_t(rows) * n, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = 0; add && i < y.size(); ++i) y[i] = static_cast<float>(i % 1000);
    const gpu::DeviceBuffer out = on_device(stream(), y);
    check(products_->multiply({.weights = w.data(),
                               .x = x.data(),
                               .y = out.as<float>(),
                               .rows = rows,
                               .n = n,
                               .k = k,
                               .add = add},
                              stream()));
    check(gpu::copy(stream(), reinterpret_cast<std::byte*>(y.data()), out.data(), out.bytes()));
    check(stream().synchronize());
    return y;
  }

  std::unique_ptr<GpuProducts> products_;
};

// In whatever order k products are added in F32: k + 1 errors of what the sum of their sizes has as
// its last bits. Twice that of a rounding, as matrix units cut off, and twice that for groups of
// products that they align to the largest one.
TEST_F(ProductsGpuTest, SumsAreRight) {
  struct Shape {
    int rows, n, k;
  };
  for (const Shape& shape :
       {Shape{1, 8, 8}, Shape{1, 4096, 4096}, Shape{3, 520, 192}, Shape{32, 6144, 4096},
        Shape{257, 1000, 264}, Shape{512, 128, 14336}}) {
    const auto [rows, n, k] = shape;
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(n) + " x " + std::to_string(k));
    const std::vector<bf16> w = random_bf16s(std::size_t(n) * k, 1);
    const std::vector<bf16> x = random_bf16s(std::size_t(rows) * k, 2);
    for (const bool add : {false, true}) {
      const std::vector<float> y = multiply(rows, n, k, add);
      EXPECT_EQ(multiply(rows, n, k, add), y) << "the same product, other bits";
      // All of small ones, some of large ones.
      for (std::size_t i = 0; i < y.size(); i += 1 + y.size() / 4096) {
        const std::size_t row = i / n, out = i % n;
        double sum = add ? static_cast<double>(i % 1000) : 0;
        double size = std::abs(sum);
        for (int j = 0; j < k; ++j) {
          const double term = double{to_float(x[row * k + j])} * to_float(w[out * k + j]);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_NEAR(y[i], sum, (k + 1) * 0x1p-22 * size) << i;
      }
    }
  }
}

TEST_F(ProductsGpuTest, ShapesAndAddressesThatKernelsDoNotHaveAreRefused) {
  const gpu::DeviceBuffer memory = take(gpu::DeviceBuffer::allocate(kDevice, 4096));
  GpuProduct product{.weights = memory.data(),
                     .x = memory.data(),
                     .y = memory.as<float>(),
                     .rows = 1,
                     .n = 8,
                     .k = 8,
                     .add = false};
  const auto refused = [&](const GpuProduct& bad) {
    return products_->multiply(bad, stream()).code() == Code::kInvalidArgument;
  };
  GpuProduct bad = product;
  bad.rows = 0;
  EXPECT_TRUE(refused(bad));
  bad = product;
  bad.n = 12;
  EXPECT_TRUE(refused(bad));
  bad = product;
  bad.k = 4;
  EXPECT_TRUE(refused(bad));
  bad = product;
  bad.x += 8;
  EXPECT_TRUE(refused(bad));
}

}  // namespace
}  // namespace kvlane
