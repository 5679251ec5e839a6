// SplitZip of bfloat16 planes with AVX2: the way of splitzip_avx512_bf16.cpp in halves of its
// vectors.
//
// Without word rotations and three-input logic an operation there is two or three here; a codebook
// that is not one window is searched by comparing with its 16 entries. No library function is
// called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "codec/splitzip_kernels.h"

namespace kvlane::splitzip {
namespace {

constexpr std::size_t kGroupBytes = 2 * kGroupElements;
constexpr std::size_t kChunkBytes = 2 * kChunkElements;
constexpr std::size_t kMasksPerChunk = kChunkElements / 32;
// As in splitzip_avx512_bf16.cpp.
constexpr std::size_t kPrefetchBytes = 2048;
constexpr std::size_t kPrefetchTargetBytes = 1024;
template <int kLines>
__attribute__((always_inline)) inline void prefetch(const std::byte* at) {
  for (int i = 0; i < kLines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(at + 64 * i), _MM_HINT_T1);
  }
}
template <int kLines>
__attribute__((always_inline)) inline void prefetch_target(const std::byte* at) {
  for (int i = 0; i < kLines; ++i) {
    _mm_prefetch(reinterpret_cast<const char*>(at + kPrefetchTargetBytes + 64 * i), _MM_HINT_T0);
  }
}

inline __m256i load(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

template <bool kStreaming>
inline void put(std::byte* at, __m256i x) {
  if constexpr (kStreaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), x);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), x);
  }
}

inline __m256i rotate_left(__m256i words) {
  return _mm256_or_si256(_mm256_add_epi16(words, words), _mm256_srli_epi16(words, 15));
}
inline __m256i rotate_right(__m256i words) {
  return _mm256_or_si256(_mm256_srli_epi16(words, 1), _mm256_slli_epi16(words, 15));
}

template <bool kStreaming>
inline void put_line(std::byte* at, const __m256i (&halves)[2]) {
  put<kStreaming>(at, halves[0]);
  put<kStreaming>(at + 32, halves[1]);
}

// Exponents and rests of 32 values, in the order of their places.
struct Halves {
  __m256i exponents, rests;
};

// Half a vector of splitzip_avx512_bf16.cpp: 16 values here and the 16 that are 32 values behind.
inline Halves split(const std::byte* values) {
  const __m256i low_bytes = _mm256_set1_epi16(0x00FF);
  const __m256i even = rotate_left(load(values));
  const __m256i odd = rotate_left(load(values + 64));
  return {_mm256_or_si256(_mm256_srli_epi16(even, 8), _mm256_andnot_si256(low_bytes, odd)),
          _mm256_or_si256(_mm256_and_si256(even, low_bytes), _mm256_slli_epi16(odd, 8))};
}

inline void join(__m256i exponents, __m256i rests, std::byte* values) {
  const __m256i low_bytes = _mm256_set1_epi16(0x00FF);
  const __m256i even =
      _mm256_or_si256(_mm256_and_si256(rests, low_bytes), _mm256_slli_epi16(exponents, 8));
  const __m256i odd =
      _mm256_or_si256(_mm256_srli_epi16(rests, 8), _mm256_andnot_si256(low_bytes, exponents));
  put<false>(values, rotate_right(even));
  put<false>(values + 64, rotate_right(odd));
}

// Codebooks of 16 consecutive exponents: no table.
class WindowCoder {
 public:
  explicit WindowCoder(const CodeTables& tables)
      : first_(_mm256_set1_epi8(static_cast<char>(tables.exponent[0]))) {}
  // Codes, 0 for escapes, which `escapes` gets the mask of.
  __m256i operator()(__m256i exponents, std::uint32_t& escapes) const {
    const __m256i distance = _mm256_sub_epi8(exponents, first_);
    const __m256i inside =
        _mm256_cmpeq_epi8(_mm256_min_epu8(distance, _mm256_set1_epi8(15)), distance);
    escapes = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(inside));
    return _mm256_and_si256(distance, inside);
  }

 private:
  __m256i first_;
};

// Any codebook. It ascends, so the only possible code is the number of entries, behind the first,
// that are not above the exponent.
class TableCoder {
 public:
  explicit TableCoder(const CodeTables& tables)
      : codebook_(_mm256_broadcastsi128_si256(
            _mm_load_si128(reinterpret_cast<const __m128i*>(tables.exponent)))) {
    for (std::size_t code = 0; code < kCodebookEntries; ++code) {
      entry_[code] = _mm256_set1_epi8(static_cast<char>(tables.exponent[code]));
    }
  }
  __m256i operator()(__m256i exponents, std::uint32_t& escapes) const {
    __m256i codes = _mm256_setzero_si256();
    for (std::size_t code = 1; code < kCodebookEntries; ++code) {
      const __m256i not_above =
          _mm256_cmpeq_epi8(_mm256_max_epu8(exponents, entry_[code]), exponents);
      codes = _mm256_sub_epi8(codes, not_above);
    }
    const __m256i found = _mm256_cmpeq_epi8(_mm256_shuffle_epi8(codebook_, codes), exponents);
    escapes = ~static_cast<std::uint32_t>(_mm256_movemask_epi8(found));
    return _mm256_and_si256(codes, found);
  }

 private:
  __m256i codebook_;
  __m256i entry_[kCodebookEntries];
};

// The compiler's own memcpy: one instruction, at any address.
inline std::uint16_t load_word(const std::byte* at) {
  std::uint16_t word;
  __builtin_memcpy(&word, at, sizeof word);
  return word;
}
inline void store_word(std::byte* at, unsigned value) {
  const auto word = static_cast<std::uint16_t>(value);
  __builtin_memcpy(at, &word, sizeof word);
}

// The number, within its chunk, of the value that has this place in it.
inline unsigned value_at(unsigned place) {
  return (place & ~63U) | (place & 1U) << 5 | (place & 63U) >> 1;
}

inline std::byte* write_escapes(const std::byte* values, const std::uint32_t* masks,
                                std::byte* table) {
  for (unsigned word = 0; word < kMasksPerChunk; ++word) {
    for (std::uint32_t mask = masks[word]; mask != 0; mask &= mask - 1) {
      const unsigned place = 32 * word + static_cast<unsigned>(__builtin_ctz(mask));
      const unsigned value = load_word(values + 2 * value_at(place));
      store_word(table, (value << 1 & 0xFF00U) | place);
      table += 2;
    }
  }
  return table;
}

// A chunk with too many escapes: its codes become 0, its exponents go to the table.
std::byte* write_raw_chunk(const std::byte* values, std::byte* nibbles, std::byte* table) {
  _mm_sfence();  // behind the codes, which may have been streamed
  for (std::size_t i = 0; i < kChunkElements / 2; i += 32) {
    put<false>(nibbles + i, _mm256_setzero_si256());
  }
  for (std::size_t i = 0; i < kChunkElements; i += 64) {
    put<false>(table + i, split(values + 2 * i).exponents);
    put<false>(table + i + 32, split(values + 2 * i + 32).exponents);
  }
  return table + kChunkElements;
}

// The escapes of one chunk, from their masks; writes its count.
std::byte* finish_chunk(const std::byte* values, const std::uint32_t* masks, std::byte* nibbles,
                        std::uint8_t* count, std::byte* table) {
  int escapes = 0;
  for (std::size_t i = 0; i < kMasksPerChunk; ++i) escapes += __builtin_popcount(masks[i]);
  if (escapes > static_cast<int>(kChunkEscapesMax)) {
    *count = kRawChunk;
    return write_raw_chunk(values, nibbles, table);
  }
  *count = static_cast<std::uint8_t>(escapes);
  return write_escapes(values, masks, table);
}

template <class Coder, bool kStreaming>
EncodeProgress encode(const EncodeTask& task) {
  const Coder coder(*task.tables);
  const std::byte* values = task.plane;
  std::byte* nibbles = task.out.nibbles;
  std::byte* rests = task.out.bytes;
  std::byte* table = task.table;
  std::byte* const table_end = task.table + 2 * task.table_words_max;
  std::size_t done = 0;
  for (; done < task.chunks; ++done) {
    // Room for the worst: one byte a value.
    if (static_cast<std::size_t>(table_end - table) < kChunkElements) break;
    std::uint32_t masks[kMasksPerChunk];
    std::uint32_t any = 0;
    for (std::size_t group = 0; group < 2; ++group) {
      // Lines are written whole, one after the other: each that is begun holds a buffer on its way.
      __m256i codes[2], low_rests[2], high_rests[2];
      for (std::size_t half = 0; half < 2; ++half) {
        const std::byte* const from = values + group * kGroupBytes + half * 32;
        prefetch<2>(values + group * kGroupBytes + half * 128 + kPrefetchBytes);
        const Halves low = split(from);
        const Halves high = split(from + 128);
        std::uint32_t* const mask = masks + group * 4 + half;
        codes[half] = _mm256_or_si256(coder(low.exponents, mask[0]),
                                      _mm256_slli_epi16(coder(high.exponents, mask[2]), 4));
        any |= mask[0] | mask[2];
        low_rests[half] = low.rests;
        high_rests[half] = high.rests;
      }
      std::byte* const group_nibbles = nibbles + group * kGroupElements / 2;
      std::byte* const group_rests = rests + group * kGroupElements;
      if constexpr (!kStreaming) {
        prefetch_target<1>(group_nibbles);
        prefetch_target<1>(group_rests);
        prefetch_target<1>(group_rests + 64);
      }
      put_line<kStreaming>(group_nibbles, codes);
      put_line<kStreaming>(group_rests, low_rests);
      put_line<kStreaming>(group_rests + 64, high_rests);
    }
    task.counts[done] = 0;
    if (any != 0) table = finish_chunk(values, masks, nibbles, task.counts + done, table);
    values += kChunkBytes;
    nibbles += kChunkElements / 2;
    rests += kChunkElements;
  }
  if (kStreaming) _mm_sfence();
  return {done, static_cast<std::size_t>(table - task.table) / 2};
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// Puts the exponents of one chunk's escapes in place; false if places do not ascend.
inline bool patch(unsigned count, const std::byte* table, const std::byte* rests,
                  std::byte* values) {
  bool right = true;
  int previous = -1;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned escape = load_word(table + 2 * i);
    const unsigned place = escape & 0xFFU;
    right &= static_cast<int>(place) > previous;
    previous = static_cast<int>(place);
    const unsigned rotated = (escape & 0xFF00U) | static_cast<unsigned>(rests[place]);
    store_word(values + 2 * value_at(place), rotated >> 1 | rotated << 15);
  }
  return right;
}

void join_raw_chunk(const std::byte* exponents, const std::byte* rests, std::byte* values) {
  for (std::size_t i = 0; i < kChunkElements; i += 64) {
    join(load(exponents + i), load(rests + i), values + 2 * i);
    join(load(exponents + i + 32), load(rests + i + 32), values + 2 * i + 32);
  }
}

template <bool kStreaming>
const std::byte* decode(const DecodeTask& task) {
  const __m256i codebook =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.codebook)));
  const __m256i low_bits = _mm256_set1_epi8(0x0F);
  const std::byte* nibbles = task.in.nibbles;
  const std::byte* rests = task.in.bytes;
  const std::byte* table = task.table;
  std::byte* plane = task.plane;
  alignas(64) std::byte staged[kChunkBytes];  // escapes are patched before lines leave the cache
  bool right = true;
  for (std::size_t chunk = 0; chunk < task.chunks; ++chunk) {
    std::byte* const values = kStreaming ? staged : plane;
    for (std::size_t step = 0; step < 4; ++step) {  // two to a group of 128 values
      if constexpr (kStreaming) {
        if (step % 2 == 0) prefetch<1>(nibbles + step * 32 + kPrefetchBytes / 2);
        prefetch<1>(rests + step * 64 + kPrefetchBytes);
      } else {
        prefetch_target<2>(plane + step * 128);
      }
      const std::size_t at = step / 2 * kGroupBytes + step % 2 * 32;
      const std::byte* const own = rests + step / 2 * kGroupElements + step % 2 * 32;
      const __m256i packed = load(nibbles + step * 32);
      const __m256i low = _mm256_and_si256(packed, low_bits);
      const __m256i high = _mm256_and_si256(_mm256_srli_epi16(packed, 4), low_bits);
      join(_mm256_shuffle_epi8(codebook, low), load(own), values + at);
      join(_mm256_shuffle_epi8(codebook, high), load(own + 64), values + at + 128);
    }
    const unsigned count = task.counts[chunk];
    if (count == kRawChunk) {
      join_raw_chunk(table, rests, values);
      table += kChunkElements;
    } else {
      right &= patch(count, table, rests, values);
      table += 2 * count;
    }
    if constexpr (kStreaming) {
      for (std::size_t i = 0; i < kChunkBytes; i += 32) put<true>(plane + i, load(staged + i));
    }
    nibbles += kChunkElements / 2;
    rests += kChunkElements;
    plane += kChunkBytes;
  }
  if (kStreaming) _mm_sfence();
  return right ? table : nullptr;
}

}  // namespace

EncodeProgress encode_avx2(const EncodeTask& task) {
  if (task.type != ElementType::kBf16) return encode_fp8_avx2(task);
  if (task.tables->window) {
    return task.streaming ? encode<WindowCoder, true>(task) : encode<WindowCoder, false>(task);
  }
  return task.streaming ? encode<TableCoder, true>(task) : encode<TableCoder, false>(task);
}

const std::byte* decode_avx2(const DecodeTask& task) {
  if (task.type != ElementType::kBf16) return decode_fp8_avx2(task);
  return task.streaming ? decode<true>(task) : decode<false>(task);
}

}  // namespace kvlane::splitzip
