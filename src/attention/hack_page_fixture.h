// What tests of attention on codes share: sealed pages and queries.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "attention/hack_arithmetic.h"
#include "cpu/tiers_fixture.h"
#include "quant/hack_format.h"

namespace kvlane::hack_page_fixture {

// Both axes, every number of bits of K and of V, every partition.
inline constexpr const char* kFormats[] = {"hack",
                                           "hack:mix=0",
                                           "hack:k=4,v=4",
                                           "hack:k=8,v=8",
                                           "hack:k=4,v=2,meta=bf16",
                                           "hack:paper",
                                           "hack:p=32",
                                           "hack:p=128",
                                           "hack:p=32,k=4,v=4",
                                           "hack:k=8,v=8,p=32",
                                           "hack:paper,k=2,v=8,meta=bf16",
                                           "hack:paper,mix=1,round=sr"};
// 80 and 96 leave short partitions.
inline constexpr int kHeadDims[] = {16, 64, 80, 96, 128, 256};

// Exact attention of one row over what the codes stand for, and how far 8 bits for queries and
// weights may lead away from it: their roundings are independent and spread evenly over a step.
struct Expected {
  std::vector<double> out;
  std::vector<double> deviation;  // standard, of each channel; of some channels only
};
// Channels that are looked at: all is too slow.
inline constexpr int kChannelStep = 7;

using tiers_fixture::tiers;

inline constexpr int kPages = 3;

// Sealed pages of one head: channels with means of their own, one token far from all others, one
// channel that is constant, and queries.
class Scene {
 public:
  Scene(const char* format, int head_dim, int rows, unsigned seed)
      : format_(make(format, head_dim)),
        shape_{format_->options().k,  format_->options().v, format_->layout(), head_dim, head_dim,
               format_->options().mix},
        rows_(rows),
        engine_(seed),
        slabs_(kPages * format_->slab_bytes() + 64),
        queries_(std::size_t(rows) * head_dim) {
    std::vector<float> mean(2 * head_dim);
    for (float& x : mean) x = 3 * gauss_(engine_);
    std::vector<std::uint16_t> page(2 * std::size_t{kBlockTokens} * head_dim);
    for (int i = 0; i < kPages; ++i) {
      for (std::size_t j = 0; j < page.size(); ++j) {
        const auto token = static_cast<int>(j / head_dim) % kBlockTokens;
        const auto channel = static_cast<int>(j % head_dim);
        const float far = i == 0 && token == 0 ? 4.0F : 1.0F;
        const float spread = channel == 5 ? 0.0F : far * gauss_(engine_);
        page[j] = to_bf16(mean[j / (page.size() / 2) * head_dim + channel] + spread).bits;
      }
      const Status sealed = format_->seal({0, i * kBlockTokens}, page.data(), slab(i));
      EXPECT_TRUE(sealed.ok()) << sealed.message();
    }
    for (auto& q : queries_) q = to_bf16(gauss_(engine_)).bits;
  }

  const HackShape& shape() const { return shape_; }
  const HackFormat& format() const { return *format_; }
  int rows() const { return rows_; }
  std::byte* slab(int i) {
    const auto address = reinterpret_cast<std::uintptr_t>(slabs_.data());
    return slabs_.data() + (64 - address % 64) % 64 + i * format_->slab_bytes();
  }

  PageQuery query(int first_row = 0) const {
    PageQuery query{};
    for (int row = first_row; row < rows_; ++row) {
      query.q[row - first_row] = queries_.data() + std::size_t(row) * shape_.key_dim;
    }
    query.parts = 1;
    query.part_stride = query.key_dim = shape_.key_dim;
    query.scale = static_cast<float>(1.4426950408889634 / std::sqrt(shape_.key_dim));
    return query;
  }

  StateTile run(const HackKernel& kernel, int first_row, int rows) {
    const auto prepared = std::make_unique<HackQuery>();
    kernel.prepare(shape_, query(first_row), rows, *prepared);
    StateTile tile;
    tile.reset(rows, shape_.key_dim);
    HackItem items[kPages];
    for (int i = 0; i < kPages; ++i) items[i] = {prepared.get(), slab(i), {}, &tile};
    kernel.attend(shape_, {items, kPages});
    return tile;
  }

  // K or V of a token in double precision, in the basis of the codes.
  std::vector<double> coded_row(int page, bool keys, int token) {
    const hack::Plane& plane = keys ? shape_.k : shape_.v;
    const int d = shape_.key_dim;
    const std::byte* const codes = slab(page) + (keys ? 0 : shape_.layout.v_codes);
    const std::byte* const metadata =
        slab(page) + (keys ? shape_.layout.k_metadata : shape_.layout.v_metadata);
    const double offset = plane.axis == hack::Axis::kBoth ? hack::middle_code(plane) : 0;
    std::vector<double> row(d);
    for (int i = 0; i < d; ++i) {
      const hack::CodePlace place =
          keys ? hack::key_place(plane.bits, token, i) : hack::value_place(plane.bits, d, token, i);
      const auto affine = hack_arithmetic::affine_of(plane, d, metadata, token, i);
      row[i] = affine.m +
               double{affine.s} * (hack_arithmetic::code_at(codes, place, plane.bits) - offset);
    }
    return row;
  }

  float gauss() { return gauss_(engine_); }

  // Codes of pages become the last ones, their numbers 2^-6, codes of queries 127, or -127 in odd
  // rows: no sum of products can be greater.
  void make_greatest() {
    const int d = shape_.key_dim;
    const hack::PageLayout& layout = shape_.layout;
    for (int i = 0; i < kPages; ++i) {
      std::fill_n(slab(i), layout.k_metadata, std::byte{0xff});
      for (std::size_t at = layout.k_metadata; at < layout.bytes; at += sizeof(std::uint16_t)) {
        const hack::Plane& plane = at < layout.v_metadata ? shape_.k : shape_.v;
        const std::uint16_t bits = plane.meta == hack::Meta::kFp16 ? 0x2400 : 0x3c80;
        std::memcpy(slab(i) + at, &bits, sizeof(bits));
      }
    }
    for (std::size_t i = 0; i < queries_.size(); ++i) {
      // Mixing makes a constant run of one that has a first channel only.
      const auto channel = static_cast<int>(i % d);
      const bool zero = shape_.mix && channel % (d & -d) != 0;
      queries_[i] = to_bf16(zero ? 0.0F : i / d % 2 == 0 ? 1.0F : -1.0F).bits;
    }
  }

 private:
  static std::shared_ptr<const HackFormat> make(const char* name, int head_dim) {
    KvFormatContext context;
    context.shape = {1, 1, head_dim, ElementType::kBf16};
    auto made = make_kv_format(name, context);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return std::dynamic_pointer_cast<const HackFormat>(*made);
  }

  const std::shared_ptr<const HackFormat> format_;
  const HackShape shape_;
  const int rows_;
  std::mt19937 engine_;
  std::normal_distribution<float> gauss_;
  std::vector<std::byte> slabs_;
  std::vector<std::uint16_t> queries_;
};

}  // namespace kvlane::hack_page_fixture
