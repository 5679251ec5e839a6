// SplitZip of FP8 planes with AVX-512 (VBMI): splitzip_avx512_bf16.cpp has bfloat16.
//
// A group of 128 values is two vectors of bytes in the order of places. One byte permutation looks
// up the codes of 64 exponents, as there are at most 32 of them. The four-bit field of the two
// vectors packs into one by a shift; of the three-bit field, two bits pack into half a vector and
// the third is a mask register. Escapes and raw chunks are done chunk by chunk from the masks.
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

constexpr std::size_t kMasksPerChunk = kChunkElements / 64;
// Ahead of what is read, and of what plain stores fill, as in splitzip_avx512_bf16.cpp.
constexpr std::size_t kPrefetchBytes = 2048;
constexpr std::size_t kPrefetchTargetBytes = 1024;

// Inlined by force: g++ 12 drops prefetches from functions that it does not inline.
__attribute__((always_inline)) inline void prefetch(const std::byte* at) {
  _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
}

// Bits `shift` ... of each byte moved down or up; what comes from the neighbour is masked away.
template <int kShift>
inline __m512i down(__m512i x) {
  return _mm512_and_si512(_mm512_srli_epi16(x, kShift), _mm512_set1_epi8(0xFF >> kShift));
}
template <int kShift>
inline __m512i up(__m512i x) {
  return _mm512_and_si512(_mm512_slli_epi16(x, kShift),
                          _mm512_set1_epi8(static_cast<char>(0xFF << kShift & 0xFF)));
}

// The low bits of `low`, and above them those of `high`.
template <int kBits>
inline __m512i pack(__m512i low, __m512i high) {
  return _mm512_or_si512(low, _mm512_slli_epi16(high, kBits));  // high has at most 8 - kBits bits
}

inline __m512i rotate_left(__m512i x) { return _mm512_or_si512(up<1>(x), down<7>(x)); }
inline __m512i rotate_right(__m512i x) { return _mm512_or_si512(down<1>(x), up<7>(x)); }

template <ElementType kType>
inline __m512i exponents_of(__m512i rotated) {
  return down<kFields<kType>.rest_bits>(rotated);
}

template <ElementType kType>
inline __m512i rests_of(__m512i rotated) {
  return _mm512_and_si512(rotated, _mm512_set1_epi8((1 << kFields<kType>.rest_bits) - 1));
}

inline void store_half(std::byte* at, __m256i x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x);
}
inline __m256i load_half(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

// Three-bit fields of one group: bits 0 and 1, place p beside p + 32, p + 64 and p + 96; then
// bit 2.
inline void store_triples(__m512i low, __m512i high, std::byte* pairs, std::byte* bits) {
  const __m512i two = _mm512_set1_epi8(3);
  const __m512i packed = pack<4>(_mm512_and_si512(low, two), _mm512_and_si512(high, two));
  store_half(pairs, _mm256_or_si256(_mm512_castsi512_si256(packed),
                                    _mm256_slli_epi16(_mm512_extracti64x4_epi64(packed, 1), 2)));
  const __m512i third = _mm512_set1_epi8(4);
  const std::uint64_t words[2] = {_mm512_test_epi8_mask(low, third),
                                  _mm512_test_epi8_mask(high, third)};
  __builtin_memcpy(bits, words, sizeof words);
}

inline void load_triples(const std::byte* pairs, const std::byte* bits, __m512i& low,
                         __m512i& high) {
  const __m256i packed = load_half(pairs);
  const __m512i both =
      _mm512_inserti64x4(_mm512_castsi256_si512(packed), _mm256_srli_epi16(packed, 2), 1);
  const __m512i two = _mm512_set1_epi8(3);
  const __m512i third = _mm512_set1_epi8(4);
  std::uint64_t words[2];
  __builtin_memcpy(words, bits, sizeof words);
  low = _mm512_and_si512(both, two);
  high = _mm512_and_si512(_mm512_srli_epi16(both, 4), two);
  low = _mm512_or_si512(low, _mm512_maskz_mov_epi8(words[0], third));
  high = _mm512_or_si512(high, _mm512_maskz_mov_epi8(words[1], third));
}

template <ElementType kType>
inline unsigned exponent_of(std::byte value) {
  const auto bits = static_cast<unsigned>(value);
  return (bits << 1 & 0xFFU) >> kFields<kType>.rest_bits;
}

// Appends the escapes of one chunk to the table.
template <ElementType kType>
std::byte* write_escapes(const std::byte* values, const std::uint64_t* masks, std::byte* table) {
  for (unsigned word = 0; word < kMasksPerChunk; ++word) {
    for (std::uint64_t mask = masks[word]; mask != 0; mask &= mask - 1) {
      const unsigned place = 64 * word + static_cast<unsigned>(__builtin_ctzll(mask));
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
  const __m512i zero = _mm512_setzero_si512();
  if constexpr (kType == ElementType::kFp8E4m3) {
    _mm512_storeu_si512(out.pairs, zero);
    store_half(out.bits, _mm512_castsi512_si256(zero));
  } else {
    _mm512_storeu_si512(out.nibbles, zero);
    _mm512_storeu_si512(out.nibbles + 64, zero);
  }
  for (std::size_t i = 0; i < kChunkElements; i += 64) {
    const __m512i rotated = rotate_left(_mm512_loadu_si512(values + i));
    _mm512_storeu_si512(table + i, exponents_of<kType>(rotated));
  }
  return table + kChunkElements;
}

// One group; returns in `masks` where its escapes are.
template <ElementType kType>
inline void encode_group(const std::byte* values, __m512i codes, const Streams<std::byte>& out,
                         std::uint64_t* masks) {
  const __m512i low = rotate_left(_mm512_loadu_si512(values));
  const __m512i high = rotate_left(_mm512_loadu_si512(values + 64));
  const __m512i low_code = _mm512_permutexvar_epi8(exponents_of<kType>(low), codes);
  const __m512i high_code = _mm512_permutexvar_epi8(exponents_of<kType>(high), codes);
  masks[0] = _mm512_movepi8_mask(low_code);
  masks[1] = _mm512_movepi8_mask(high_code);
  const __m512i low_rest = rests_of<kType>(low);
  const __m512i high_rest = rests_of<kType>(high);
  if constexpr (kType == ElementType::kFp8E4m3) {
    _mm512_storeu_si512(out.nibbles, pack<4>(low_rest, high_rest));
    store_triples(low_code, high_code, out.pairs, out.bits);
  } else {
    const __m512i code_bits = _mm512_set1_epi8(0x0F);
    _mm512_storeu_si512(out.nibbles, pack<4>(_mm512_and_si512(low_code, code_bits),
                                             _mm512_and_si512(high_code, code_bits)));
    store_triples(low_rest, high_rest, out.pairs, out.bits);
  }
}

template <ElementType kType>
EncodeProgress encode(const EncodeTask& task) {
  const __m512i codes = _mm512_load_si512(task.tables->code_of);
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
    std::uint64_t masks[kMasksPerChunk];
    encode_group<kType>(values, codes, out, masks);
    encode_group<kType>(values + kGroupElements, codes,
                        {out.nibbles + 64, nullptr, out.pairs + 32, out.bits + 16}, masks + 2);
    task.counts[done] = 0;
    if ((masks[0] | masks[1] | masks[2] | masks[3]) != 0) {
      int escapes = 0;
      for (const std::uint64_t mask : masks) escapes += __builtin_popcountll(mask);
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
inline void load_group(const Streams<const std::byte>& in, __m512i codes[2], __m512i rests[2]) {
  const __m512i packed = _mm512_loadu_si512(in.nibbles);
  const __m512i nibbles[2] = {_mm512_and_si512(packed, _mm512_set1_epi8(0x0F)), down<4>(packed)};
  __m512i triples[2];
  load_triples(in.pairs, in.bits, triples[0], triples[1]);
  for (int half = 0; half < 2; ++half) {
    codes[half] = kType == ElementType::kFp8E4m3 ? triples[half] : nibbles[half];
    rests[half] = kType == ElementType::kFp8E4m3 ? nibbles[half] : triples[half];
  }
}

template <ElementType kType>
inline __m512i join(__m512i exponents, __m512i rests) {
  return rotate_right(_mm512_or_si512(up<kFields<kType>.rest_bits>(exponents), rests));
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
  __m512i all = _mm512_setzero_si512();
  for (std::size_t group = 0; group < 2; ++group) {
    __m512i codes[2];
    __m512i rests[2];
    load_group<kType>(
        {in.nibbles + 64 * group, nullptr, in.pairs + 32 * group, in.bits + 16 * group}, codes,
        rests);
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t at = 128 * group + 64 * half;
      const __m512i exponents = _mm512_loadu_si512(table + at);
      all = _mm512_or_si512(all, exponents);
      _mm512_storeu_si512(values + at, join<kType>(exponents, rests[half]));
    }
  }
  const __m512i outside =
      _mm512_set1_epi8(static_cast<char>(0xFF << kFields<kType>.exponent_bits & 0xFF));
  return _mm512_test_epi8_mask(all, outside) == 0;
}

template <ElementType kType>
const std::byte* decode(const DecodeTask& task) {
  const __m512i codebook =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.codebook)));
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
        __m512i codes[2];
        __m512i rests[2];
        load_group<kType>(
            {in.nibbles + 64 * group, nullptr, in.pairs + 32 * group, in.bits + 16 * group}, codes,
            rests);
        for (std::size_t half = 0; half < 2; ++half) {
          _mm512_storeu_si512(
              values + 128 * group + 64 * half,
              join<kType>(_mm512_permutexvar_epi8(codes[half], codebook), rests[half]));
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

EncodeProgress encode_fp8_avx512_bf16(const EncodeTask& task) {
  return task.type == ElementType::kFp8E4m3 ? encode<ElementType::kFp8E4m3>(task)
                                            : encode<ElementType::kFp8E5m2>(task);
}

const std::byte* decode_fp8_avx512_bf16(const DecodeTask& task) {
  return task.type == ElementType::kFp8E4m3 ? decode<ElementType::kFp8E4m3>(task)
                                            : decode<ElementType::kFp8E5m2>(task);
}

}  // namespace kvlane::splitzip
