// Hidden states as they are stored: rows of what a layer's products of Q, K and V read, that is
// behind its norm. K and V come back from them (model/hidden_restorer.h), and nothing else does.
// Bytes: spec/hidden_rows.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/bytes.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

class Model;

// Of rows of hidden states in memory, on the CPU: kBf16, or kF32 of models whose weights are not.
ElementType hidden_type(const Model& model);

// How rows are stored. Each stands by itself, so any number of them may be appended or cut off.
class HiddenFormat {
 public:
  enum class Values : std::uint8_t {
    kExact,  // as they are: K and V come back bit for bit
    kInt8,   // 8 bits, and a scale for each row
  };

  // "hidden" or "hidden:int8", for rows of this model; any other text is an error that says so.
  static Result<HiddenFormat> parse(std::string_view text, const Model& model);
  HiddenFormat(Values values, ElementType type, int hidden)
      : values_(values), type_(type), hidden_(hidden) {}

  std::string_view name() const { return values_ == Values::kExact ? "hidden" : "hidden:int8"; }
  Values values() const { return values_; }
  bool exact() const { return values_ == Values::kExact; }
  ElementType type() const { return type_; }
  // What extents of such rows say of them (spec/store.md, section 5).
  std::string_view extent_format() const {
    return values_ == Values::kExact ? "attention_input" : "attention_input:int8";
  }
  int hidden() const { return hidden_; }
  // Of a row in memory, and of one that is stored.
  std::size_t row_bytes() const { return hidden_ * element_bytes(type_); }
  std::size_t stored_bytes() const {
    return values_ == Values::kExact ? row_bytes() : sizeof(float) + hidden_;
  }

  // rows: [count][hidden], aligned to their type. stored: count * stored_bytes(), which it does not
  // overlap. A row that is not finite cannot be stored in 8 bits: an error, and `stored` is
  // garbage.
  Status encode(ByteView rows, int count, std::byte* stored) const;
  // The reverse. kCorrupt when `stored` has another size or a scale that encode() does not make.
  Status decode(ByteView stored, int count, std::byte* rows) const;

 private:
  Values values_;
  ElementType type_;
  int hidden_;
};

}  // namespace kvlane
