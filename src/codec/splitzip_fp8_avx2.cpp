// SplitZip of FP8 planes with AVX2: splitzip_avx2.cpp has bfloat16.
//
// A group of 128 values is four vectors of bytes in the order of places. Codes of 16 exponents are
// one byte shuffle, those of 32 two. Two vectors of nibbles pack into one and four of pairs into
// one, by shifts; the third bits are what movemask gives. Escapes and raw chunks are done chunk by
// chunk from the masks.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "codec/splitzip_kernels.h"

namespace kvlane::splitzip {

namespace {

// Constants, where fields_of() would be a function that other files have, too.
template <ElementType kType>
constexpr Fields kFields = fields_of(kType);

constexpr std::size_t kVectors = kGroupElements / 32;  // of a group
constexpr std::size_t kMasksPerChunk = 2 * kVectors;
// Ahead of what is read, and of what plain stores fill, as in splitzip_avx512_bf16.cpp.
constexpr std::size_t kPrefetchBytes = 2048;
constexpr std::size_t kPrefetchTargetBytes = 1024;

// Inlined by force: g++ 12 drops prefetches from functions that it does not inline.
__attribute__((always_inline)) inline void prefetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}

inline __m256i load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline void store(std::byte* at, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x);
}
inline __m256i bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }

// Bits of each byte moved down or up; what comes from the neighbour is masked away.
template <int kShift>
inline __m256i down(__m256i x) {
  return _mm256_and_si256(_mm256_srli_epi16(x, kShift), bytes_of(0xFF >> kShift));
}
template <int kShift>
inline __m256i up(__m256i x) {
  return _mm256_and_si256(_mm256_slli_epi16(x, kShift), bytes_of(0xFF << kShift & 0xFF));
}

inline __m256i rotate_left(__m256i x) { return _mm256_or_si256(_mm256_add_epi8(x, x), down<7>(x)); }
inline __m256i rotate_right(__m256i x) { return _mm256_or_si256(down<1>(x), up<7>(x)); }

// The codes of exponents, or CodeTables::kEscape.
template <ElementType kType>
class Coder {
 public:
  explicit Coder(const CodeTables& tables)
      : low_(half(tables.code_of)), high_(half(tables.code_of + 16)) {}
  __m256i operator()(__m256i exponents) const {
    const __m256i low = _mm256_shuffle_epi8(low_, exponents);
    if constexpr (kFields<kType>.exponent_bits == 4) return low;
    // Of exponents that are 5 bits, the highest chooses the table.
    return _mm256_blendv_epi8(low, _mm256_shuffle_epi8(high_, exponents),
                              _mm256_slli_epi16(exponents, 3));
  }

 private:
  static __m256i half(const std::uint8_t* codes) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)));
  }
  __m256i low_, high_;
};

// Three-bit fields of one group: bits 0 and 1, place p beside p + 32, p + 64 and p + 96; then
// bit 2.
inline void store_triples(const __m256i* triples, std::byte* pairs, std::byte* bits) {
  __m256i packed = _mm256_setzero_si256();
  for (std::size_t i = kVectors; i-- > 0;) {
    packed =
        _mm256_or_si256(_mm256_slli_epi16(packed, 2), _mm256_and_si256(triples[i], bytes_of(3)));
    const int third = _mm256_movemask_epi8(_mm256_slli_epi16(triples[i], 5));
    __builtin_memcpy(bits + 4 * i, &third, sizeof third);
  }
  store(pairs, packed);
}

inline void load_triples(const std::byte* pairs, const std::byte* bits, __m256i* triples) {
  const __m256i bytes_to_places =
      _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,  //
                       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i own_bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ULL));
  __m256i packed = load(pairs);
  for (std::size_t i = 0; i < kVectors; ++i) {
    int third;
    __builtin_memcpy(&third, bits + 4 * i, sizeof third);
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(third), bytes_to_places);
    const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own_bit), own_bit);
    triples[i] =
        _mm256_or_si256(_mm256_and_si256(packed, bytes_of(3)), _mm256_and_si256(set, bytes_of(4)));
    packed = _mm256_srli_epi16(packed, 2);
  }
}

inline void store_nibbles(const __m256i* nibbles, std::byte* out) {
  for (std::size_t i = 0; i < kVectors / 2; ++i) {
    const __m256i high = _mm256_slli_epi16(nibbles[i + kVectors / 2], 4);
    store(out + 32 * i, _mm256_or_si256(nibbles[i], high));
  }
}

inline void load_nibbles(const std::byte* in, __m256i* nibbles) {
  for (std::size_t i = 0; i < kVectors / 2; ++i) {
    const __m256i packed = load(in + 32 * i);
    nibbles[i] = _mm256_and_si256(packed, bytes_of(0x0F));
    nibbles[i + kVectors / 2] = down<4>(packed);
  }
}

template <ElementType kType>
inline unsigned exponent_of(std::byte value) {
  const auto bits = static_cast<unsigned>(value);
  return (bits << 1 & 0xFFU) >> kFields<kType>.rest_bits;
}

// Appends the escapes of one chunk to the table.
template <ElementType kType>
std::byte* write_escapes(const std::byte* values, const std::uint32_t* masks, std::byte* table) {
  for (unsigned word = 0; word < kMasksPerChunk; ++word) {
    for (std::uint32_t mask = masks[word]; mask != 0; mask &= mask - 1) {
      const unsigned place = 32 * word + static_cast<unsigned>(__builtin_ctz(mask));
      const auto escape =
          static_cast<std::uint16_t>(exponent_of<kType>(values[place]) << 8 | place);
      __builtin_memcpy(table, &escape, sizeof escape);
      table += sizeof escape;
    }
  }
  return table;
}

// A chunk with too many escapes: its codes become 0, its exponents go to the table.
template <ElementType kType>
std::byte* write_raw_chunk(const std::byte* values, const Streams<std::byte>& out,
                           std::byte* table) {
  const __m256i zero = _mm256_setzero_si256();
  if constexpr (kType == ElementType::kFp8E4m3) {
    store(out.pairs, zero);
    store(out.pairs + 32, zero);
    store(out.bits, zero);
  } else {
    for (std::size_t i = 0; i < kChunkElements / 2; i += 32) store(out.nibbles + i, zero);
  }
  for (std::size_t i = 0; i < kChunkElements; i += 32) {
    store(table + i, down<kFields<kType>.rest_bits>(rotate_left(load(values + i))));
  }
  return table + kChunkElements;
}

// One group; returns in `masks` where its escapes are.
template <ElementType kType>
inline void encode_group(const std::byte* values, const Coder<kType>& coder,
                         const Streams<std::byte>& out, std::uint32_t* masks) {
  __m256i codes[kVectors];
  __m256i rests[kVectors];
  for (std::size_t i = 0; i < kVectors; ++i) {
    const __m256i rotated = rotate_left(load(values + 32 * i));
    const __m256i code = coder(down<kFields<kType>.rest_bits>(rotated));
    masks[i] = static_cast<std::uint32_t>(_mm256_movemask_epi8(code));
    codes[i] = _mm256_and_si256(code, bytes_of(0x0F));
    rests[i] = _mm256_and_si256(rotated, bytes_of((1 << kFields<kType>.rest_bits) - 1));
  }
  store_nibbles(kType == ElementType::kFp8E4m3 ? rests : codes, out.nibbles);
  store_triples(kType == ElementType::kFp8E4m3 ? codes : rests, out.pairs, out.bits);
}

template <ElementType kType>
EncodeProgress encode(const EncodeTask& task) {
  const Coder<kType> coder(*task.tables);
  const std::byte* values = task.plane;
  Streams<std::byte> out = task.out;
  std::byte* table = task.table;
  std::byte* const table_end = task.table + 2 * task.table_words_max;
  std::size_t done = 0;
  for (; done < task.chunks; ++done) {
    // Room for the worst: one byte a value.
    if (static_cast<std::size_t>(table_end - table) < kChunkElements) break;
    for (std::size_t line = 0; line < kChunkElements; line += 64) {
      prefetch(values + line + kPrefetchBytes);
    }
    prefetch(out.nibbles + kPrefetchTargetBytes);
    prefetch(out.nibbles + kPrefetchTargetBytes + 64);
    prefetch(out.pairs + kPrefetchTargetBytes);
    std::uint32_t masks[kMasksPerChunk];
    encode_group<kType>(values, coder, out, masks);
    encode_group<kType>(values + kGroupElements, coder,
                        {out.nibbles + 64, nullptr, out.pairs + 32, out.bits + 16},
                        masks + kVectors);
    task.counts[done] = 0;
    int escapes = 0;
    for (const std::uint32_t mask : masks) escapes += __builtin_popcount(mask);
    if (escapes != 0) {
      if (escapes > static_cast<int>(kChunkEscapesMax)) {
        task.counts[done] = kRawChunk;
        table = write_raw_chunk<kType>(values, out, table);
      } else {
        task.counts[done] = static_cast<std::uint8_t>(escapes);
        table = write_escapes<kType>(values, masks, table);
      }
    }
    values += kChunkElements;
    out.nibbles += kChunkElements / 2;
    out.pairs += kChunkElements / 4;
    out.bits += kChunkElements / 8;
  }
  return {done, static_cast<std::size_t>(table - task.table) / 2};
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// Codes and rests of the 128 values of a group.
template <ElementType kType>
inline void load_group(const Streams<const std::byte>& in, __m256i* codes, __m256i* rests) {
  load_nibbles(in.nibbles, kType == ElementType::kFp8E4m3 ? rests : codes);
  load_triples(in.pairs, in.bits, kType == ElementType::kFp8E4m3 ? codes : rests);
}

template <ElementType kType>
inline __m256i join(__m256i exponents, __m256i rests) {
  return rotate_right(_mm256_or_si256(up<kFields<kType>.rest_bits>(exponents), rests));
}

// Exponents beyond the type's have bits here.
template <ElementType kType>
inline unsigned beyond(unsigned exponent) {
  return exponent >> kFields<kType>.exponent_bits;
}

// Puts the exponents of one chunk's escapes in place; false if places do not ascend or exponents
// are out of range.
template <ElementType kType>
bool patch(unsigned count, const std::byte* table, std::byte* values) {
  constexpr int kRestBits = kFields<kType>.rest_bits;
  unsigned wrong = 0;
  int previous = -1;
  for (unsigned i = 0; i < count; ++i) {
    std::uint16_t escape;
    __builtin_memcpy(&escape, table + 2 * i, sizeof escape);
    const int place = escape & 0xFF;
    const unsigned exponent = escape >> 8;
    wrong |= static_cast<unsigned>(place <= previous) | beyond<kType>(exponent);
    previous = place;
    // The value has the exponent of its code; sign and mantissa stay.
    const auto value = static_cast<unsigned>(values[place]);
    const unsigned kept = value & (0x80U | ((1U << (kRestBits - 1)) - 1));
    values[place] = static_cast<std::byte>((kept | exponent << (kRestBits - 1)) & 0xFFU);
  }
  return wrong == 0;
}

template <ElementType kType>
bool join_raw_chunk(const std::byte* table, const Streams<const std::byte>& in, std::byte* values) {
  __m256i all = _mm256_setzero_si256();
  for (std::size_t group = 0; group < 2; ++group) {
    __m256i codes[kVectors];
    __m256i rests[kVectors];
    load_group<kType>(
        {in.nibbles + 64 * group, nullptr, in.pairs + 32 * group, in.bits + 16 * group}, codes,
        rests);
    for (std::size_t i = 0; i < kVectors; ++i) {
      const std::size_t at = kGroupElements * group + 32 * i;
      const __m256i exponents = load(table + at);
      all = _mm256_or_si256(all, exponents);
      store(values + at, join<kType>(exponents, rests[i]));
    }
  }
  const __m256i outside = bytes_of(0xFF << kFields<kType>.exponent_bits & 0xFF);
  return _mm256_testz_si256(all, outside) != 0;
}

template <ElementType kType>
const std::byte* decode(const DecodeTask& task) {
  const __m256i codebook =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.codebook)));
  Streams<const std::byte> in = task.in;
  const std::byte* table = task.table;
  std::byte* values = task.plane;
  bool right = true;
  for (std::size_t chunk = 0; chunk < task.chunks; ++chunk) {
    prefetch(in.nibbles + kPrefetchBytes);
    prefetch(in.nibbles + kPrefetchBytes + 64);
    prefetch(in.pairs + kPrefetchBytes / 2);
    for (std::size_t line = 0; line < kChunkElements; line += 64) {
      prefetch(values + line + kPrefetchTargetBytes);
    }
    const unsigned count = task.counts[chunk];
    if (count == kRawChunk) {
      right &= join_raw_chunk<kType>(table, in, values);
      table += kChunkElements;
    } else {
      for (std::size_t group = 0; group < 2; ++group) {
        __m256i codes[kVectors];
        __m256i rests[kVectors];
        load_group<kType>(
            {in.nibbles + 64 * group, nullptr, in.pairs + 32 * group, in.bits + 16 * group}, codes,
            rests);
        for (std::size_t i = 0; i < kVectors; ++i) {
          store(values + kGroupElements * group + 32 * i,
                join<kType>(_mm256_shuffle_epi8(codebook, codes[i]), rests[i]));
        }
      }
      right &= patch<kType>(count, table, values);
      table += 2 * count;
    }
    in.nibbles += kChunkElements / 2;
    in.pairs += kChunkElements / 4;
    in.bits += kChunkElements / 8;
    values += kChunkElements;
  }
  return right ? table : nullptr;
}

}  // namespace

EncodeProgress encode_fp8_avx2(const EncodeTask& task) {
  return task.type == ElementType::kFp8E4m3 ? encode<ElementType::kFp8E4m3>(task)
                                            : encode<ElementType::kFp8E5m2>(task);
}

const std::byte* decode_fp8_avx2(const DecodeTask& task) {
  return task.type == ElementType::kFp8E4m3 ? decode<ElementType::kFp8E4m3>(task)
                                            : decode<ElementType::kFp8E5m2>(task);
}

}  // namespace kvlane::splitzip
