// What slabs of one layer in codes of KVQuant are made with, from its tables, and where their parts
// lie (spec/slab_kvquant.md; spec/slab_zack.md, section 7).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "format/head_widths.h"
#include "quant/format_text.h"
#include "quant/kv_format.h"
#include "quant/kvquant_rows.h"
#include "quant/kvquant_slab.h"

namespace kvlane::kvquant {

// What a name says of codes.
struct Options {
  int bits;      // 2, 3 or 4
  int outliers;  // per cent that is kept in 16 bits: 0 or 1
  bool room_by_token;

  // Takes bits, outliers and room out of `text`.
  static Result<Options> parse(FormatText& text);
};

// What a coder is made for.
struct Kind {
  Options options;
  // [layers][kv_heads]: how many of a head's channels are coded, the first ones. Even.
  std::vector<HeadWidths> widths;
  // What K is rotated back by before it is coded, and forth when it is opened: then widths are all
  // head_dim. Null: neither. Outlives the coder.
  const RopeTable* rope = nullptr;
  std::string tables;  // what names of tables begin with: "kvquant"
  // Whether tables say which widths they are for, which must be these.
  bool tables_have_widths = false;
};

// K or V of one layer.
struct Tensor {
  FirstChannels channels;
  int at_end = 0;                          // outliers of a token at either end of its values
  std::array<float, kLevelsMax> values{};  // what codes stand for
  std::vector<float> borders;              // [2^bits - 1]: between two signposts
  std::vector<Limits> limits;              // [channels], K only
  // The same where vectors want them: those of a head from places[head] on, 16 * groups_of(width).
  std::vector<int> places;  // [kv_heads]
  std::vector<float> middle, reach;

  int width(int head) const { return channels[head + 1] - channels[head]; }
  // How many borders lie below: the nearest signpost, the lower one of two.
  int code_of(float normalised) const {
    int code = 0;
    for (const float border : borders) code += normalised > border;
    return code;
  }
};

struct Layer {
  Tensor keys, values;
  std::vector<std::size_t> planes;  // [kv_heads][K, V]: where codes lie; behind them all outliers
  std::size_t capacity = 0;         // outliers

  const Tensor& tensor(bool is_key) const { return is_key ? keys : values; }
  std::size_t plane_at(int head, bool is_key) const {
    return planes[2 * std::size_t(head) + (is_key ? 0 : 1)];
  }
  std::size_t outliers_at() const { return planes.back(); }
};

// kInvalidArgument for tables that are not there or wrong, kUnsupported where a token has too few
// channels.
Result<std::vector<Layer>> make_layers(const Kind& kind, const KvFormatContext& context);

}  // namespace kvlane::kvquant
