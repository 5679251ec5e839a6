// Tiles of `splitzip:channel` with AVX-512: a row of 64 channels is one vector.
//
// Encode reads a tile once, splits every row, stores sign and mantissa and keeps the exponents (4
// KB); folds them to the bases; and goes over them again: distances, codes of four rows into one
// vector, escapes packed by vpcompressb. Decode goes the other way, from the raw bytes to layer 1,
// and puts escapes in their places by vpexpandb. Most of the time goes into a dozen operations a
// row, half of them on the one port that shuffles; memory is the bound beyond the caches.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "codec/channel_tile.h"

namespace kvlane::channel {
namespace {

// Vectors of constants: initialised from bytes, as a function call before main() would be.
struct alignas(64) Bytes64 {
  std::uint8_t bytes[64];
  __m512i vector() const { return _mm512_load_si512(bytes); }
};

// Distances are looked up at distance + kTableOffset, cut at the last entry, which is an escape.
constexpr int kTableOffset = 8;
struct Tables {
  Bytes64 low, high;                // places of the low and the high bytes of 64 values
  Bytes64 first_half, second_half;  // of values 0 to 31 and 32 to 63: low and high byte in turn
  Bytes64 codes[kLayers];
  Bytes64 distances[kLayers];  // of the code in the lowest two bits of an index
};

constexpr Tables make_tables() {
  Tables t{};
  for (int i = 0; i < 64; ++i) {
    t.low.bytes[i] = static_cast<std::uint8_t>(2 * i);
    t.high.bytes[i] = static_cast<std::uint8_t>(2 * i + 1);
    t.first_half.bytes[i] = static_cast<std::uint8_t>(i / 2 + (i % 2 != 0 ? 64 : 0));
    t.second_half.bytes[i] = static_cast<std::uint8_t>(32 + i / 2 + (i % 2 != 0 ? 64 : 0));
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int i = 0; i < 64; ++i) {
      t.codes[layer].bytes[i] = kEscape;
      t.distances[layer].bytes[i] = i % 4 != 3 ? kSymbols[layer][i % 4] : 0;
    }
    for (unsigned c = 0; c < kEscape; ++c) {
      t.codes[layer].bytes[(kSymbols[layer][c] + kTableOffset) & 0xFF] =
          static_cast<std::uint8_t>(c);
    }
  }
  return t;
}
constexpr Tables kTables = make_tables();

inline __mmask64 first_lanes(std::size_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}

// Lanes of the k-th codes in a group of `bytes` bytes and `codes` codes.
inline __mmask64 group_lanes(std::size_t bytes, std::size_t codes, std::size_t k) {
  const std::size_t before = k * bytes;
  if (codes <= before) return 0;
  const std::size_t left = codes - before;
  return first_lanes(left < bytes ? left : bytes);
}

template <bool kStream>
inline void store_vector(std::byte* at, __mmask64 lanes, __m512i v) {
  if constexpr (kStream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v);
  } else {
    _mm512_mask_storeu_epi8(at, lanes, v);
  }
}

// Copies with vectors, up to 63 bytes too many on both sides.
inline void copy_slack(const std::uint8_t* from, std::size_t count, std::byte* to) {
  for (std::size_t i = 0; i < count; i += 64) {
    _mm512_storeu_si512(to + i, _mm512_loadu_si512(from + i));
  }
}

inline std::size_t count_lanes(__mmask64 lanes) {
  return static_cast<std::size_t>(_mm_popcnt_u64(lanes));
}

// ------------------------------------------------------------------------------------------------
// Encoder.

template <bool kStream>
inline void split_rows(const EncodeTile& tile, __mmask64 lanes, TileScratch& scratch) {
  const __m512i low = kTables.low.vector();
  const __m512i high = kTables.high.vector();
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i one = _mm512_set1_epi8(1);
  const auto first = static_cast<__mmask32>(lanes);
  const auto second = static_cast<__mmask32>(lanes >> 32);
  for (int r = 0; r < tile.rows; ++r) {
    const std::byte* const row = tile.values + 2 * r * tile.row_values;
    const __m512i a = _mm512_maskz_loadu_epi16(first, row);
    const __m512i b = _mm512_maskz_loadu_epi16(second, row + 64);
    const __m512i l = _mm512_permutex2var_epi8(a, low, b);
    const __m512i h = _mm512_permutex2var_epi8(a, high, b);
    // By bits: h where `sign` is set, else l; and twice h, or the bit of l that `one` takes.
    const __m512i rest = _mm512_ternarylogic_epi64(sign, h, l, 0xCA);
    const __m512i exponent =
        _mm512_ternarylogic_epi64(_mm512_add_epi8(h, h), _mm512_srli_epi16(l, 7), one, 0xF8);
    store_vector<kStream>(tile.sign_mantissa + r * tile.row_values, lanes, rest);
    _mm512_store_si512(scratch.exponents[r], exponent);
  }
  for (int r = tile.rows; r < kTileRows; ++r) {
    _mm512_store_si512(scratch.exponents[r], _mm512_load_si512(scratch.exponents[r - tile.rows]));
  }
}

inline __m512i fold(const TileScratch& scratch) {
  const auto row = [&](int r) { return _mm512_load_si512(scratch.exponents[r]); };
  __m512i rows[16];
  for (int i = 0; i < 16; ++i) {
    rows[i] = _mm512_max_epu8(_mm512_max_epu8(row(i), row(i + 32)),
                              _mm512_max_epu8(row(i + 16), row(i + 48)));
  }
  for (int i = 0; i < 8; ++i) rows[i] = _mm512_min_epu8(rows[i], rows[i + 8]);
  for (int i = 0; i < 4; ++i) rows[i] = _mm512_max_epu8(rows[i], rows[i + 4]);
  for (int i = 0; i < 2; ++i) rows[i] = _mm512_min_epu8(rows[i], rows[i + 2]);
  return _mm512_max_epu8(rows[0], rows[1]);
}

// The greatest exponent that a fifth of the bases reaches, bit by bit.
inline unsigned choose_anchor(__m512i bases, __mmask64 lanes, int channels) {
  unsigned anchor = 0;
  for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
    const __m512i v = _mm512_set1_epi8(static_cast<char>(anchor | bit));
    const auto reached =
        static_cast<int>(count_lanes(_mm512_mask_cmpge_epu8_mask(lanes, bases, v)));
    anchor = 5 * reached >= channels ? anchor | bit : anchor;
  }
  return anchor;
}

// Appends the lanes of `v` to the `count` elements of a layer.
inline void append(__mmask64 lanes, __m512i v, std::uint8_t* layer, std::size_t& count) {
  _mm512_storeu_si512(layer + count, _mm512_maskz_compress_epi8(lanes, v));
  count += count_lanes(lanes);
}

// Layer-1 codes of the bases.
inline void encode_bases(const EncodeTile& tile, __m512i bases, unsigned anchor, __mmask64 lanes,
                         std::uint8_t* next, std::size_t& escapes) {
  const __m512i three = _mm512_set1_epi8(kEscape);
  const __m512i distance = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(anchor)), bases);
  const __m512i codes = _mm512_maskz_min_epu8(lanes, distance, three);
  append(_mm512_mask_cmpge_epu8_mask(lanes, distance, three), distance, next, escapes);
  alignas(64) std::uint8_t sequence[128];
  _mm512_store_si512(sequence, codes);
  _mm512_store_si512(sequence + 64, _mm512_setzero_si512());
  const std::size_t bytes = packed_bytes(tile.channels);
  __m128i packed = _mm_setzero_si128();
  for (std::size_t k = 0; k < 4; ++k) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sequence + k * bytes));
    packed = _mm_or_si128(packed, _mm_slli_epi16(part, static_cast<int>(2 * k)));
  }
  _mm_mask_storeu_epi8(tile.base_codes, static_cast<__mmask16>(first_lanes(bytes)), packed);
}

template <bool kStream>
inline void encode_rows(const EncodeTile& tile, __m512i bases, __mmask64 lanes,
                        TileScratch& scratch, std::size_t& escapes) {
  const __m512i three = _mm512_set1_epi8(kEscape);
  std::uint8_t* const next = scratch.layers[0];
  const auto code = [&](int r) __attribute__((always_inline)) {
    const char* const ahead =
        reinterpret_cast<const char*>(tile.next_values + 2 * r * tile.row_values);
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(ahead + 64, _MM_HINT_T0);
    const __m512i distance = _mm512_sub_epi8(bases, _mm512_load_si512(scratch.exponents[r]));
    append(_mm512_mask_cmpge_epu8_mask(lanes, distance, three), distance, next, escapes);
    return _mm512_min_epu8(distance, three);
  };
  std::byte* codes = tile.codes;
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) {
    const __m512i a = code(r);
    const __m512i b = _mm512_slli_epi16(code(r + 1), 2);
    const __m512i c = _mm512_slli_epi16(code(r + 2), 4);
    const __m512i d = _mm512_slli_epi16(code(r + 3), 6);
    const __m512i all = _mm512_or_si512(_mm512_ternarylogic_epi64(a, b, c, 0xFE), d);
    store_vector<kStream>(codes, lanes, all);
    codes += tile.channels;
  }
  if (r < tile.rows) {
    __m512i all = _mm512_setzero_si512();
    for (int k = 0; r + k < tile.rows; ++k) {
      all = _mm512_or_si512(all, _mm512_sll_epi16(code(r + k), _mm_cvtsi32_si128(2 * k)));
    }
    _mm512_mask_storeu_epi8(codes, lanes, all);
  }
}

// Codes of the `count` elements of a layer, packed; returns how many escaped to `next`.
inline std::size_t encode_layer(const std::uint8_t* layer, std::size_t count, int index,
                                std::byte* out, std::uint8_t* next) {
  const __m512i table = kTables.codes[index].vector();
  const __m512i three = _mm512_set1_epi8(kEscape);
  const __m512i offset = _mm512_set1_epi8(kTableOffset);
  const __m512i last = _mm512_set1_epi8(63);
  std::size_t escapes = 0;
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t bytes = group_bytes(count - first);
    __m512i packed = _mm512_setzero_si512();
    for (std::size_t k = 0; k < 4; ++k) {
      const __mmask64 lanes = group_lanes(bytes, count - first, k);
      const __m512i distance = _mm512_loadu_si512(layer + first + k * bytes);
      const __m512i place = _mm512_min_epu8(_mm512_add_epi8(distance, offset), last);
      const __m512i codes = _mm512_maskz_permutexvar_epi8(lanes, place, table);
      append(_mm512_cmpeq_epi8_mask(codes, three), distance, next, escapes);
      packed = _mm512_or_si512(packed,
                               _mm512_sll_epi16(codes, _mm_cvtsi32_si128(static_cast<int>(2 * k))));
    }
    _mm512_storeu_si512(out, packed);
    out += bytes;
  }
  return escapes;
}

template <bool kStream>
inline EncodedTile encode_tile(const EncodeTile& tile, __mmask64 lanes, TileScratch& scratch) {
  split_rows<kStream>(tile, lanes, scratch);
  const __m512i bases = fold(scratch);
  const unsigned anchor = choose_anchor(bases, lanes, tile.channels);
  std::size_t escapes = 0;
  encode_bases(tile, bases, anchor, lanes, scratch.layers[0], escapes);
  encode_rows<kStream>(tile, bases, lanes, scratch, escapes);
  EncodedTile encoded;
  encoded.anchor = static_cast<std::uint8_t>(anchor);
  std::byte* tail = scratch.tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    const std::size_t count = escapes;
    encoded.counts.escapes[layer - 1] = static_cast<std::uint16_t>(count);
    escapes = encode_layer(scratch.layers[layer - 1], count, layer, tail, scratch.layers[layer]);
    tail += packed_bytes(count);
  }
  encoded.counts.escapes[kLayers - 1] = static_cast<std::uint16_t>(escapes);
  copy_slack(scratch.layers[kLayers - 1], escapes, tail);
  return encoded;
}

EncodedTile encode(const EncodeTile& tile, TileScratch& scratch) {
  if (tile.stream) return encode_tile<true>(tile, ~__mmask64{0}, scratch);
  if (tile.channels == kTileChannels) return encode_tile<false>(tile, ~__mmask64{0}, scratch);
  return encode_tile<false>(tile, first_lanes(tile.channels), scratch);
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// Escapes of one layer, in order; `taken` may run ahead of `elements`, but not past the scratch: no
// layer has more codes than its buffer has bytes.
struct Elements {
  const std::uint8_t* elements;
  std::size_t taken = 0;

  // `distances`, and in the lanes of code 3 the next elements.
  __m512i fill(__m512i distances, __m512i codes, __mmask64 lanes) {
    const __mmask64 escaped = _mm512_mask_cmpeq_epi8_mask(lanes, codes, _mm512_set1_epi8(kEscape));
    const __m512i filled =
        _mm512_mask_expand_epi8(distances, escaped, _mm512_loadu_si512(elements + taken));
    taken += count_lanes(escaped);
    return filled;
  }
};

inline __m512i code_of(__m512i packed, std::size_t k) {
  const __m512i shifted = _mm512_srl_epi16(packed, _mm_cvtsi32_si128(static_cast<int>(2 * k)));
  return _mm512_and_si512(shifted, _mm512_set1_epi8(kEscape));
}

// The `count` distances of a layer. False when bits behind its codes are set.
inline bool decode_layer(const std::byte* in, std::size_t count, int index, Elements& escapes,
                         std::uint8_t* layer) {
  const __m512i table = kTables.distances[index].vector();
  __mmask64 set = 0;
  for (std::size_t first = 0; first < count; first += kGroupCodes) {
    const std::size_t bytes = group_bytes(count - first);
    const __m512i packed = _mm512_maskz_loadu_epi8(first_lanes(bytes), in);
    for (std::size_t k = 0; k < 4; ++k) {
      const __mmask64 lanes = group_lanes(bytes, count - first, k);
      const __m512i codes = code_of(packed, k);
      set |= _mm512_mask_test_epi8_mask(~lanes, codes, codes);
      const __m512i distances = _mm512_permutexvar_epi8(codes, table);
      _mm512_storeu_si512(layer + first + k * bytes, escapes.fill(distances, codes, lanes));
    }
    in += bytes;
  }
  return set == 0;
}

// The values of one row: `distances` below `bases`, with sign and mantissa from `rest`.
template <bool kStream>
inline void join_row(__m512i bases, __m512i distances, __m512i rest, __mmask64 lanes,
                     std::byte* out) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i exponent = _mm512_sub_epi8(bases, distances);
  const __m512i high = _mm512_ternarylogic_epi64(sign, rest, _mm512_srli_epi16(exponent, 1), 0xCA);
  const __m512i low = _mm512_ternarylogic_epi64(sign, _mm512_slli_epi16(exponent, 7), rest, 0xCA);
  const __m512i a = _mm512_permutex2var_epi8(low, kTables.first_half.vector(), high);
  const __m512i b = _mm512_permutex2var_epi8(low, kTables.second_half.vector(), high);
  if constexpr (kStream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(out + 64), b);
  } else {
    _mm512_mask_storeu_epi16(out, static_cast<__mmask32>(lanes), a);
    _mm512_mask_storeu_epi16(out + 64, static_cast<__mmask32>(lanes >> 32), b);
  }
}

template <bool kStream>
inline bool decode_rows(const DecodeTile& tile, __m512i bases, __mmask64 lanes, Elements& escapes) {
  const auto row = [&](__m512i codes, int r) __attribute__((always_inline)) {
    const std::size_t first = r * tile.row_values;
    const __m512i rest = _mm512_maskz_loadu_epi8(lanes, tile.sign_mantissa + first);
    join_row<kStream>(bases, escapes.fill(codes, codes, lanes), rest, lanes,
                      tile.values + 2 * first);
  };
  const __m512i three = _mm512_set1_epi8(kEscape);
  const std::byte* in = tile.codes;
  int r = 0;
  for (; r + 4 <= tile.rows; r += 4) {
    const __m512i packed = _mm512_maskz_loadu_epi8(lanes, in);
    row(_mm512_and_si512(packed, three), r);
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 2), three), r + 1);
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 4), three), r + 2);
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 6), three), r + 3);
    in += tile.channels;
  }
  if (r == tile.rows) return true;
  const __m512i packed = _mm512_maskz_loadu_epi8(lanes, in);
  std::size_t k = 0;
  for (; r < tile.rows; ++r, ++k) row(code_of(packed, k), r);
  for (; k < 4; ++k) {
    const __m512i codes = code_of(packed, k);
    if (_mm512_test_epi8_mask(codes, codes) != 0) return false;
  }
  return true;
}

template <bool kStream>
inline bool decode_tile(const DecodeTile& tile, __mmask64 lanes, TileScratch& scratch) {
  const std::uint16_t* const counts = tile.counts.escapes;
  const std::byte* parts[kLayers];  // of layers 2 to 4; then the raw bytes
  parts[0] = tile.tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + packed_bytes(counts[layer - 1]);
  }
  for (std::size_t i = 0; i < counts[kLayers - 1]; i += 64) {
    const __mmask64 some = first_lanes(counts[kLayers - 1] - i);
    _mm512_storeu_si512(scratch.layers[kLayers - 1] + i,
                        _mm512_maskz_loadu_epi8(some, parts[kLayers - 1] + i));
  }
  bool good = true;
  for (int layer = kLayers - 1; layer > 0; --layer) {
    Elements escapes{scratch.layers[layer]};
    good &= decode_layer(parts[layer - 1], counts[layer - 1], layer, escapes,
                         scratch.layers[layer - 1]);
    good &= escapes.taken == counts[layer];
  }
  Elements escapes{scratch.layers[0]};
  alignas(64) std::uint8_t base_distances[64 + 64];
  good &= decode_layer(tile.base_codes, tile.channels, 0, escapes, base_distances);
  const __m512i bases = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(tile.anchor)),
                                        _mm512_load_si512(base_distances));
  good &= decode_rows<kStream>(tile, bases, lanes, escapes);
  return good && escapes.taken == counts[0];
}

bool decode(const DecodeTile& tile, TileScratch& scratch) {
  if (tile.stream) return decode_tile<true>(tile, ~__mmask64{0}, scratch);
  if (tile.channels == kTileChannels) return decode_tile<false>(tile, ~__mmask64{0}, scratch);
  return decode_tile<false>(tile, first_lanes(tile.channels), scratch);
}

void finish_stream() { _mm_sfence(); }

}  // namespace

const Kernels kAvx512Kernels = {encode, decode, finish_stream};

}  // namespace kvlane::channel
