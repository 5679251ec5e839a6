// What a device is told of one pass: rows, their places, block tables and units of attention, put
// together on the host. A pass in which every sequence has one token can be padded, so that the
// next ones have the same shape and may be replayed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "format/kv_window.h"
#include "model/forward_pass.h"
#include "plan/coded_decode_units.h"
#include "plan/decode_units.h"
#include "plan/narrow_decode_plan.h"
#include "plan/prefill_units.h"
#include "quant/seal_place.h"

namespace kvlane {

// All that decides where inputs lie and how launches look: passes of equal shapes differ in the
// values of their inputs alone.
struct DevicePassShape {
  int rows;
  int decoding;  // sequences with one token: the first rows
  int table_stride;
  int take;
  int decode_units;
  int states;  // of decode attention, one a query head
  int prefill_units;
  // Of a coded cache.
  int sealed_units;   // of decode attention, of sealed pages; decode_units are of rows then
  int seals;          // blocks that the pass completes
  int narrow_pieces;  // of narrow pages, of all layers
  bool chooses;       // the most likely tokens of all that are taken

  friend auto operator<=>(const DevicePassShape&, const DevicePassShape&) = default;
};

// Thread-compatible.
class DevicePass {
 public:
  // Where the arrays of a pass lie.
  struct Inputs {
    const std::int32_t* tokens;     // [rows]; negative: a row that pads
    const std::int32_t* positions;  // [rows]; the same
    const std::int32_t* sequences;  // [rows]
    const std::int32_t* tables;     // [sequences][table_stride]
    const std::int32_t* take;       // [take], rows; negative: zeros
    const DecodeUnit* decode_units;
    const std::int32_t* first_state;  // [decoding + 1]
    const PrefillUnit* prefill_units;
    // Of a coded cache; `tables` names blocks of rows then, or 0 where there are none.
    const std::int32_t* sealed_tables;  // [sequences][table_stride]
    const DecodeUnit* sealed_units;
    const HackSealPlace* seals;  // negative: none
    // Of narrow pages, in place of units: pieces of all layers, and where machines begin among
    // them: those of layer i from narrow_first + NarrowLayers::first_at(i) on.
    const NarrowPiece* narrow_pieces;
    const std::int32_t* narrow_first;
  };

  // Layers of narrow pages.
  struct NarrowLayers {
    int kv_heads;
    std::vector<HeadWidths> widths;  // [layers][kv_heads]
    std::vector<int> machines;       // [layers]: that pieces are shared among

    std::span<const HeadWidths> of_layer(std::size_t layer) const {
      return std::span(widths).subspan(layer * kv_heads, kv_heads);
    }
    std::size_t first_at(std::size_t layer) const {
      return std::accumulate(machines.begin(), machines.begin() + std::ptrdiff_t(layer),
                             std::size_t{layer});
    }
  };

  // How a coded cache is read.
  struct Coded {
    KvWindow window;
    DecodeShape sealed;                    // that sealed pages are cut by
    const NarrowLayers* narrow = nullptr;  // where they are narrow, and cut by these
  };

  // Replaces what was there. With `coded`, tables are of a coded cache and have rows for the
  // tokens.
  void arrange(std::span<const ForwardSpan> spans, const DecodeShape& decode,
               const PrefillShape& prefill, const Coded* coded = nullptr);
  // Rounds the shape up; for passes without units of prefill attention.
  void pad(int rows_max, int logits_max, int heads);

  const DevicePassShape& shape() const { return shape_; }
  int taken() const { return static_cast<int>(places_.size()); }  // without padding
  // Of these the first ones: rows whose logits somebody wants.
  int logits() const { return logits_; }
  // Where the i-th row that is wanted is among those that are taken.
  int place(int index) const { return places_[index]; }
  // Of each span the first row: those that decode come first.
  std::span<const int> first_rows() const { return first_rows_; }
  bool decodes_only() const { return shape_.prefill_units == 0; }
  // Blocks that it completes, without padding.
  int sealed_blocks() const { return sealed_blocks_; }

  std::size_t bytes() const;
  // Writes bytes() to `host`, and says where each array will be in a copy at `device`.
  Inputs write(std::byte* host, const std::byte* device) const;

 private:
  void take(std::span<const ForwardSpan> spans, const std::vector<int>& last_rows);
  void append_rows(const ForwardSpan& span, int sequence, bool coded);
  void append_seals(const ForwardSpan& span);
  void plan_decoding(std::span<const std::int32_t> tokens, const DecodeShape& decode,
                     const Coded* coded);
  void plan_narrow(std::vector<NarrowSpan> spans, int heads, const NarrowLayers& layers);
  void pad_tables(std::vector<std::int32_t>& tables, int sequences, int stride) const;

  DevicePassShape shape_{};
  int logits_ = 0;
  std::vector<int> places_;
  std::vector<int> first_rows_;  // of spans
  std::vector<std::int32_t> tokens_, positions_, sequences_, tables_, take_;
  DecodePlan decode_plan_;
  std::vector<PrefillUnit> prefill_units_;
  std::vector<std::int32_t> sealed_tables_;
  std::vector<DecodeUnit> sealed_units_;
  std::vector<HackSealPlace> seals_;
  int sealed_blocks_ = 0;
  // Kept while spans are the same: most steps complete no block.
  std::vector<NarrowSpan> narrow_spans_;
  std::vector<NarrowPiece> narrow_pieces_;
  std::vector<std::int32_t> narrow_first_;
  NarrowDecodePlanner narrow_planner_;
};

// The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 ...: few shapes, and at most half of a pass is padding.
int padded_count(int count);

}  // namespace kvlane
