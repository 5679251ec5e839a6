// Products against double precision, and the promise that a row's bits do not depend on company.
// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "base/test_sanitizers.h"
#include "cpu/parallel.h"
#include "cpu/tiers_fixture.h"

namespace kvlane {
namespace {

using tiers_fixture::tiers;

std::vector<float> random_floats(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const PhiloxCounter w = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    values[i] = static_cast<float>(2 * uniform_unit(w[0], w[1]) - 1);
  }
  return values;
}

// A matrix in the element type's bytes, and the exact values those bytes stand for.
struct Matrix {
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

Matrix make_matrix(ElementType type, std::size_t count, std::uint64_t seed) {
  Matrix matrix{std::vector<std::byte>(count * element_bytes(type)), random_floats(count, seed)};
  for (std::size_t i = 0; i < count; ++i) {
    float& value = matrix.values[i];
    if (type == ElementType::kF32) {
      std::memcpy(&matrix.bytes[i * 4], &value, 4);
    } else if (type == ElementType::kBf16) {
      const bf16 narrow = to_bf16(value);
      value = to_float(narrow);
      std::memcpy(&matrix.bytes[i * 2], &narrow, 2);
    } else {
      const fp16 narrow = to_fp16(value);
      value = to_float(narrow);
      std::memcpy(&matrix.bytes[i * 2], &narrow, 2);
    }
  }
  return matrix;
}

std::vector<float> apply(const Linear& linear, const Matrix& x, int first_row, int rows) {
  const int padded = Linear::rows_rounded(rows);
  const std::size_t row_bytes = std::size_t(linear.inputs()) * element_bytes(linear.input_type());
  std::vector<std::byte> input(padded * row_bytes);
  std::memcpy(input.data(), x.bytes.data() + first_row * row_bytes, rows * row_bytes);
  std::vector<float> y(std::size_t(padded) * linear.outputs());
  const Status status = linear.apply(input.data(), y.data(), rows);
  EXPECT_TRUE(status.ok()) << status.message();
  y.resize(std::size_t(rows) * linear.outputs());
  return y;
}

TEST(Linear, EqualsDoublePrecisionWithinRounding) {
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32, ElementType::kFp16}) {
      // Neither rows nor columns fill the panels of packed weights.
      constexpr int k = 203, kTop = 40, kOutputs = 53;
      const Matrix top = make_matrix(type, std::size_t{kTop} * k, 1);
      const Matrix bottom = make_matrix(type, std::size_t{kOutputs - kTop} * k, 2);
      const std::vector<ByteView> parts = {top.bytes, bottom.bytes};
      auto linear = Linear::pack(isa, {type, k, parts});
      ASSERT_TRUE(linear.ok()) << linear.status().message();
      ASSERT_EQ((*linear)->outputs(), kOutputs);
      const Matrix x = make_matrix((*linear)->input_type(), std::size_t(19) * k, 3);
      const std::vector<float> y = apply(**linear, x, 0, 19);
      for (int row = 0; row < 19; ++row) {
        for (int out = 0; out < kOutputs; ++out) {
          const float* w = out < kTop ? &top.values[std::size_t(out) * k]
                                      : &bottom.values[std::size_t(out - kTop) * k];
          double exact = 0;
          double magnitude = 0;
          for (int i = 0; i < k; ++i) {
            const double term = double{x.values[std::size_t(row) * k + i]} * w[i];
            exact += term;
            magnitude += std::abs(term);
          }
          // k roundings of at most half an ulp of the running sum, whatever the order.
          EXPECT_NEAR(y[std::size_t(row) * kOutputs + out], exact, k * 0x1p-24 * magnitude);
        }
      }
    }
  }
}

// Added to the rounded sum, so that it can be said what comes out.
TEST(Linear, ABiasIsAddedToEveryRowAndCutWithItsOutputs) {
  constexpr int kInputs = 128, kOutputs = 96, kRows = 19;
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
      const Matrix w = make_matrix(type, std::size_t{kOutputs} * kInputs, 6);
      const std::vector<ByteView> parts = {w.bytes};
      const std::vector<float> bias = random_floats(kOutputs, 7);
      const auto plain = Linear::pack(isa, {type, kInputs, parts});
      const auto biased = Linear::pack(isa, {type, kInputs, parts, bias});
      ASSERT_TRUE(biased.ok()) << biased.status().message();
      const Matrix x = make_matrix(type, std::size_t{kRows} * kInputs, 8);
      const auto without = apply(**plain, x, 0, kRows);
      const auto with = apply(**biased, x, 0, kRows);
      for (std::size_t i = 0; i < with.size(); ++i) {
        ASSERT_EQ(with[i], without[i] + bias[i % kOutputs]) << i;
      }
      for (int row = 0; row < kRows; ++row) {
        const auto alone = apply(**biased, x, row, 1);
        ASSERT_TRUE(std::equal(alone.begin(), alone.end(), with.begin() + row * kOutputs)) << row;
      }
      const auto part = (*biased)->part(64, 32);
      ASSERT_TRUE(part.ok()) << part.status().message();
      if (*part == nullptr) continue;
      const auto cut = apply(**part, x, 0, kRows);
      for (int row = 0; row < kRows; ++row) {
        ASSERT_TRUE(std::equal(&cut[row * 32], &cut[row * 32] + 32, &with[row * kOutputs + 64]));
      }
    }
    const Matrix w = make_matrix(ElementType::kF32, 8, 9);
    const std::vector<ByteView> parts = {w.bytes};
    EXPECT_EQ(Linear::pack(isa, {ElementType::kF32, 4, parts, {1, 2, 3}}).status().message(),
              "a bias of 3 values is not one of 2 outputs");
  }
}

TEST(Linear, RowsHaveTheSameBitsInAnyCompanyAndThreadCount) {
  constexpr int kRows = 600;
  const std::vector kSomeRows{1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 128, 200, 512};
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32}) {
      for (const auto& [n, k] : {std::pair{256, 256}, {702, 250}, {704, 256}, {1024, 2048}}) {
        if (isa == Isa::kScalar && k > 256) continue;  // nothing new to learn, slowly
        const Matrix w = make_matrix(type, std::size_t(n) * k, 4);
        const std::vector<ByteView> parts = {w.bytes};
        auto linear = Linear::pack(isa, {type, k, parts});
        ASSERT_TRUE(linear.ok()) << linear.status().message();
        const Matrix x = make_matrix(type, std::size_t(kRows) * k, 5);
        set_parallel_threads(2);
        const std::vector<float> all = apply(**linear, x, 0, kRows);
        for (const int threads : every_other_if(kSanitized, std::vector{1, 2, 3})) {
          set_parallel_threads(threads);
          for (const int rows : every_other_if(kSanitized, kSomeRows)) {
            for (const int first : {0, kRows - rows}) {
              const std::vector<float> some = apply(**linear, x, first, rows);
              ASSERT_EQ(0, std::memcmp(some.data(), all.data() + std::size_t(first) * n,
                                       some.size() * sizeof(float)))
                  << isa_name(isa) << " n=" << n << " k=" << k << " rows=" << rows
                  << " first=" << first << " threads=" << threads;
            }
          }
        }
        set_parallel_threads(2);
      }
    }
  }
}

// What a part puts out is what the whole puts out there, bit for bit. oneDNN's panels have 64
// outputs with AVX-512: parts that begin or end elsewhere are not to be had. With AVX2 they have 8.
TEST(Linear, PartsHaveTheBitsOfTheWhole) {
  struct Case {
    int n, k, first, count;
    bool in_panels;
  };
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32, ElementType::kFp16}) {
      for (const Case& cut : {Case{768, 256, 256, 512, true}, Case{512, 256, 256, 256, true},
                              Case{768, 128, 256, 256, true}, Case{1024, 384, 512, 512, true},
                              Case{80, 48, 48, 32, false}, Case{240, 128, 144, 96, false},
                              Case{192, 64, 64, 120, false}}) {
        if (isa == Isa::kScalar && cut.n > 512) continue;  // nothing new to learn, slowly
        const Matrix w = make_matrix(type, std::size_t(cut.n) * cut.k, 7);
        const std::vector<ByteView> parts = {w.bytes};
        auto whole = Linear::pack(isa, {type, cut.k, parts});
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        const auto part = (*whole)->part(cut.first, cut.count);
        ASSERT_TRUE(part.ok()) << part.status().message();
        if (isa < Isa::kAvx512 || cut.in_panels) {
          ASSERT_NE(*part, nullptr) << isa_name(isa) << " n=" << cut.n << " first=" << cut.first;
        }
        if (*part == nullptr) continue;
        EXPECT_EQ((*part)->outputs(), cut.count);
        for (const int rows : {1, 5, 70}) {
          const Matrix x = make_matrix((*whole)->input_type(), std::size_t(rows) * cut.k, 8);
          const std::vector<float> all = apply(**whole, x, 0, rows);
          const std::vector<float> some = apply(**part, x, 0, rows);
          for (int row = 0; row < rows; ++row) {
            ASSERT_EQ(0, std::memcmp(&some[std::size_t(row) * cut.count],
                                     &all[std::size_t(row) * cut.n + cut.first],
                                     cut.count * sizeof(float)))
                << isa_name(isa) << " n=" << cut.n << " count=" << cut.count << " row " << row
                << " of " << rows;
          }
        }
      }
    }
  }
}

// Outputs that are packed by themselves, wherever they were cut, have the bits that they have in
// the whole product: ranks of a model compute what one process does.
TEST(Linear, RowsPackedByThemselvesHaveTheBitsOfTheWhole) {
  struct Case {
    int n, k, ranks;
  };
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32, ElementType::kFp16}) {
      for (const Case& cut :
           {Case{768, 256, 2}, Case{960, 320, 4}, Case{144, 4864, 3}, Case{896, 896, 2},
            Case{40, 48, 8}, Case{1152, 72, 4}, Case{65, 512, 5}}) {
        if (isa == Isa::kScalar && cut.n * cut.k > 100000) continue;  // its loop knows of no others
        const Matrix w = make_matrix(type, std::size_t(cut.n) * cut.k, 7);
        const auto pack = [&](int first, int count) {
          const std::size_t row = cut.k * element_bytes(type);
          const ByteView bytes = ByteView(w.bytes).subspan(first * row, count * row);
          return Linear::pack(isa, {type, cut.k, std::vector<ByteView>{bytes}});
        };
        const auto whole = pack(0, cut.n);
        ASSERT_TRUE(whole.ok()) << whole.status().message();
        const int count = cut.n / cut.ranks;
        for (const int rows : {1, 3, 16, 70, 300}) {
          const Matrix x = make_matrix((*whole)->input_type(), std::size_t(rows) * cut.k, 8);
          const std::vector<float> all = apply(**whole, x, 0, rows);
          for (int rank = 0; rank < cut.ranks; ++rank) {
            const auto part = pack(rank * count, count);
            ASSERT_TRUE(part.ok()) << part.status().message();
            const std::vector<float> some = apply(**part, x, 0, rows);
            for (int row = 0; row < rows; ++row) {
              ASSERT_EQ(0, std::memcmp(&some[std::size_t(row) * count],
                                       &all[std::size_t(row) * cut.n + rank * count],
                                       count * sizeof(float)))
                  << isa_name(isa) << " n=" << cut.n << " k=" << cut.k << " rank " << rank
                  << " row " << row << " of " << rows;
            }
          }
        }
      }
    }
  }
}

// What a packed matrix gives back of an output is what went in.
TEST(Linear, GivesWeightsBackExactly) {
  for (const Isa isa : tiers()) {
    for (const ElementType type : {ElementType::kBf16, ElementType::kF32, ElementType::kFp16}) {
      for (const auto& [n, k] : {std::pair(768, 256), std::pair(77, 51), std::pair(130, 896)}) {
        const Matrix w = make_matrix(type, std::size_t(n) * k, 9);
        const auto linear = Linear::pack(isa, {type, k, std::vector<ByteView>{w.bytes}});
        ASSERT_TRUE(linear.ok()) << linear.status().message();
        std::vector<float> row(k);
        for (int output = 0; output < n; ++output) {
          (*linear)->weights_of(output, row.data());
          ASSERT_EQ(0,
                    std::memcmp(row.data(), &w.values[std::size_t(output) * k], k * sizeof(float)))
              << isa_name(isa) << " n=" << n << " k=" << k << " output " << output;
        }
      }
    }
  }
}

TEST(Linear, RefusesPartsThatAreNotWholeRows) {
  const Matrix w = make_matrix(ElementType::kBf16, 100, 6);
  const std::vector<ByteView> parts = {w.bytes};
  const auto linear = Linear::pack(Isa::kScalar, {ElementType::kBf16, 33, parts});
  ASSERT_FALSE(linear.ok());
  EXPECT_EQ(linear.status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvlane
