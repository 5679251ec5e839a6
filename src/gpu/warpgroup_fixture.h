// What warpgroups multiply in tests, and what comes of it: all bytes, and small whole numbers in
// binary16, so that every sum is exact.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "gpu/warpgroup_device.h"

namespace kvlane::warpgroup_fixture {

inline constexpr int kRows = gpu::WarpgroupTask::kRows;
inline constexpr int kByteColumns = gpu::WarpgroupTask::kByteColumns;

struct alignas(16) Piece {
  std::byte bytes[16];
};

class Rows {
 public:
  explicit Rows(int count)
      : columns(count),
        bytes_a(kRows * 8),
        bytes_b(kByteColumns * 8),
        halves_a(kRows * 8),
        halves_b(std::size_t(count) * 8),
        halves_d(std::size_t(kRows) * count, 3.0F) {
    fill_bytes(bytes_a, 73);
    fill_bytes(bytes_b, 151);
    fill_halves(halves_a, 37);
    fill_halves(halves_b, 53);
  }

  // Whether these are the products, and where they are not.
  testing::AssertionResult are_right(const std::vector<std::int32_t>& of_bytes,
                                     const std::vector<float>& of_halves) const {
    const auto wrong = [](const char* what, int row, int column, auto got, auto expected) {
      return testing::AssertionFailure()
             << what << " " << row << ", " << column << ": " << got << " instead of " << expected;
    };
    if (of_bytes.size() != std::size_t(kRows) * kByteColumns ||
        of_halves.size() != std::size_t(kRows) * columns) {
      return testing::AssertionFailure() << "not as many products as there are";
    }
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kByteColumns; ++column) {
        int sum = 0;
        for (int k = 0; k < 128; ++k) {
          sum += byte_at(bytes_a, 128 * row + k) * byte_at(bytes_b, 128 * column + k);
        }
        const std::int32_t got = of_bytes[row * kByteColumns + column];
        if (got != sum) return wrong("bytes", row, column, got, sum);
      }
      for (int column = 0; column < columns; ++column) {
        float sum = 3;
        for (int k = 0; k < 64; ++k) {
          sum += half_at(halves_a, 64 * row + k) * half_at(halves_b, 64 * column + k);
        }
        const float got = of_halves[row * columns + column];
        if (got != sum) return wrong("halves", row, column, got, sum);
      }
    }
    return testing::AssertionSuccess();
  }

  const int columns;
  std::vector<Piece> bytes_a, bytes_b, halves_a, halves_b;
  const std::vector<float> halves_d;  // before

 private:
  static void fill_bytes(std::vector<Piece>& to, int seed) {
    for (std::size_t i = 0; i < 16 * to.size(); ++i) {
      to[i / 16].bytes[i % 16] = std::byte((i * seed + (i / 128) * 7 + 5) & 0xFF);
    }
  }
  static void fill_halves(std::vector<Piece>& to, int seed) {
    for (std::size_t i = 0; i < 8 * to.size(); ++i) {
      const int value = static_cast<int>((i * seed + (i / 64) * 11) % 17) - 8;
      const std::uint32_t half = gpu::pack_fp16(static_cast<float>(value), 0);
      std::memcpy(to[i / 8].bytes + 2 * (i % 8), &half, 2);
    }
  }
  static int byte_at(const std::vector<Piece>& of, int i) {
    return static_cast<std::int8_t>(of[i / 16].bytes[i % 16]);
  }
  static float half_at(const std::vector<Piece>& of, int i) {
    std::uint32_t half = 0;
    std::memcpy(&half, of[i / 8].bytes + 2 * (i % 8), 2);
    return gpu::low_fp16(half);
  }
};

}  // namespace kvlane::warpgroup_fixture
