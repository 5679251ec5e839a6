// What tests of formats with linear codes share: the formats, rows of all kinds, sealing and
// opening into poisoned memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "quant/linear_format.h"

namespace kvlane::linear_fixture {

using Rows = std::vector<std::uint16_t>;
using Slab = std::vector<std::byte>;

inline constexpr const char* kFormats[] = {"fp8_e4m3",
                                           "fp8_e5m2",
                                           "mxfp8_e4m3",
                                           "mxfp8_e5m2",
                                           "mxfp6_e2m3",
                                           "mxfp6_e3m2",
                                           "mxfp4",
                                           "int8:sym=1",
                                           "int8:sym=0",
                                           "int4:sym=0",
                                           "int4:sym=1",
                                           "kivi:group=32,bits=2",
                                           "kivi:group=64,bits=2",
                                           "kivi:group=32,bits=4",
                                           "kivi:group=64,bits=4"};

// Those of models, and sizes at every edge of strips, blocks and sections.
inline constexpr int kHeadDims[] = {64, 80, 96, 112, 128, 192, 256, 1, 2, 31, 33, 63, 100, 250};

inline KvShape shape_of(int kv_heads, int head_dim) {
  return {4, kv_heads, head_dim, ElementType::kBf16};
}

inline std::shared_ptr<const LinearFormat> format_of(const std::string& name, const KvShape& shape,
                                                     Isa isa) {
  KvFormatContext context;
  context.shape = shape;
  context.isa = isa;
  auto result = make_kv_format(name, context);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::dynamic_pointer_cast<const LinearFormat>(*result);
}

// What a page's values are like. All are in every format's range.
enum class Kind {
  kModel,       // Gaussian, each channel with a mean and a scale of its own
  kConstant,    // one value in each row, another in the next; some rows zeros of either sign
  kColumns,     // the same for channels
  kSmall,       // around the least normal number, subnormals and zeros among them
  kLarge,       // up to 65280
  kEveryBit,    // any pattern up to 65280
  kOneOutlier,  // zeros, and one value in each plane
};
inline constexpr Kind kKinds[] = {Kind::kModel, Kind::kConstant, Kind::kColumns,   Kind::kSmall,
                                  Kind::kLarge, Kind::kEveryBit, Kind::kOneOutlier};

class RowMaker {
 public:
  explicit RowMaker(unsigned seed) : engine_(seed) {}

  // K and V of one head.
  Rows page(Kind kind, int head_dim) {
    Rows rows(2 * std::size_t{kBlockTokens} * head_dim);
    std::vector<float> mean(2 * head_dim);
    std::vector<float> scale(2 * head_dim);
    for (float& x : mean) x = gauss_(engine_);
    for (float& x : scale) x = std::exp2(gauss_(engine_));
    const std::size_t outlier = engine_() % rows.size();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const int plane = i < rows.size() / 2 ? 0 : 1;
      const auto token = static_cast<int>(i / head_dim) % kBlockTokens;
      const auto column = static_cast<int>(i % head_dim);
      const std::size_t channel = plane * head_dim + column;
      switch (kind) {
        case Kind::kModel:
          rows[i] = to_bf16(mean[channel] + scale[channel] * gauss_(engine_)).bits;
          break;
        case Kind::kConstant: rows[i] = constant(token); break;
        case Kind::kColumns: rows[i] = constant(column); break;
        case Kind::kSmall: rows[i] = static_cast<std::uint16_t>(engine_() & 0x81ffU); break;
        case Kind::kLarge: rows[i] = to_bf16(gauss_(engine_) * 9000.0F).bits; break;
        case Kind::kEveryBit: rows[i] = in_range(static_cast<std::uint16_t>(engine_())); break;
        case Kind::kOneOutlier: rows[i] = i == outlier ? 0xc2f7 : 0; break;
      }
    }
    return rows;
  }

  Rows slab(Kind kind, const KvShape& shape) {
    Rows rows;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const Rows one = page(kind, shape.head_dim);
      rows.insert(rows.end(), one.begin(), one.end());
    }
    return rows;
  }

  std::mt19937& engine() { return engine_; }

 private:
  static std::uint16_t in_range(std::uint16_t bits) {
    return (bits & 0x7fffU) < 0x4780U ? bits : static_cast<std::uint16_t>(bits & 0xbfffU);
  }
  static std::uint16_t constant(int i) {
    if (i % 5 == 0) return i % 2 == 0 ? 0x0000 : 0x8000;
    return to_bf16((i % 2 == 0 ? 0.37F : -1.9F) * static_cast<float>(i)).bits;
  }

  std::mt19937 engine_;
  std::normal_distribution<float> gauss_;
};

// 64-byte aligned memory with a pattern in it: as much as is asked for and some beyond.
template <class T>
class Poisoned {
 public:
  explicit Poisoned(std::size_t count, unsigned char poison = 0xa5)
      : count_(count), poison_(poison), memory_(count * sizeof(T) + 128, poison) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = reinterpret_cast<T*>(memory_.data() + (64 - address % 64) % 64);
  }
  Poisoned(const Poisoned&) = delete;
  Poisoned& operator=(const Poisoned&) = delete;

  T* data() { return first_; }
  std::vector<T> values() const { return {first_, first_ + count_}; }
  bool intact_beyond() const {
    const auto* end = reinterpret_cast<const unsigned char*>(first_ + count_);
    for (const unsigned char* at = end; at < memory_.data() + memory_.size(); ++at) {
      if (*at != poison_) return false;
    }
    return true;
  }

 private:
  std::size_t count_;
  unsigned char poison_;
  std::vector<unsigned char> memory_;
  T* first_;
};

inline Slab seal(const KvFormat& format, const Rows& rows, unsigned char poison = 0xa5) {
  Poisoned<std::byte> slab(format.slab_bytes(), poison);
  const Status status = format.seal({0, 0}, rows.data(), slab.data());
  EXPECT_TRUE(status.ok()) << format.name() << ": " << status.message();
  EXPECT_TRUE(slab.intact_beyond()) << format.name();
  return slab.values();
}

// All pages, K and V.
inline Rows open(const KvFormat& format, const Slab& slab) {
  Poisoned<std::byte> from(slab.size());
  std::memcpy(from.data(), slab.data(), slab.size());
  const std::size_t page = 2 * format.shape().page_plane_elements();
  Rows rows;
  for (int head = 0; head < format.shape().kv_heads; ++head) {
    Poisoned<std::uint16_t> to(page);
    format.open_page({0, 0}, from.data(), head, to.data());
    EXPECT_TRUE(to.intact_beyond()) << format.name();
    const Rows values = to.values();
    rows.insert(rows.end(), values.begin(), values.end());
  }
  return rows;
}

}  // namespace kvlane::linear_fixture
