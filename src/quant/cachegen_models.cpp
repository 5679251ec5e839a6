// Models, runs of lanes, and symbols without coding.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen_models.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "codec/arithmetic_coder.h"

namespace kvlane::cachegen {
namespace {

constexpr float kCountMax = 1 << 24;
constexpr std::uint32_t kLowTotal = kModelTotal >> kAnchorLowBits;

// One lane's column of a group's table.
struct LaneModel {
  // all_rows: of groups of channels, one after another.
  LaneModel(const RowPair* all_rows, int alphabet, int group, int lane_index)
      : rows(all_rows + group * (pairs_of(alphabet) + 1)), lane(lane_index), symbols(alphabet) {}

  std::uint32_t last(int symbol) const { return rows[symbol / 2].last[symbol % 2][lane]; }
  std::uint32_t first(int symbol) const { return symbol > 0 ? last(symbol - 1) + 1 : 0; }
  std::uint32_t count(int symbol) const { return last(symbol) + 1 - first(symbol); }
  // The symbol that owns `slot`.
  int find(std::uint32_t slot) const {
    int found = 0;
    for (int step = static_cast<int>(std::bit_floor(unsigned(symbols - 1))); step > 0; step /= 2) {
      if (found + step < symbols && last(found + step - 1) < slot) found += step;
    }
    return found;
  }

  const RowPair* rows;
  int lane;
  int symbols;
};

int lanes_of(const PlaneSymbols& plane, int group) {
  return std::min(kCoderLanes, plane.head_dim - group * kCoderLanes);
}

// The model of a plane's symbol, or of an anchor's high bits.
LaneModel model_of(const PlaneSymbols& plane, bool anchor, int group, int lane) {
  return anchor ? LaneModel(plane.anchor_rows, kAnchorSymbols, group, lane)
                : LaneModel(plane.rows, plane.alphabet, group, lane);
}

bool has_anchor(Form form, int token) { return form == Form::kPaper && is_anchor(token); }

void decode_plane(const PlaneSymbols& plane, LaneDecoder& decoder) {
  for (int group = 0; group < groups_of(plane.head_dim); ++group) {
    const int lanes = lanes_of(plane, group);
    for (int token = 0; token < kBlockTokens; ++token) {
      std::uint8_t* const out = plane.symbols + token * plane.stride + group * kCoderLanes;
      const bool anchor = has_anchor(plane.form, token);
      for (int lane = 0; lane < lanes; ++lane) {
        const LaneModel model = model_of(plane, anchor, group, lane);
        const int symbol = model.find(decoder.slot(lane));
        decoder.take(lane, model.first(symbol), model.count(symbol));
        out[lane] = static_cast<std::uint8_t>(symbol);
      }
      for (int lane = 0; anchor && lane < lanes; ++lane) {
        const std::uint32_t low = decoder.slot(lane) / kLowTotal;
        decoder.take(lane, low * kLowTotal, kLowTotal);
        out[lane] = static_cast<std::uint8_t>(out[lane] << kAnchorLowBits | low);
      }
    }
  }
}

int raw_bits(Form form, int alphabet, int token) {
  return has_anchor(form, token) ? 8 : std::bit_width(unsigned(alphabet - 1));
}

}  // namespace

void firsts_of_counts(std::span<const std::uint32_t> counts, std::span<std::uint32_t> firsts) {
  std::uint64_t total = 0;
  for (const std::uint32_t count : counts) total += count;
  const std::uint64_t shared = kModelTotal - counts.size();
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    firsts[i] = static_cast<std::uint32_t>(
        (total > 0 ? shared * below / total : shared * i / counts.size()) + i);
    below += counts[i];
  }
  firsts[counts.size()] = kModelTotal;
}

Result<ChannelModels> ChannelModels::from_counts(std::span<const float> counts, int symbols,
                                                 int kv_heads, int head_dim) {
  ChannelModels models;
  models.symbols_ = symbols;
  models.groups_ = groups_of(head_dim);
  const int pairs = pairs_of(symbols) + 1;
  models.rows_.resize(std::size_t(kv_heads) * models.groups_ * pairs);
  for (RowPair& pair : models.rows_) std::memset(&pair, 0xFF, sizeof(pair));
  std::vector<std::uint32_t> whole(symbols);
  std::vector<std::uint32_t> firsts(symbols + 1);
  for (int channel = 0; channel < kv_heads * head_dim; ++channel) {
    for (int i = 0; i < symbols; ++i) {
      const float count = counts[std::size_t(channel) * symbols + i];
      if (!(count >= 0 && count <= kCountMax) || count != std::floor(count)) {
        return invalid_argument("channel " + std::to_string(channel) + ", symbol " +
                                std::to_string(i) + ": " + std::to_string(count) +
                                " is no whole number from 0 to 2^24");
      }
      whole[i] = static_cast<std::uint32_t>(count);
    }
    firsts_of_counts(whole, firsts);
    const int in_head = channel % head_dim;
    RowPair* const rows =
        models.rows_.data() +
        (std::size_t(channel / head_dim) * models.groups_ + in_head / kCoderLanes) * pairs;
    for (int i = 0; i < symbols; ++i) {
      rows[i / 2].last[i % 2][in_head % kCoderLanes] =
          static_cast<std::uint16_t>(firsts[i + 1] - 1);
    }
  }
  return models;
}

void encode_plane(const PlaneSymbols& plane, LaneEncoder& encoder) {
  for (int group = groups_of(plane.head_dim) - 1; group >= 0; --group) {
    const int lanes = lanes_of(plane, group);
    for (int token = kBlockTokens - 1; token >= 0; --token) {
      const std::uint8_t* const in = plane.symbols + token * plane.stride + group * kCoderLanes;
      const bool anchor = has_anchor(plane.form, token);
      for (int lane = lanes - 1; anchor && lane >= 0; --lane) {
        encoder.put(lane, (in[lane] & ((1U << kAnchorLowBits) - 1)) * kLowTotal, kLowTotal);
      }
      for (int lane = lanes - 1; lane >= 0; --lane) {
        const LaneModel model = model_of(plane, anchor, group, lane);
        const int symbol = anchor ? in[lane] >> kAnchorLowBits : in[lane];
        encoder.put(lane, model.first(symbol), model.count(symbol));
      }
    }
  }
}

void decode_page_scalar(const PlaneSymbols& keys, const PlaneSymbols& values,
                        const std::byte* coded, std::size_t bytes) {
  LaneDecoder decoder({coded, bytes});
  decode_plane(keys, decoder);
  decode_plane(values, decoder);
}

std::size_t raw_plane_bytes(Form form, int alphabet, int head_dim) {
  std::size_t bits = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    bits += std::size_t(raw_bits(form, alphabet, token)) * head_dim;
  }
  return (bits + 15) / 16 * 2;
}

void write_raw(const PlaneSymbols& plane, std::span<std::byte> raw) {
  std::ranges::fill(raw, std::byte{0});
  std::size_t at = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    const int bits = raw_bits(plane.form, plane.alphabet, token);
    for (int i = 0; i < plane.head_dim; ++i, at += bits) {
      const unsigned placed = unsigned(plane.symbols[token * plane.stride + i]) << at % 8;
      raw[at / 8] |= static_cast<std::byte>(placed);
      if (placed >> 8 != 0) raw[at / 8 + 1] |= static_cast<std::byte>(placed >> 8);
    }
  }
}

void read_raw(const PlaneSymbols& plane, ByteView raw) {
  std::size_t at = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    const int bits = raw_bits(plane.form, plane.alphabet, token);
    const int last = has_anchor(plane.form, token) ? 255 : plane.alphabet - 1;
    for (int i = 0; i < plane.head_dim; ++i, at += bits) {
      unsigned word = std::to_integer<unsigned>(raw[at / 8]);
      if (at / 8 + 1 < raw.size()) word |= std::to_integer<unsigned>(raw[at / 8 + 1]) << 8;
      const int symbol = static_cast<int>(word >> at % 8 & ((1U << bits) - 1));
      plane.symbols[token * plane.stride + i] = static_cast<std::uint8_t>(std::min(symbol, last));
    }
  }
}

}  // namespace kvlane::cachegen
