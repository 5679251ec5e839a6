// Products of emulated warpgroups: operands in shared memory, results that come at the wait.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "gpu/device_float.h"
#include "gpu/emulated_block.h"

namespace kvlane::gpu {
namespace {

// Byte `at` of 32 bytes of a row in shared memory, as products of warpgroups find it: bits of the
// address choose the place.
std::uint8_t byte_of(const Words4& rows, int row, int step, int at) {
  const auto linear = reinterpret_cast<std::uintptr_t>(&rows) + 128 * row + 32 * step + at;
  std::uint8_t byte;
  std::memcpy(&byte, reinterpret_cast<const void*>(linear ^ (linear >> 7 & 7) << 4), 1);
  return byte;
}
float half_of(const Words4& rows, int row, int step, int at) {
  return low_fp16(byte_of(rows, row, step, 2 * at) |
                  std::uint32_t{byte_of(rows, row, step, 2 * at + 1)} << 8);
}

}  // namespace

void EmulatedThread::begin_product(Product product, int step, const std::uint32_t* a) {
  meet_warpgroup();
  product.step = step;
  product.group = product_groups_;
  if (a != nullptr) {
    const WarpWords& all = exchange({a[0], a[1], a[2], a[3]});
    for (int i = 0; i < 4; ++i) product.of_row[i] = all[lane() / 4 * 4 + i];
  }
  const bool first = std::none_of(products_.begin(), products_.end(),
                                  [&](const Product& other) { return other.d == product.d; });
  if (first) {
    product.to.resize(product.size);
    std::memcpy(product.to.data(), product.d, product.size * sizeof(std::uint32_t));
  }
  std::memset(product.d, 0xFF, product.size * sizeof(std::uint32_t));
  if (toss()) sum(product);
  products_.push_back(std::move(product));
}

void EmulatedThread::sum(Product& product) const {
  product.sums.assign(product.size, 0);
  const int first_row = warp() % 4 * 16 + lane() / 4;
  const int values = product.kind == kHalves ? 16 : 32;
  std::array<std::array<float, 32>, 2> of_a{};
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < values; ++k) {
      of_a[half][k] = product.kind == kHalves
                          ? low_fp16(product.of_row[k % 8 / 2][k / 8 * 2 + half] >> 16 * (k % 2))
                          : static_cast<std::int8_t>(
                                byte_of(*product.a, first_row + 8 * half, product.step, k));
    }
  }
  for (std::size_t i = 0; i < product.size; ++i) {
    const int column = static_cast<int>(i) / 4 * 8 + lane() % 4 * 2 + static_cast<int>(i % 2);
    for (int k = 0; k < values; ++k) {
      const float of_b =
          product.kind == kHalves
              ? half_of(*product.b, column, product.step, k)
              : static_cast<std::int8_t>(byte_of(*product.b, column, product.step, k));
      product.sums[i] += double{of_a[i / 2 % 2][k]} * of_b;
    }
  }
}

void EmulatedThread::complete_products(int group) {
  while (!products_.empty() && products_.front().group <= group) {
    Product product = std::move(products_.front());
    products_.erase(products_.begin());
    if (product.sums.empty()) sum(product);
    for (std::size_t i = 0; i < product.size; ++i) {
      std::uint32_t& to = product.to[i];
      if (product.kind == kHalves) {
        to = bits_of(static_cast<float>(float_of(to) + product.sums[i]));
      } else {
        to = (product.kind == kAddBytes ? to : 0) +
             static_cast<std::uint32_t>(static_cast<std::int32_t>(product.sums[i]));
      }
    }
    // What more is added to comes with the last one.
    const auto next = std::find_if(products_.begin(), products_.end(),
                                   [&](const Product& other) { return other.d == product.d; });
    if (next != products_.end()) {
      next->to = std::move(product.to);
    } else {
      std::memcpy(product.d, product.to.data(), product.size * sizeof(std::uint32_t));
    }
  }
}

}  // namespace kvlane::gpu
