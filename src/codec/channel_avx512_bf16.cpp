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

#include "codec/channel_kernels.h"

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
  // Places of the bytes of 32 values: the low ones and then the high ones, or the high ones first.
  Bytes64 low_high, high_low;
  Bytes64 codes[kLayers];
  Bytes64 distances[kLayers];  // of the code in the lowest two bits of an index
};

constexpr Tables make_tables() {
  Tables t{};
  for (int i = 0; i < 64; ++i) {
    t.low_high.bytes[i] = static_cast<std::uint8_t>(2 * i % 64 + (i < 32 ? 0 : 1));
    t.high_low.bytes[i] = static_cast<std::uint8_t>(2 * i % 64 + (i < 32 ? 1 : 0));
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

// How a tile's rows are read and written. A mask costs a little even when it is full.
enum class Rows { kPart, kFull, kStream };

template <Rows kRows>
inline __m512i load_bytes(const std::byte* at, __mmask64 lanes) {
  return kRows == Rows::kPart ? _mm512_maskz_loadu_epi8(lanes, at) : _mm512_loadu_si512(at);
}

template <Rows kRows>
inline void store_bytes(std::byte* at, __mmask64 lanes, __m512i v) {
  if constexpr (kRows == Rows::kStream) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(at), v);
  } else if constexpr (kRows == Rows::kFull) {
    _mm512_storeu_si512(at, v);
  } else {
    _mm512_mask_storeu_epi8(at, lanes, v);
  }
}

// For what is read later, soon, and for what is written soon. Always inlined, or g++ 12 takes them
// for functions without effect and drops their calls.
[[gnu::always_inline]] inline void fetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}
[[gnu::always_inline]] inline void fetch_near(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T0);
}
template <Rows kRows>
[[gnu::always_inline]] inline void fetch_to_write(const std::byte* at) {
  if constexpr (kRows != Rows::kStream) fetch_near(at);
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

// Lanes of two vectors of 32 values.
struct ValueLanes {
  explicit ValueLanes(__mmask64 lanes)
      : first(_mm512_movepi8_mask(_mm512_movm_epi16(static_cast<__mmask32>(lanes)))),
        second(_mm512_movepi8_mask(_mm512_movm_epi16(static_cast<__mmask32>(lanes >> 32)))) {}
  __mmask64 first, second;
};

// Splits 64 values of a row: sign and mantissa to `rest_out`, exponents to `exponents`.
template <Rows kRows>
inline void split_vector(const std::byte* values, std::byte* rest_out, __mmask64 lanes,
                         std::uint8_t* exponents) {
  const ValueLanes in(lanes);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i one = _mm512_set1_epi8(1);
  const __m512i a = load_bytes<kRows>(values, in.first);
  const __m512i b = load_bytes<kRows>(values + 64, in.second);
  // Two permutations of one vector each: those of two vectors take three operations.
  const __m512i lh = _mm512_permutexvar_epi8(kTables.low_high.vector(), a);
  const __m512i hl = _mm512_permutexvar_epi8(kTables.high_low.vector(), b);
  const __m512i l = _mm512_mask_blend_epi64(0xF0, lh, hl);
  const __m512i h = _mm512_shuffle_i64x2(lh, hl, 0x4E);
  // By bits: h where `sign` is set, else l; and twice h, or the bit of l that `one` takes.
  const __m512i rest = _mm512_ternarylogic_epi64(sign, h, l, 0xCA);
  const __m512i exponent =
      _mm512_ternarylogic_epi64(_mm512_add_epi8(h, h), _mm512_srli_epi16(l, 7), one, 0xF8);
  store_bytes<kRows>(rest_out, lanes, rest);
  _mm512_store_si512(exponents, exponent);
}

using Exponents = std::uint8_t[kTileRows][kTileChannels];

// Exponents of missing rows repeat those that there are. `kRows` is that of all tiles but the last,
// kLast that of the last.
template <Rows kRows, Rows kLast>
inline void split_rows(const EncodeBand& band, Exponents* exponents) {
  const int last = tile_count(band.channels) - 1;
  const __mmask64 lanes = first_lanes(tile_channels(band.channels, last));
  const std::byte* values = band.values;
  std::byte* rest_out = band.sign_mantissa;
  const std::size_t row_values = band.row_values;
  const std::size_t ahead = rows_ahead(last + 1) * row_values;
  const int rows = band.rows;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i <= last; ++i) {
      fetch_near(values + 128 * i + 2 * ahead);
      fetch_near(values + 128 * i + 2 * ahead + 64);
      if (i < last) {
        fetch_to_write<kRows>(rest_out + 64 * i + ahead);
        split_vector<kRows>(values + 128 * i, rest_out + 64 * i, ~__mmask64{0}, exponents[i][r]);
      } else {
        fetch_to_write<kLast>(rest_out + 64 * i + ahead);
        split_vector<kLast>(values + 128 * i, rest_out + 64 * i, lanes, exponents[i][r]);
      }
    }
    values += 2 * row_values;
    rest_out += row_values;
  }
  for (int r = rows; r < kTileRows; ++r) {
    for (int i = 0; i <= last; ++i) {
      _mm512_store_si512(exponents[i][r], _mm512_load_si512(exponents[i][r - rows]));
    }
  }
}

inline __m512i fold(const Exponents& exponents) {
  const auto row = [&](int r) { return _mm512_load_si512(exponents[r]); };
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

// Layer-1 codes of the bases; what escapes goes before `next`. Returns how many.
inline std::size_t encode_bases(int channels, __m512i bases, unsigned anchor, __mmask64 lanes,
                                std::uint8_t* next, std::byte* out) {
  const __m512i three = _mm512_set1_epi8(kEscape);
  const __m512i distance = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(anchor)), bases);
  const __mmask64 escaped = _mm512_mask_cmpge_epu8_mask(lanes, distance, three);
  const std::size_t escapes = count_lanes(escaped);
  _mm512_mask_storeu_epi8(next - escapes, first_lanes(escapes),
                          _mm512_maskz_compress_epi8(escaped, distance));
  alignas(64) std::uint8_t sequence[128];
  _mm512_store_si512(sequence, _mm512_maskz_min_epu8(lanes, distance, three));
  _mm512_store_si512(sequence + 64, _mm512_setzero_si512());
  const std::size_t bytes = packed_bytes(channels);
  __m128i packed = _mm_setzero_si128();
  for (std::size_t k = 0; k < 4; ++k) {
    const __m128i part = _mm_loadu_si128(reinterpret_cast<const __m128i*>(sequence + k * bytes));
    packed = _mm_or_si128(packed, _mm_slli_epi16(part, static_cast<int>(2 * k)));
  }
  _mm_mask_storeu_epi8(out, static_cast<__mmask16>(first_lanes(bytes)), packed);
  return escapes;
}

// Parts of one tile of a band.
struct Tile {
  int rows;
  int channels;
  __mmask64 lanes;
  const std::byte* next_values;  // to be fetched, and the bytes from row to row there
  std::size_t row_bytes;         // 0: nothing is to be fetched
};

// Codes of the rows; what escapes goes to `next`. Returns how many.
template <Rows kRows>
inline std::size_t encode_rows(const Tile& tile, __m512i bases, const Exponents& exponents,
                               std::byte* codes, std::uint8_t* next) {
  const __m512i three = _mm512_set1_epi8(kEscape);
  const __mmask64 lanes = tile.lanes;
  const std::byte* ahead = tile.next_values;
  const std::size_t row_bytes = tile.row_bytes;
  const std::size_t channels = kRows == Rows::kPart ? tile.channels : kTileChannels;
  const int rows = tile.rows;
  std::size_t escapes = 0;
  const auto code = [&](int r) __attribute__((always_inline)) {
    if (row_bytes != 0) {
      fetch(ahead);
      fetch(ahead + 64);
      ahead += row_bytes;
    }
    const __m512i distance = _mm512_sub_epi8(bases, _mm512_load_si512(exponents[r]));
    const __mmask64 escaped = kRows == Rows::kPart
                                  ? _mm512_mask_cmpge_epu8_mask(lanes, distance, three)
                                  : _mm512_cmpge_epu8_mask(distance, three);
    append(escaped, distance, next, escapes);
    return _mm512_min_epu8(distance, three);
  };
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    const __m512i a = code(r);
    const __m512i b = _mm512_slli_epi16(code(r + 1), 2);
    const __m512i c = _mm512_slli_epi16(code(r + 2), 4);
    const __m512i d = _mm512_slli_epi16(code(r + 3), 6);
    const __m512i all = _mm512_or_si512(_mm512_ternarylogic_epi64(a, b, c, 0xFE), d);
    store_bytes<kRows>(codes, lanes, all);
    codes += channels;
  }
  if (r < rows) {
    __m512i all = _mm512_setzero_si512();
    for (int k = 0; r + k < rows; ++k) {
      all = _mm512_or_si512(all, _mm512_sll_epi16(code(r + k), _mm_cvtsi32_si128(2 * k)));
    }
    _mm512_mask_storeu_epi8(codes, lanes, all);
  }
  return escapes;
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

// One tile whose exponents are split off; returns the end of its tail.
template <Rows kRows>
inline std::byte* encode_tile(const Tile& tile, const Exponents& exponents, std::byte* base_codes,
                              std::byte* codes, EncodeScratch& scratch, std::byte* tail,
                              TileTables& tables) {
  const __m512i bases = fold(exponents);
  // Rows before bases, though their escapes come later: nothing then waits for the anchor.
  std::uint8_t* const from_rows = scratch.layers[0].bytes + kTileChannels;
  std::size_t count = encode_rows<kRows>(tile, bases, exponents, codes, from_rows);
  const unsigned anchor = choose_anchor(bases, tile.lanes, tile.channels);
  const std::size_t from_bases =
      encode_bases(tile.channels, bases, anchor, tile.lanes, from_rows, base_codes);
  count += from_bases;
  tables.anchor = static_cast<std::uint8_t>(anchor);
  const std::uint8_t* elements = from_rows - from_bases;
  for (int layer = 1; layer < kLayers; ++layer) {
    tables.counts.escapes[layer - 1] = static_cast<std::uint16_t>(count);
    std::uint8_t* const next = scratch.layers[layer].bytes;
    const std::size_t escapes = encode_layer(elements, count, layer, tail, next);
    tail += packed_bytes(count);
    elements = next;
    count = escapes;
  }
  tables.counts.escapes[kLayers - 1] = static_cast<std::uint16_t>(count);
  copy_slack(elements, count, tail);
  return tail + count;
}

template <Rows kRows, Rows kLast>
inline void encode_band(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables) {
  split_rows<kRows, kLast>(band, scratch.exponents);
  std::byte* base_codes = band.base_codes;
  std::byte* codes = band.codes;
  std::byte* tail = scratch.tails;
  // Bands of whole rows follow one another in memory: what split_rows() fetches is enough for them.
  const bool whole = band.row_values == static_cast<std::size_t>(band.channels);
  const std::size_t row_bytes = whole ? 0 : 2 * band.row_values;
  for (int i = 0; i < tile_count(band.channels); ++i) {
    const int channels = tile_channels(band.channels, i);
    const Tile tile{band.rows, channels, first_lanes(channels), band.next_values + 128 * i,
                    row_bytes};
    tail = channels == kTileChannels ? encode_tile<kRows>(tile, scratch.exponents[i], base_codes,
                                                          codes, scratch, tail, tables[i])
                                     : encode_tile<kLast>(tile, scratch.exponents[i], base_codes,
                                                          codes, scratch, tail, tables[i]);
    base_codes += packed_bytes(channels);
    codes += packed_bytes(band.rows) * channels;
  }
}

void encode(const EncodeBand& band, EncodeScratch& scratch, TileTables* tables) {
  if (band.stream) {
    encode_band<Rows::kStream, Rows::kStream>(band, scratch, tables);
  } else if (band.channels % kTileChannels == 0) {
    encode_band<Rows::kFull, Rows::kFull>(band, scratch, tables);
  } else {
    encode_band<Rows::kFull, Rows::kPart>(band, scratch, tables);
  }
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// Escapes of one layer, in order; `taken` may run ahead of `elements`, but not past the scratch: no
// layer has more codes than its buffer has bytes.
struct Elements {
  const std::uint8_t* elements;
  std::size_t taken = 0;

  // `distances`, and in the lanes of code 3 the next elements.
  template <Rows kRows>
  __m512i fill(__m512i distances, __m512i codes, __mmask64 lanes) {
    const __m512i three = _mm512_set1_epi8(kEscape);
    const __mmask64 escaped = kRows == Rows::kPart
                                  ? _mm512_mask_cmpeq_epi8_mask(lanes, codes, three)
                                  : _mm512_cmpeq_epi8_mask(codes, three);
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
      _mm512_storeu_si512(layer + first + k * bytes,
                          escapes.fill<Rows::kPart>(distances, codes, lanes));
    }
    in += bytes;
  }
  return set == 0;
}

// The values of one row: `distances` below `bases`, with sign and mantissa from `rest`.
template <Rows kRows>
inline void join_row(__m512i bases, __m512i distances, __m512i rest, __mmask64 lanes,
                     std::byte* out) {
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i exponent = _mm512_sub_epi8(bases, distances);
  const __m512i high = _mm512_ternarylogic_epi64(sign, rest, _mm512_srli_epi16(exponent, 1), 0xCA);
  const __m512i low = _mm512_ternarylogic_epi64(sign, _mm512_slli_epi16(exponent, 7), rest, 0xCA);
  // Unpacking goes by quarters, of 8 values each: 0, 2, 4 and 6, then 1, 3, 5 and 7.
  const __m512i even = _mm512_unpacklo_epi8(low, high);
  const __m512i odd = _mm512_unpackhi_epi8(low, high);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  const __m512i a = _mm512_permutex2var_epi64(even, first, odd);
  const __m512i b = _mm512_permutex2var_epi64(even, second, odd);
  if constexpr (kRows == Rows::kPart) {
    _mm512_mask_storeu_epi16(out, static_cast<__mmask32>(lanes), a);
    _mm512_mask_storeu_epi16(out + 64, static_cast<__mmask32>(lanes >> 32), b);
  } else {
    store_bytes<kRows>(out, lanes, a);
    store_bytes<kRows>(out + 64, lanes, b);
  }
}

// The elements of layer 2, from the raw bytes backwards.
inline bool decode_tail(const std::byte* tail, const TileCounts& tile, DecodeScratch& scratch,
                        std::uint8_t* elements) {
  const std::uint16_t* const counts = tile.escapes;
  const std::byte* parts[kLayers];  // of layers 2 to 4; then the raw bytes
  parts[0] = tail;
  for (int layer = 1; layer < kLayers; ++layer) {
    parts[layer] = parts[layer - 1] + packed_bytes(counts[layer - 1]);
  }
  std::uint8_t* const raw = scratch.layers[kLayers - 2].bytes;
  for (std::size_t i = 0; i < counts[kLayers - 1]; i += 64) {
    const __mmask64 some = first_lanes(counts[kLayers - 1] - i);
    _mm512_storeu_si512(raw + i, _mm512_maskz_loadu_epi8(some, parts[kLayers - 1] + i));
  }
  bool good = true;
  for (int layer = kLayers - 1; layer > 0; --layer) {
    Elements escapes{scratch.layers[layer - 1].bytes};
    std::uint8_t* const out = layer > 1 ? scratch.layers[layer - 2].bytes : elements;
    good &= decode_layer(parts[layer - 1], counts[layer - 1], layer, escapes, out);
    good &= escapes.taken == counts[layer];
  }
  return good;
}

// What decoding the rows of a tile needs and moves on.
struct RowReader {
  Elements escapes;
  const std::byte* codes;
  __m512i bases;
};

// How far ahead to fetch: what is read from the same place of the next band, what is written some
// rows further.
struct Ahead {
  std::ptrdiff_t rests, codes;
  std::size_t values;
};

// Up to four rows of one tile: those whose codes are in the same bytes. False when codes of rows
// that are not there are set.
template <Rows kRows>
inline bool decode_rows(RowReader& reader, int rows, __mmask64 lanes, std::size_t row_values,
                        const std::byte* rest_in, const Ahead& ahead, std::byte* out) {
  static_assert(kSymbols[0][0] == 0 && kSymbols[0][1] == 1 && kSymbols[0][2] == 2,
                "codes of the first layer are distances");
  const __m512i three = _mm512_set1_epi8(kEscape);
  fetch(reader.codes + ahead.codes);
  const __m512i packed = load_bytes<kRows>(reader.codes, lanes);
  const __m512i bases = reader.bases;
  Elements elements = reader.escapes;
  const auto row = [&](__m512i codes) __attribute__((always_inline)) {
    fetch(rest_in + ahead.rests);
    fetch_to_write<kRows>(out + ahead.values);
    fetch_to_write<kRows>(out + ahead.values + 64);
    const __m512i rest = load_bytes<kRows>(rest_in, lanes);
    join_row<kRows>(bases, elements.fill<kRows>(codes, codes, lanes), rest, lanes, out);
    rest_in += row_values;
    out += 2 * row_values;
  };
  __mmask64 behind = 0;
  if (rows == 4) {
    row(_mm512_and_si512(packed, three));
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 2), three));
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 4), three));
    row(_mm512_and_si512(_mm512_srli_epi16(packed, 6), three));
  } else {
    for (int k = 0; k < 4; ++k) {
      const __m512i codes = code_of(packed, static_cast<std::size_t>(k));
      if (k < rows) {
        row(codes);
      } else {
        behind |= _mm512_mask_test_epi8_mask(lanes, codes, codes);
      }
    }
  }
  reader.escapes = elements;
  return behind == 0;
}

template <Rows kRows, Rows kLast>
inline int decode_band(const DecodeBand& band, DecodeScratch& scratch) {
  const int tiles = tile_count(band.channels);
  const int last = tiles - 1;
  const __mmask64 last_lanes = first_lanes(tile_channels(band.channels, last));
  RowReader readers[kDecodeBandTiles];
  bool good[kDecodeBandTiles];
  const std::byte* base_codes = band.base_codes;
  const std::byte* codes = band.codes;
  const std::byte* tail = band.tails;
  for (int i = 0; i < tiles; ++i) {
    const int channels = tile_channels(band.channels, i);
    const TileTables& tables = band.tiles[i];
    good[i] = decode_tail(tail, tables.counts, scratch, scratch.elements[i].bytes);
    readers[i].escapes = {scratch.elements[i].bytes};
    readers[i].codes = codes;
    good[i] &= decode_layer(base_codes, channels, 0, readers[i].escapes, scratch.bases[i]);
    readers[i].bases = _mm512_sub_epi8(_mm512_set1_epi8(static_cast<char>(tables.anchor)),
                                       _mm512_load_si512(scratch.bases[i]));
    base_codes += packed_bytes(channels);
    codes += packed_bytes(band.rows) * channels;
    tail += tail_bytes(tables.counts);
  }
  const Ahead ahead{.rests = band.next_sign_mantissa - band.sign_mantissa,
                    .codes = codes - band.codes,
                    .values = 2 * rows_ahead(tiles) * band.row_values};
  for (int r = 0; r < band.rows; r += 4) {
    const int rows = band.rows - r < 4 ? band.rows - r : 4;
    const std::byte* const rest_in = band.sign_mantissa + r * band.row_values;
    std::byte* const out = band.values + 2 * r * band.row_values;
    for (int i = 0; i < last; ++i) {
      good[i] &= decode_rows<kRows>(readers[i], rows, ~__mmask64{0}, band.row_values,
                                    rest_in + 64 * i, ahead, out + 128 * i);
      readers[i].codes += kTileChannels;
    }
    good[last] &= decode_rows<kLast>(readers[last], rows, last_lanes, band.row_values,
                                     rest_in + 64 * last, ahead, out + 128 * last);
    readers[last].codes += tile_channels(band.channels, last);
  }
  for (int i = 0; i < tiles; ++i) {
    if (!good[i] || readers[i].escapes.taken != band.tiles[i].counts.escapes[0]) return i;
  }
  return tiles;
}

int decode(const DecodeBand& band, DecodeScratch& scratch) {
  if (band.stream) return decode_band<Rows::kStream, Rows::kStream>(band, scratch);
  if (band.channels % kTileChannels == 0) {
    return decode_band<Rows::kFull, Rows::kFull>(band, scratch);
  }
  return decode_band<Rows::kFull, Rows::kPart>(band, scratch);
}

void finish_stream() { _mm_sfence(); }

}  // namespace

const Kernels kAvx512Bf16Kernels = {encode, decode, finish_stream};

}  // namespace kvlane::channel
