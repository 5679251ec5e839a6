// Probabilities of CacheGen's symbols, and a page's symbols to bytes and back with them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "codec/lane_coder.h"
#include "cpu/isa.h"
#include "kvlane/status.h"
#include "quant/cachegen_symbols.h"

namespace kvlane::cachegen {

constexpr int groups_of(int head_dim) { return (head_dim + kCoderLanes - 1) / kCoderLanes; }

// Two rows of a group's table: for each lane the last of 2^16 slots that a symbol owns, and that
// the next symbol owns.
struct alignas(64) RowPair {
  std::uint16_t last[2][kCoderLanes];
};
static_assert(sizeof(RowPair) == 64);

// Pairs that hold a row for each symbol.
constexpr int pairs_of(int symbols) { return (symbols + 1) / 2; }

// The models of one alphabet for all channels of a layer's K or V.
class ChannelModels {
 public:
  ChannelModels() = default;
  // counts: [kv_heads * head_dim][symbols], how often each symbol occurred: whole numbers from 0 to
  // 2^24. A symbol that never occurred can still be coded. Fails with a sentence.
  static Result<ChannelModels> from_counts(std::span<const float> counts, int symbols, int kv_heads,
                                           int head_dim);

  int symbols() const { return symbols_; }
  // [pairs_of(symbols) + 1]: a symbol's slots end with its row's and begin behind those of the row
  // before. Rows from the last symbol's on, and lanes without a channel, hold 2^16 - 1.
  const RowPair* group(int head, int index) const {
    return rows_.data() + (std::size_t(head) * groups_ + index) * (pairs_of(symbols_) + 1);
  }

 private:
  int symbols_ = 0;
  int groups_ = 0;
  std::vector<RowPair> rows_;
};

// Firsts of a model from counts, [symbols + 1]: spec/slab_cachegen.md, section 3.
void firsts_of_counts(std::span<const std::uint32_t> counts, std::span<std::uint32_t> firsts);

// What codes the symbols of a layer's K or V: all tokens' symbols, or those that are no anchors.
struct PlaneModels {
  Form form = Form::kCode;
  ChannelModels symbols;
  ChannelModels anchors;  // form=paper
};

// The symbols of one plane (K or V of a head) and what codes them, as kernels see it.
struct PlaneSymbols {
  PlaneSymbols(const PlaneModels& models, int head, int dim, std::uint8_t* plane_symbols)
      : form(models.form),
        alphabet(models.symbols.symbols()),
        rows(models.symbols.group(head, 0)),
        anchor_rows(form == Form::kPaper ? models.anchors.group(head, 0) : nullptr),
        head_dim(dim),
        stride(std::size_t{kCoderLanes} * groups_of(dim)),
        symbols(plane_symbols) {}

  Form form;
  int alphabet;                // symbols there are, but for anchors
  const RowPair* rows;         // [groups][pairs_of(alphabet) + 1], see ChannelModels::group()
  const RowPair* anchor_rows;  // [groups][pairs_of(kAnchorSymbols) + 1], form=paper
  int head_dim;
  std::size_t stride;
  std::uint8_t* symbols;  // [64][stride]
};

// Adds a plane to a run; those that are to be read first come last. Symbols lie inside their
// alphabets.
void encode_plane(const PlaneSymbols& plane, LaneEncoder& encoder);

// Reads both planes of a page from any `bytes` bytes. Whatever these are, symbols lie inside their
// alphabets.
using DecodePage = void (*)(const PlaneSymbols& keys, const PlaneSymbols& values,
                            const std::byte* coded, std::size_t bytes);
void decode_page_scalar(const PlaneSymbols& keys, const PlaneSymbols& values,
                        const std::byte* coded, std::size_t bytes);
void decode_page_avx2(const PlaneSymbols& keys, const PlaneSymbols& values, const std::byte* coded,
                      std::size_t bytes);
void decode_page_avx512(const PlaneSymbols& keys, const PlaneSymbols& values,
                        const std::byte* coded, std::size_t bytes);

inline DecodePage decode_page_kernel(Isa isa) {
  if constexpr (kX86) {
    if (isa >= Isa::kAvx512) return decode_page_avx512;
    if (isa >= Isa::kAvx2) return decode_page_avx2;
  }
  return decode_page_scalar;
}

// Symbols without coding: the bits of each, one after another.
std::size_t raw_plane_bytes(Form form, int alphabet, int head_dim);
void write_raw(const PlaneSymbols& plane, std::span<std::byte> raw);
void read_raw(const PlaneSymbols& plane, ByteView raw);

}  // namespace kvlane::cachegen
