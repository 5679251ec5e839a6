// The decoder of codec/channel_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/channel_batch.h"
#include "codec/channel_device.h"

namespace kvlane::channel {

struct DeviceDecodeShared {
  std::uint32_t tail_bytes[kDeviceWarps];
  std::uint32_t all_tail_bytes;
  std::uint32_t wrong[3];  // of the frame, of what is behind its tails, of tiles
  DeviceTile tiles[kDeviceWarps];
};

namespace device {

// Of a whole tile, that a thread loads before it needs the first.
inline constexpr int kLoadSteps = 4;

KVLANE_DEVICE TileCounts load_counts(const std::byte* at) {
  TileCounts counts{};
  for (int layer = 0; layer < kLayers; ++layer) {
    counts.escapes[layer] = static_cast<std::uint16_t>(load_half(at + 2 * layer));
  }
  return counts;
}
KVLANE_DEVICE std::uint32_t tail_length(const TileCounts& counts) {
  std::uint32_t bytes = counts.escapes[kLayers - 1];
  for (int layer = 1; layer < kLayers; ++layer) bytes += (counts.escapes[layer - 1] + 3) / 4;
  return bytes;
}

// The elements of `layer` in place of those of the next one, of which there are `next`, from the
// last group to the first. False when the codes do not have so many escapes, or bits behind them.
template <class Thread>
KVLANE_DEVICE bool decode_layer(Thread& t, int layer, const std::byte* packed, std::uint32_t count,
                                std::uint32_t next, std::uint8_t* elements) {
  const std::uint32_t symbols = symbols_of(layer);
  bool right = true;
  std::uint32_t left = next;
  for (std::uint32_t group = static_cast<std::uint32_t>(divide_up(count, kGroupCodes));
       group-- > 0;) {
    const std::uint32_t first = group * static_cast<std::uint32_t>(kGroupCodes);
    const std::uint32_t length =
        count - first < kGroupCodes ? count - first : static_cast<std::uint32_t>(kGroupCodes);
    const std::uint32_t step = (length + 3) / 4;
    std::uint32_t votes[4][2];
    unsigned bytes[2];
    std::uint32_t escapes = 0;
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t j = t.lane() + 32 * h;
      bytes[h] = j < step ? load_byte(packed + first / 4 + j) : 0;
      for (int k = 0; k < 4; ++k) {
        const unsigned code = bytes[h] >> 2 * k & 3;
        const bool inside = j + k * step < length;
        right = right && (inside || code == 0);
        votes[k][h] = t.ballot(inside && code == kEscape);
        escapes += count_ones(votes[k][h]);
      }
    }
    right = right && escapes <= left;
    left = escapes <= left ? left - escapes : 0;
    std::uint32_t own[2] = {};
    std::uint32_t at = left;
    for (int k = 0; k < 4; ++k) {
      for (int h = 0; h < 2; ++h) {
        const unsigned code = bytes[h] >> 2 * k & 3;
        // Never past the elements: a layer has no more than the one before it.
        const std::uint32_t rank = at + count_ones(votes[k][h] & lanes_before(t.lane()));
        const bool escaped = (votes[k][h] >> t.lane() & 1) != 0;
        own[h] |=
            (escaped ? elements[rank < kLayerElementsMax ? rank : 0] : symbol_of(symbols, code))
            << 8 * k;
        at += count_ones(votes[k][h]);
      }
    }
    t.sync_warp();
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t j = t.lane() + 32 * h;
      for (int k = 0; k < 4; ++k) {
        if (j < step && j + k * step < length) {
          elements[first + j + k * step] = static_cast<std::uint8_t>(own[h] >> 8 * k);
        }
      }
    }
    t.sync_warp();
  }
  return right && left == 0;
}

// Bases from the anchor and their codes; returns the elements they took.
template <class Thread>
KVLANE_DEVICE std::uint32_t decode_bases(Thread& t, const std::byte* packed, std::uint32_t channels,
                                         unsigned anchor, DeviceTile& tile, bool& right) {
  const std::uint32_t step = (channels + 3) / 4;
  std::uint32_t taken = 0;
  for (std::uint32_t from = 0; from < 4 * step; from += kWarpThreads) {
    const std::uint32_t c = from + t.lane();
    const unsigned code = c < 4 * step ? load_byte(packed + c % step) >> 2 * (c / step) & 3 : 0;
    right = right && (c < channels || code == 0);
    const std::uint32_t votes = t.ballot(c < channels && code == kEscape);
    const std::uint32_t rank = taken + count_ones(votes & lanes_before(t.lane()));
    const unsigned distance = code == kEscape ? tile.elements[rank] : code;
    if (c < channels) tile.bases[c] = static_cast<std::uint8_t>(anchor - distance);
    taken += count_ones(votes);
  }
  t.sync_warp();
  return taken;
}

// Puts elements where codes are the escape; `from` may lie behind what there is.
KVLANE_DEVICE void load_escapes(const std::uint8_t* elements, std::uint32_t from,
                                std::uint32_t escaped, std::uint32_t (&distances)[2]) {
  for (std::uint32_t left = escaped; left != 0; left &= left - 1, ++from) {
    const int i = lowest_one(left);
    const std::uint32_t found = elements[from < kLayerElementsMax ? from : 0];
    const std::uint32_t change = (found ^ kEscape) << 8 * (i & 3);
    distances[0] ^= i < 4 ? change : 0;
    distances[1] ^= i < 4 ? 0 : change;
  }
}

// Eight channels of a row of a whole tile, as they lie in a body.
struct CodedRow8 {
  Words2 codes;  // of four rows
  Words2 rests;
};

// Distances of eight values from their codes; a bit for each whose code is the escape.
KVLANE_DEVICE std::uint32_t split_codes(const Words2& codes, std::uint32_t own_row,
                                        std::uint32_t (&distances)[2]) {
  std::uint32_t escaped = 0;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t code = codes.w[i] >> 2 * own_row & 0x03030303;
    distances[i] = code;
    escaped |= top_bits((code & code >> 1) << 7 & 0x80808080) << 4 * i;
  }
  return escaped;
}

KVLANE_DEVICE Words4 join_row(const std::uint32_t (&bases)[2], const std::uint32_t (&distances)[2],
                              const Words2& rests) {
  Words4 out;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t exponents = subtract_bytes(bases[i], distances[i]);
    const std::uint32_t low = (exponents << 7 & 0x80808080) | (rests.w[i] & 0x7F7F7F7F);
    const std::uint32_t high = (exponents >> 1 & 0x7F7F7F7F) | (rests.w[i] & 0x80808080);
    out.w[2 * i] = byte_perm(low, high, 0x5140);
    out.w[2 * i + 1] = byte_perm(low, high, 0x7362);
  }
  return out;
}

// The values of a whole tile; returns the elements taken, those of the bases included.
template <class Thread>
KVLANE_DEVICE std::uint32_t decode_whole(Thread& t, const DeviceDecodeTask& task,
                                         const Place& place, std::uint32_t sign_mantissa,
                                         const DeviceTile& tile, std::uint32_t taken) {
  const std::uint32_t column = 8 * (t.lane() % 8);
  const std::uint32_t own_row = t.lane() / 8;
  const std::size_t first = std::size_t{place.first_value} + own_row * place.row_values + column;
  const std::uint32_t step = kStepRows * place.row_values;
  // Addresses of their own: a task in memory would be read again after every store.
  const std::byte* const codes_at = task.body + place.codes + column;
  const std::byte* const rests_at = task.body + sign_mantissa + first;
  std::byte* const to_plane = task.plane + 2 * first;
  std::uint32_t bases[2];
  std::memcpy(bases, tile.bases + column, sizeof(bases));
  KVLANE_NO_UNROLL
  for (int from = 0; from < kSteps; from += kLoadSteps) {
    CodedRow8 rows[kLoadSteps];
    KVLANE_UNROLL
    for (int k = 0; k < kLoadSteps; ++k) {
      rows[k].codes = load_pair(codes_at + (from + k) * kTileChannels);
      rows[k].rests = load_pair(rests_at + (from + k) * step);
    }
    KVLANE_UNROLL
    for (int k = 0; k < kLoadSteps; k += 2) {
      std::uint32_t distances[2][2];
      const std::uint32_t escaped[] = {split_codes(rows[k].codes, own_row, distances[0]),
                                       split_codes(rows[k + 1].codes, own_row, distances[1])};
      const Before before = sum_before(t, count_ones(escaped[0]), count_ones(escaped[1]));
      load_escapes(tile.elements, taken + before.first, escaped[0], distances[0]);
      load_escapes(tile.elements, taken + before.all_first + before.second, escaped[1],
                   distances[1]);
      taken += before.all_first + before.all_second;
      for (int i = 0; i < 2; ++i) {
        store_once(to_plane + 2 * std::size_t{(from + k + i) * step},
                   join_row(bases, distances[i], rows[k + i].rests));
      }
    }
  }
  return taken;
}

// Any tile.
template <class Thread>
KVLANE_DEVICE std::uint32_t decode_any(Thread& t, const DeviceDecodeTask& task, const Place& place,
                                       std::uint32_t sign_mantissa, const DeviceTile& tile,
                                       std::uint32_t taken, bool& right) {
  for (std::uint32_t row = 0; row < place.rows; ++row) {
    for (std::uint32_t from = 0; from < place.channels; from += kWarpThreads) {
      const std::uint32_t c = from + t.lane();
      const bool inside = c < place.channels;
      const unsigned byte =
          inside ? load_byte(task.body + place.codes + row / 4 * place.channels + c) : 0;
      const unsigned code = byte >> 2 * (row % 4) & 3;
      // Rows that are not there have no bits.
      if (row + 1 == place.rows && row % 4 != 3) right = right && byte >> 2 * (row % 4 + 1) == 0;
      const std::uint32_t votes = t.ballot(inside && code == kEscape);
      const std::uint32_t rank = taken + count_ones(votes & lanes_before(t.lane()));
      taken += count_ones(votes);
      if (!inside) continue;
      const unsigned distance =
          code == kEscape ? tile.elements[rank < kLayerElementsMax ? rank : 0] : code;
      const std::size_t at = std::size_t{place.first_value} + row * place.row_values + c;
      const unsigned rest = load_byte(task.body + sign_mantissa + at);
      const unsigned exponent = (tile.bases[c] - distance) & 0xFF;
      store_half(task.plane + 2 * at, (rest & 0x80) << 8 | exponent << 7 | (rest & 0x7F));
    }
  }
  return taken;
}

// Whether the tile is as it must be.
template <class Thread>
KVLANE_DEVICE bool decode_tile(Thread& t, const DeviceDecodeTask& task, const Place& place,
                               const Offsets& at, std::uint32_t index, const TileCounts& counts,
                               const std::byte* tail, bool aligned, DeviceTile& tile) {
  const std::byte* parts[kLayers] = {tail};
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + (counts.escapes[layer - 1] + 3) / 4;
  }
  for (std::uint32_t i = t.lane(); i < counts.escapes[kLayers - 1]; i += kWarpThreads) {
    tile.elements[i] = static_cast<std::uint8_t>(load_byte(parts[kLayers - 1] + i));
  }
  t.sync_warp();
  bool right = true;
  for (int layer = kLayers - 1; layer > 0; --layer) {
    const bool good = decode_layer(t, layer, parts[layer - 1], counts.escapes[layer - 1],
                                   counts.escapes[layer], tile.elements);
    right = right && good;
  }
  const unsigned anchor = load_byte(task.body + at.anchors + index);
  std::uint32_t taken =
      decode_bases(t, task.body + place.base_codes, place.channels, anchor, tile, right);
  const bool whole = aligned && place.rows == kTileRows && place.channels == kTileChannels;
  taken = whole ? decode_whole(t, task, place, at.sign_mantissa, tile, taken)
                : decode_any(t, task, place, at.sign_mantissa, tile, taken, right);
  return right && taken == counts.escapes[0];
}

// Whether counts, padding and length of the body fit together: then the tails are as long as the
// counts say.
template <class Thread>
KVLANE_DEVICE bool check_frame(Thread& t, const DeviceDecodeTask& task,
                               DeviceDecodeShared& shared) {
  const Sections at = sections(task.shape);
  if (task.body_bytes < at.tails) return false;
  const Offsets parts = offsets(at);
  bool right = true;
  std::uint32_t bytes = 0;
  for (std::uint32_t index = t.index(); index < parts.tiles; index += t.threads()) {
    const Place place = place_of(task.shape, parts, index);
    const TileCounts counts = load_counts(task.body + parts.counts + sizeof(TileCounts) * index);
    std::uint32_t most = (place.rows + 1) * place.channels;
    for (const std::uint32_t count : counts.escapes) {
      right = right && count <= most;
      most = count;
    }
    bytes += tail_length(counts);
  }
  bytes = t.sum(bytes);
  if (t.lane() == 0) t.add(shared.all_tail_bytes, bytes);
  right = right && all_zero(t, task.body, at.anchors_end, at.base_codes) &&
          all_zero(t, task.body, at.base_codes_end, at.codes) &&
          all_zero(t, task.body, at.codes_end, at.sign_mantissa);
  if (any_wrong(t, shared.wrong[0], right)) return false;
  const std::size_t end = at.tails + shared.all_tail_bytes;
  if (task.body_bytes != round_up(end, kBodyAlignment)) return false;
  right = all_zero(t, task.body, end, task.body_bytes);
  return !any_wrong(t, shared.wrong[1], right);
}

template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_coded(Thread& t, const DeviceDecodeTask& task,
                                         DeviceDecodeShared& shared) {
  if (!check_frame(t, task, shared)) return DeviceVerdict::kCorrupt;
  const Offsets at = offsets(sections(task.shape));
  const bool aligned = is_aligned(task.shape, task.plane, task.body);
  bool right = true;
  std::uint32_t tail = at.tails;
  for (std::uint32_t from = 0; from < at.tiles; from += t.warps()) {
    const std::uint32_t index = from + t.warp();
    const bool active = index < at.tiles;
    TileCounts counts{};
    if (active) counts = load_counts(task.body + at.counts + sizeof(TileCounts) * index);
    const TailPlace tails = place_tails(t, shared.tail_bytes, tail_length(counts));
    if (active) {
      const bool good =
          decode_tile(t, task, place_of(task.shape, at, index), at, index, counts,
                      task.body + tail + tails.before, aligned, shared.tiles[t.warp()]);
      right = right && good;
    }
    tail += tails.all;
    t.sync_block();  // before tail_bytes are others'
  }
  return any_wrong(t, shared.wrong[2], right) ? DeviceVerdict::kCorrupt : DeviceVerdict::kDecoded;
}

template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_raw(Thread& t, const DeviceDecodeTask& task,
                                       DeviceDecodeShared& shared) {
  const std::size_t bytes = task.shape.bytes();
  if (task.body_bytes != raw_body_bytes(bytes)) return DeviceVerdict::kCorrupt;
  const bool right = all_zero(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  if (any_wrong(t, shared.wrong[0], right)) return DeviceVerdict::kCorrupt;
  copy_bytes(t, task.plane, task.body + sizeof(Prefix), bytes);
  return DeviceVerdict::kDecoded;
}

template <class Thread>
KVLANE_DEVICE DeviceVerdict decode_checked(Thread& t, const DeviceDecodeTask& task,
                                           DeviceDecodeShared& shared) {
  if (t.index() < 3) shared.wrong[t.index()] = 0;
  if (t.index() == 0) shared.all_tail_bytes = 0;
  t.sync_block();
  if (task.body_bytes < sizeof(Prefix)) return DeviceVerdict::kCorrupt;
  Prefix prefix;
  std::memcpy(&prefix, task.body, sizeof(prefix));
  if (prefix.version != kBodyVersion) return DeviceVerdict::kUnsupported;
  const PlaneShape& shape = task.shape;
  const bool coded = prefix.mode == static_cast<std::uint8_t>(Mode::kCoded);
  if (prefix.mode > static_cast<std::uint8_t>(Mode::kCoded) || prefix.reserved != 0 ||
      prefix.element_type != static_cast<std::uint8_t>(shape.type) ||
      shape.type == ElementType::kF32 ||
      prefix.heads != static_cast<std::uint32_t>(shape.kv_heads) ||
      prefix.rows != static_cast<std::uint32_t>(shape.rows) ||
      prefix.channels != static_cast<std::uint32_t>(shape.head_dim) ||
      (coded && (shape.type != ElementType::kBf16 || shape.elements() == 0))) {
    return DeviceVerdict::kCorrupt;
  }
  return coded ? decode_coded(t, task, shared) : decode_raw(t, task, shared);
}

}  // namespace device

// One block of at most kDeviceWarps warps.
template <class Thread>
KVLANE_DEVICE void decode_plane(Thread& t, const DeviceDecodeTask& task,
                                DeviceDecodeShared& shared) {
  const DeviceVerdict verdict = device::decode_checked(t, task, shared);
  if (t.index() == 0) *task.verdict = verdict;
}

}  // namespace kvlane::channel
