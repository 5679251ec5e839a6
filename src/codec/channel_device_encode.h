// The encoder of codec/channel_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/channel_batch.h"
#include "codec/channel_device.h"

namespace kvlane::channel {

// Of a tail that are kept in shared memory; a tile with more is worked on again.
inline constexpr std::uint32_t kStagedBytes = 1024;

struct DeviceEncodeShared {
  std::uint32_t tail_bytes[kDeviceWarps];
  DeviceTile tiles[kDeviceWarps];
  std::byte staged[kDeviceWarps][kStagedBytes];
};

namespace device {

// Where a tail goes: to shared memory while there is room, or to its place in the body.
struct TailSink {
  std::byte* staged;
  std::byte* body;  // not null: the second time

  KVLANE_DEVICE void put(std::uint32_t at, unsigned byte) const {
    if (body != nullptr) {
      store_byte(body + at, byte);
    } else if (at < kStagedBytes) {
      store_byte(staged + at, byte);
    }
  }
};

// Eight exponents and what is left of their values, in the order of channels.
struct Row8 {
  std::uint32_t exponents[2];
  std::uint32_t sign_mantissa[2];
};
KVLANE_DEVICE Row8 split_row(const Words4& values) {
  Row8 row;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = byte_perm(values.w[2 * i], values.w[2 * i + 1], 0x6420);
    const std::uint32_t high = byte_perm(values.w[2 * i], values.w[2 * i + 1], 0x7531);
    row.exponents[i] = (high << 1 & 0xFEFEFEFE) | (low >> 7 & 0x01010101);
    row.sign_mantissa[i] = (high & 0x80808080) | (low & 0x7F7F7F7F);
  }
  return row;
}

// Packs `count` elements of `layer` to `tail` and leaves those that escape at the front of
// `elements`; returns how many.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_layer(Thread& t, int layer, std::uint8_t* elements,
                                         std::uint32_t count, std::uint32_t tail,
                                         const TailSink& sink) {
  const std::uint32_t symbols = symbols_of(layer);
  std::uint32_t escapes = 0;
  for (std::uint32_t first = 0; first < count; first += kGroupCodes) {
    const std::uint32_t left = count - first;
    const std::uint32_t length =
        left < kGroupCodes ? left : static_cast<std::uint32_t>(kGroupCodes);
    const std::uint32_t step = (length + 3) / 4;
    std::uint32_t own[2] = {};  // four elements of a byte, for two bytes
    std::uint32_t votes[4][2];
    for (int h = 0; h < 2; ++h) {
      const std::uint32_t j = t.lane() + 32 * h;
      unsigned byte = 0;
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t i = j + k * step;
        const bool inside = j < step && i < length;
        const unsigned distance = inside ? elements[first + i] : 0;
        const unsigned code = inside ? code_in(symbols, distance) : 0;
        own[h] |= distance << 8 * k;
        byte |= code << 2 * k;
        votes[k][h] = t.ballot(code == kEscape);
      }
      if (j < step) sink.put(tail + first / 4 + j, byte);
    }
    t.sync_warp();  // all have read what is overwritten now
    for (int k = 0; k < 4; ++k) {
      for (int h = 0; h < 2; ++h) {
        if ((votes[k][h] >> t.lane() & 1) != 0) {
          const std::uint32_t rank = count_ones(votes[k][h] & lanes_before(t.lane()));
          elements[escapes + rank] = static_cast<std::uint8_t>(own[h] >> 8 * k);
        }
        escapes += count_ones(votes[k][h]);
      }
    }
    t.sync_warp();
  }
  return escapes;
}

// The greatest base that at least a fifth of them reaches, bit by bit: it is the greatest of all
// bytes that so many reach.
template <class Thread>
KVLANE_DEVICE unsigned choose_anchor(Thread& t, const std::uint8_t* bases, std::uint32_t channels) {
  static_assert(kTileChannels == 2 * kWarpThreads);
  const std::uint32_t c = t.lane();
  const unsigned own[2] = {c < channels ? bases[c] : 0U,
                           c + kWarpThreads < channels ? bases[c + kWarpThreads] : 0U};
  unsigned best = 0;
  for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
    const unsigned tried = best | bit;
    const std::uint32_t reached =
        count_ones(t.ballot(own[0] >= tried)) + count_ones(t.ballot(own[1] >= tried));
    if (5 * reached >= channels) best = tried;
  }
  return best;
}

// Codes of the bases, whose escapes are the first elements; returns how many.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_bases(Thread& t, DeviceTile& tile, std::uint32_t channels,
                                         unsigned anchor, std::byte* out) {
  const auto distance = [&](std::uint32_t c) { return (anchor - tile.bases[c]) & 0xFF; };
  const std::uint32_t step = (channels + 3) / 4;
  for (std::uint32_t j = t.lane(); j < step; j += kWarpThreads) {
    unsigned byte = 0;
    for (std::uint32_t k = 0; k < 4 && j + k * step < channels; ++k) {
      byte |= code_in(kPackedSymbols<0>, distance(j + k * step)) << 2 * k;
    }
    store_byte(out + j, byte);
  }
  std::uint32_t escapes = 0;
  for (std::uint32_t from = 0; from < channels; from += kWarpThreads) {
    const std::uint32_t c = from + t.lane();
    const bool escaped = c < channels && code_in(kPackedSymbols<0>, distance(c)) == kEscape;
    const std::uint32_t votes = t.ballot(escaped);
    if (escaped) {
      tile.elements[escapes + count_ones(votes & lanes_before(t.lane()))] =
          static_cast<std::uint8_t>(distance(c));
    }
    escapes += count_ones(votes);
  }
  return escapes;
}

// Distances of eight values, their codes, and a bit for each that escapes.
struct Codes8 {
  std::uint32_t distances[2];
  std::uint32_t codes[2];
  std::uint32_t escaped;
};
KVLANE_DEVICE Codes8 codes_of(const std::uint32_t (&bases)[2],
                              const std::uint32_t (&exponents)[2]) {
  Codes8 row{};
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t d = subtract_bytes(bases[i], exponents[i]);
    const std::uint32_t above = (((d & 0x7F7F7F7F) + 0x7D7D7D7D) | d) & 0x80808080;  // 2
    const std::uint32_t mask = byte_perm(above, 0, 0xBA98);
    row.distances[i] = d;
    row.codes[i] = (d & ~mask) | (mask & 0x03030303);
    row.escaped |= top_bits(above) << 4 * i;
  }
  return row;
}
KVLANE_DEVICE void store_escapes(const Codes8& row, std::uint8_t* to) {
  for (std::uint32_t left = row.escaped; left != 0; left &= left - 1) {
    const int i = lowest_one(left);
    *to++ = static_cast<std::uint8_t>((i < 4 ? row.distances[0] : row.distances[1]) >> 8 * (i & 3));
  }
}

// Of a whole tile: stores signs and mantissas, and leaves exponents in `tile.elements`, row after
// row, behind room for the escapes of the bases. Returns the bases of this thread's channels.
struct Bases8 {
  std::uint32_t of[2];
};
template <class Thread>
KVLANE_DEVICE Bases8 split_whole(Thread& t, const DeviceEncodeTask& task, const Place& place,
                                 std::uint32_t sign_mantissa, DeviceTile& tile) {
  const std::uint32_t column = 8 * (t.lane() % 8);
  const std::uint32_t own_row = t.lane() / 8;
  const std::size_t first = std::size_t{place.first_value} + own_row * place.row_values + column;
  const std::uint32_t step = kStepRows * place.row_values;
  // Addresses of their own: a task in memory would be read again after every store.
  const std::byte* const from_plane = task.plane + 2 * first;
  std::byte* const to_rests = task.body + sign_mantissa + first;
  std::uint32_t fold[4][2] = {};
  KVLANE_NO_UNROLL
  for (int from = 0; from < kSteps; from += 4) {
    Words4 values[4];
    KVLANE_UNROLL
    for (int k = 0; k < 4; ++k) {
      values[k] = load_once(from_plane + 2 * std::size_t{(from + k) * step});
    }
    KVLANE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const Row8 row = split_row(values[k]);
      store_pair(to_rests + (from + k) * step, row.sign_mantissa[0], row.sign_mantissa[1]);
      const std::uint32_t at = (kStepRows * (from + k) + own_row) * kTileChannels + column;
      std::memcpy(tile.elements + kTileChannels + at, row.exponents, sizeof(row.exponents));
      for (int i = 0; i < 2; ++i) fold[k][i] = max_bytes(fold[k][i], row.exponents[i]);
    }
  }
  Bases8 bases;
  for (int i = 0; i < 2; ++i) {
    bases.of[i] = max_bytes(min_bytes(fold[0][i], fold[2][i]), min_bytes(fold[1][i], fold[3][i]));
    bases.of[i] = min_bytes(bases.of[i], t.shuffle(bases.of[i], t.lane() ^ 16));
    bases.of[i] = max_bytes(bases.of[i], t.shuffle(bases.of[i], t.lane() ^ 8));
  }
  if (own_row == 0) std::memcpy(tile.bases + column, bases.of, sizeof(bases.of));
  t.sync_warp();
  return bases;
}

// A whole tile. Leaves bases and elements of layer 2 and returns how many these are.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_whole(Thread& t, const DeviceEncodeTask& task,
                                         const Place& place, std::uint32_t sign_mantissa,
                                         DeviceTile& tile, unsigned& anchor) {
  const std::uint32_t column = 8 * (t.lane() % 8);
  const std::uint32_t own_row = t.lane() / 8;
  const Bases8 bases = split_whole(t, task, place, sign_mantissa, tile);
  anchor = choose_anchor(t, tile.bases, kTileChannels);
  std::uint32_t escapes =
      encode_bases(t, tile, kTileChannels, anchor, task.body + place.base_codes);
  std::byte* const codes_at = task.body + place.codes + own_row * kTileChannels + column;
  KVLANE_NO_UNROLL
  for (int from = 0; from < kSteps; from += 4) {
    std::uint32_t packed[2] = {};
    KVLANE_UNROLL
    for (int k = 0; k < 4; k += 2) {
      Codes8 rows[2];
      for (int step = 0; step < 2; ++step) {
        const std::uint32_t row = kStepRows * (from + k + step) + own_row;
        std::uint32_t e[2];
        std::memcpy(e, tile.elements + kTileChannels * (1 + row) + column, sizeof(e));
        rows[step] = codes_of(bases.of, e);
      }
      // Escapes replace the exponents of rows that all threads have read; there is one row of room.
      const Before before = sum_before(t, count_ones(rows[0].escaped), count_ones(rows[1].escaped));
      t.sync_warp();
      store_escapes(rows[0], tile.elements + escapes + before.first);
      store_escapes(rows[1], tile.elements + escapes + before.all_first + before.second);
      escapes += before.all_first + before.all_second;
      KVLANE_UNROLL
      for (int step = 0; step < 2; ++step) {
        for (int i = 0; i < 2; ++i) {
          std::uint32_t codes = rows[step].codes[i] << 2 * own_row;
          codes |= t.shuffle(codes, t.lane() ^ 8);
          codes |= t.shuffle(codes, t.lane() ^ 16);
          // Of four steps each thread keeps the codes of one.
          if (own_row == static_cast<std::uint32_t>(k + step)) packed[i] = codes;
        }
      }
    }
    store_pair(codes_at + from * kTileChannels, packed[0], packed[1]);
  }
  t.sync_warp();
  return escapes;
}

// Any tile, a channel a thread.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_any(Thread& t, const DeviceEncodeTask& task, const Place& place,
                                       std::uint32_t sign_mantissa, DeviceTile& tile,
                                       unsigned& anchor) {
  const auto value = [&](std::uint32_t row, std::uint32_t c) {
    return load_half(task.plane +
                     2 * (std::size_t{place.first_value} + row * place.row_values + c));
  };
  const auto exponent = [&](std::uint32_t row, std::uint32_t c) {
    return value(row, c) >> 7 & 0xFF;
  };
  for (std::uint32_t c = t.lane(); c < place.channels; c += kWarpThreads) {
    // Of each row that is left after four foldings, from the sixteen that it comes from.
    unsigned left[4];
    KVLANE_UNROLL
    for (unsigned row = 0; row < 4; ++row) {
      unsigned fold[4];
      KVLANE_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        fold[i] = 0;
        KVLANE_NO_UNROLL
        for (unsigned far = row + 4 * i; far < kTileRows; far += 16) {
          const unsigned e = exponent(far % place.rows, c);
          fold[i] = e > fold[i] ? e : fold[i];
        }
      }
      const unsigned even = fold[0] < fold[2] ? fold[0] : fold[2];
      const unsigned odd = fold[1] < fold[3] ? fold[1] : fold[3];
      left[row] = even > odd ? even : odd;
    }
    const unsigned even = left[0] < left[2] ? left[0] : left[2];
    const unsigned odd = left[1] < left[3] ? left[1] : left[3];
    tile.bases[c] = static_cast<std::uint8_t>(even > odd ? even : odd);
  }
  t.sync_warp();
  anchor = choose_anchor(t, tile.bases, place.channels);
  std::uint32_t escapes =
      encode_bases(t, tile, place.channels, anchor, task.body + place.base_codes);
  for (std::uint32_t c = t.lane(); c < place.channels; c += kWarpThreads) {
    for (std::uint32_t row = 0; row < place.rows; row += 4) {
      unsigned byte = 0;
      for (std::uint32_t k = 0; k < 4 && row + k < place.rows; ++k) {
        byte |= code_in(kPackedSymbols<0>, (tile.bases[c] - exponent(row + k, c)) & 0xFF) << 2 * k;
      }
      store_byte(task.body + place.codes + row / 4 * place.channels + c, byte);
    }
  }
  for (std::uint32_t row = 0; row < place.rows; ++row) {
    for (std::uint32_t from = 0; from < place.channels; from += kWarpThreads) {
      const std::uint32_t c = from + t.lane();
      const bool inside = c < place.channels;
      const unsigned x = inside ? value(row, c) : 0;
      const unsigned distance = inside ? (tile.bases[c] - (x >> 7)) & 0xFF : 0;
      const std::uint32_t votes = t.ballot(code_in(kPackedSymbols<0>, distance) == kEscape);
      if (inside) {
        store_byte(task.body + sign_mantissa + place.first_value + row * place.row_values + c,
                   (x >> 8 & 0x80) | (x & 0x7F));
      }
      if (code_in(kPackedSymbols<0>, distance) == kEscape) {
        tile.elements[escapes + count_ones(votes & lanes_before(t.lane()))] =
            static_cast<std::uint8_t>(distance);
      }
      escapes += count_ones(votes);
    }
  }
  t.sync_warp();
  return escapes;
}

// All of a tile; returns the bytes of its tail.
template <class Thread>
KVLANE_DEVICE std::uint32_t encode_tile(Thread& t, const DeviceEncodeTask& task, const Place& place,
                                        const Offsets& at, std::uint32_t index, bool aligned,
                                        DeviceTile& tile, const TailSink& sink) {
  unsigned anchor;
  const bool whole = aligned && place.rows == kTileRows && place.channels == kTileChannels;
  std::uint32_t count = whole ? encode_whole(t, task, place, at.sign_mantissa, tile, anchor)
                              : encode_any(t, task, place, at.sign_mantissa, tile, anchor);
  std::uint32_t tail = 0;
  for (int layer = 1; layer <= kLayers; ++layer) {
    if (t.lane() == 0) {
      store_half(task.body + at.counts + sizeof(TileCounts) * index + 2 * (layer - 1), count);
    }
    if (layer == kLayers) break;
    const std::uint32_t escapes = encode_layer(t, layer, tile.elements, count, tail, sink);
    tail += (count + 3) / 4;
    count = escapes;
  }
  for (std::uint32_t i = t.lane(); i < count; i += kWarpThreads)
    sink.put(tail + i, tile.elements[i]);
  if (t.lane() == 0) store_byte(task.body + at.anchors + index, anchor);
  t.sync_warp();
  return tail + count;
}

template <class Thread>
KVLANE_DEVICE void store_prefix(Thread& t, const DeviceEncodeTask& task, Mode mode) {
  if (t.index() != 0) return;
  const Prefix prefix{.version = kBodyVersion,
                      .mode = static_cast<std::uint8_t>(mode),
                      .element_type = static_cast<std::uint8_t>(task.shape.type),
                      .reserved = 0,
                      .heads = static_cast<std::uint32_t>(task.shape.kv_heads),
                      .rows = static_cast<std::uint32_t>(task.shape.rows),
                      .channels = static_cast<std::uint32_t>(task.shape.head_dim)};
  std::memcpy(task.body, &prefix, sizeof(prefix));
}

template <class Thread>
KVLANE_DEVICE void encode_raw(Thread& t, const DeviceEncodeTask& task) {
  const std::size_t bytes = task.shape.bytes();
  store_prefix(t, task, Mode::kRaw);
  copy_bytes(t, task.body + sizeof(Prefix), task.plane, bytes);
  store_zeros(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  if (t.index() == 0) *task.body_bytes = static_cast<std::uint32_t>(raw_body_bytes(bytes));
}

}  // namespace device

// One block of at most kDeviceWarps warps.
template <class Thread>
KVLANE_DEVICE void encode_plane(Thread& t, const DeviceEncodeTask& task,
                                DeviceEncodeShared& shared) {
  using namespace device;
  const std::size_t raw_end = raw_body_bytes(task.shape.bytes());
  if (task.shape.type != ElementType::kBf16 || task.shape.elements() == 0) {
    return encode_raw(t, task);
  }
  const Sections all = sections(task.shape);
  if (all.tails >= raw_end) return encode_raw(t, task);
  store_zeros(t, task.body, all.anchors_end, all.base_codes);
  store_zeros(t, task.body, all.base_codes_end, all.codes);
  store_zeros(t, task.body, all.codes_end, all.sign_mantissa);
  const Offsets at = offsets(all);
  const bool aligned = is_aligned(task.shape, task.plane, task.body);
  DeviceTile& tile = shared.tiles[t.warp()];
  std::size_t end = at.tails;
  for (std::uint32_t from = 0; from < at.tiles; from += t.warps()) {
    const std::uint32_t index = from + t.warp();
    const bool active = index < at.tiles;
    const Place place = place_of(task.shape, at, active ? index : 0);
    TailSink sink{shared.staged[t.warp()], nullptr};
    TailPlace tails{};
    // Once, or with a tail that did not fit twice; one call, as it takes many registers.
    for (bool again = false;; again = true) {
      const std::uint32_t own =
          active ? encode_tile(t, task, place, at, index, aligned, tile, sink) : 0;
      if (again) break;
      tails = place_tails(t, shared.tail_bytes, own);
      if (end + tails.all >= raw_end) return encode_raw(t, task);
      sink.body = task.body + end + tails.before;
      if (own > kStagedBytes) continue;
      for (std::uint32_t i = t.lane(); i < own; i += kWarpThreads) sink.body[i] = sink.staged[i];
      break;
    }
    end += tails.all;
    t.sync_block();  // before tail_bytes are others'
  }
  const std::size_t padded = round_up(end, kBodyAlignment);
  if (padded >= raw_end) return encode_raw(t, task);
  store_zeros(t, task.body, end, padded);
  store_prefix(t, task, Mode::kCoded);
  if (t.index() == 0) *task.body_bytes = static_cast<std::uint32_t>(padded);
}

}  // namespace kvlane::channel
