// What tests of `hack` share: formats, and rows in their range.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "quant/hack_format.h"
#include "quant/linear_fixture.h"

namespace kvlane::hack_fixture {

using linear_fixture::Kind;
using linear_fixture::kKinds;
using linear_fixture::open;
using linear_fixture::Poisoned;
using linear_fixture::RowMaker;
using linear_fixture::Rows;
using linear_fixture::seal;
using linear_fixture::shape_of;
using linear_fixture::Slab;

// Every number of bits of K and of V with either axes, every partition, all else once or twice.
inline constexpr const char* kFormats[] = {"hack:k=2,v=2",
                                           "hack:k=4,v=2",
                                           "hack:k=8,v=4",
                                           "hack:k=2,v=8",
                                           "hack:k=4,v=4,mix=0",
                                           "hack:k=8,v=8,meta=bf16",
                                           "hack:k=2,v=2,mix=0,meta=bf16",
                                           "hack:k=2,v=2,p=64",
                                           "hack:k=4,v=8,p=32",
                                           "hack:k=8,v=4,p=128",
                                           "hack:k=4,v=2,p=64,mix=1",
                                           "hack:k=2,v=4,p=32,meta=bf16",
                                           "hack:k=2,v=2,p=64,round=sr",
                                           "hack:k=8,v=4,p=32,round=sr",
                                           "hack:k=4,v=8,p=128,round=sr,meta=bf16"};

// Those of models; 80, 48 and 112 leave short partitions and runs of 16 channels.
inline constexpr int kHeadDims[] = {16, 48, 64, 80, 96, 112, 128, 192, 256};

inline std::shared_ptr<const HackFormat> format_of(const std::string& name, const KvShape& shape,
                                                   Isa isa) {
  KvFormatContext context;
  context.shape = shape;
  context.isa = isa;
  auto result = make_kv_format(name, context);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? std::dynamic_pointer_cast<const HackFormat>(*result) : nullptr;
}

// Rows of linear formats reach 2^16. Mixed they are up to 16 times as large, and formats without
// `p` take no more than 2^14.
inline Rows in_range(const HackFormat& format, Rows rows) {
  if (!format.options().mix && format.options().k.axis != hack::Axis::kBoth) return rows;
  for (std::uint16_t& x : rows) x = to_bf16(to_float(bf16{x}) * 0x1p-6F).bits;
  return rows;
}

}  // namespace kvlane::hack_fixture
