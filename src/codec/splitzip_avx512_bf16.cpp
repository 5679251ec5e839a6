// SplitZip of bfloat16 planes with AVX-512 (VBMI, VBMI2). FP8: splitzip_fp8_avx512_bf16.cpp.
//
// A group of 128 values is four vectors of words. Rotated by one bit, a word is exponent and rest;
// two vectors whose values are neighbours by place blend into one of exponents and one of rests,
// without a permutation, and two vectors of codes into one of nibbles. Decoding is the same
// backwards; a byte permutation looks 64 codes up at once, as it ignores what lies above them.
// Of 256 bytes, 192 are written or read: about 35 operations a group, no memory but the data.
//
// Masks of escapes are kept for four chunks and then walked bit by bit: escapes are so rare that
// compressing each vector costs more (lab/splitzip). No library function is called here (see
// kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "codec/splitzip_kernels.h"

namespace kvlane::splitzip {

namespace {

constexpr std::size_t kBlockChunks = 4;  // walked together
constexpr std::size_t kGroupBytes = 2 * kGroupElements;
constexpr std::size_t kChunkBytes = 2 * kChunkElements;
constexpr std::size_t kMasksPerChunk = kChunkElements / 64;
// Measured on planes outside of the caches (lab/splitzip): less comes too late, more crosses pages.
constexpr std::size_t kPrefetchBytes = 2048;
// Lines that plain stores will fill are fetched too, for a store that has to wait for its line
// holds up all behind it. What is written in the cache loses nothing by it.
constexpr std::size_t kPrefetchTargetBytes = 1024;

// Into the second-level cache: the first one's buffers for lines under way are what streaming
// stores need. Inlined by force: g++ 12 drops prefetches from functions that it does not inline.
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

inline __m512i blend_low_bytes(__m512i low, __m512i high) {
  return _mm512_ternarylogic_epi64(_mm512_set1_epi16(0x00FF), low, high, 0xCA);
}

template <bool kStreaming>
inline void put(std::byte* at, __m512i x) {
  if constexpr (kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(at), x);
  } else {
    _mm512_storeu_si512(at, x);
  }
}

// Exponents and rests of 64 values, in the order of their places.
struct Halves {
  __m512i exponents, rests;
};

inline Halves split(const std::byte* values) {
  const __m512i even = _mm512_loadu_si512(values);
  const __m512i odd = _mm512_loadu_si512(values + 64);
  return {blend_low_bytes(_mm512_srli_epi16(even, 7), _mm512_add_epi16(odd, odd)),
          blend_low_bytes(_mm512_shldi_epi16(even, even, 1), _mm512_shldi_epi16(odd, odd, 9))};
}

// Codebooks of 16 consecutive exponents: no table.
class WindowCoder {
 public:
  explicit WindowCoder(const CodeTables& tables)
      : first_(_mm512_set1_epi8(static_cast<char>(tables.exponent[0]))) {}
  // Codes, 0 for escapes, which `escapes` gets the mask of.
  __m512i operator()(__m512i exponents, std::uint64_t& escapes) const {
    const __m512i distance = _mm512_sub_epi8(exponents, first_);
    const __mmask64 inside = _mm512_cmple_epu8_mask(distance, _mm512_set1_epi8(15));
    escapes = ~static_cast<std::uint64_t>(inside);
    return _mm512_maskz_mov_epi8(inside, distance);
  }

 private:
  __m512i first_;
};

// Any codebook: a table of all exponents in four registers.
class TableCoder {
 public:
  explicit TableCoder(const CodeTables& tables)
      : table0_(_mm512_load_si512(tables.code_of)),
        table1_(_mm512_load_si512(tables.code_of + 64)),
        table2_(_mm512_load_si512(tables.code_of + 128)),
        table3_(_mm512_load_si512(tables.code_of + 192)) {}
  __m512i operator()(__m512i exponents, std::uint64_t& escapes) const {
    const __m512i low = _mm512_permutex2var_epi8(table0_, exponents, table1_);
    const __m512i high = _mm512_permutex2var_epi8(table2_, exponents, table3_);
    const __m512i codes = _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(exponents), high);
    escapes = _mm512_movepi8_mask(codes);
    return codes;
  }

 private:
  __m512i table0_, table1_, table2_, table3_;
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

// Appends the escapes of one chunk to the table.
inline std::byte* write_escapes(const std::byte* values, const std::uint64_t* masks,
                                std::byte* table) {
  for (unsigned word = 0; word < kMasksPerChunk; ++word) {
    for (std::uint64_t mask = masks[word]; mask != 0; mask &= mask - 1) {
      const unsigned place = 64 * word + static_cast<unsigned>(__builtin_ctzll(mask));
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
  for (std::size_t i = 0; i < kChunkElements / 2; i += 64) {
    _mm512_storeu_si512(nibbles + i, _mm512_setzero_si512());
  }
  for (std::size_t i = 0; i < kChunkElements; i += 64) {
    _mm512_storeu_si512(table + i, split(values + 2 * i).exponents);
  }
  return table + kChunkElements;
}

// The escapes of `chunks` chunks, from their masks; writes their counts.
std::byte* finish_chunks(std::size_t chunks, const std::byte* values, const std::uint64_t* masks,
                         std::byte* nibbles, std::uint8_t* counts, std::byte* table) {
  for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
    const std::uint64_t* const own = masks + chunk * kMasksPerChunk;
    int escapes = 0;
    for (std::size_t i = 0; i < kMasksPerChunk; ++i) escapes += __builtin_popcountll(own[i]);
    if (escapes > static_cast<int>(kChunkEscapesMax)) {
      counts[chunk] = kRawChunk;
      table = write_raw_chunk(values + chunk * kChunkBytes, nibbles + chunk * kChunkElements / 2,
                              table);
    } else {
      counts[chunk] = static_cast<std::uint8_t>(escapes);
      table = write_escapes(values + chunk * kChunkBytes, own, table);
    }
  }
  return table;
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
  while (done < task.chunks) {
    const std::size_t left = task.chunks - done;
    const std::size_t chunks = left < kBlockChunks ? left : kBlockChunks;
    // Room for the worst: one byte a value.
    if (static_cast<std::size_t>(table_end - table) < chunks * kChunkElements) break;
    alignas(64) std::uint64_t masks[kBlockChunks * kMasksPerChunk];
    std::uint64_t any = 0;
    const std::size_t groups = chunks * kChunkElements / kGroupElements;
    for (std::size_t group = 0; group < groups; ++group) {
      const std::byte* const from = values + group * kGroupBytes;
      prefetch<4>(from + kPrefetchBytes);
      if constexpr (!kStreaming) {
        prefetch_target<1>(nibbles + group * 64);
        prefetch_target<2>(rests + group * 128);
      }
      const Halves low = split(from);
      const Halves high = split(from + kGroupBytes / 2);
      const __m512i low_codes = coder(low.exponents, masks[2 * group]);
      const __m512i high_codes = coder(high.exponents, masks[2 * group + 1]);
      any |= masks[2 * group] | masks[2 * group + 1];
      const __m512i packed = _mm512_ternarylogic_epi64(_mm512_set1_epi8(0x0F), low_codes,
                                                       _mm512_slli_epi16(high_codes, 4), 0xCA);
      put<kStreaming>(nibbles + group * 64, packed);
      put<kStreaming>(rests + group * 128, low.rests);
      put<kStreaming>(rests + group * 128 + 64, high.rests);
    }
    if (any == 0) {
      for (std::size_t chunk = 0; chunk < chunks; ++chunk) task.counts[done + chunk] = 0;
    } else {
      table = finish_chunks(chunks, values, masks, nibbles, task.counts + done, table);
    }
    values += chunks * kChunkBytes;
    nibbles += chunks * kChunkElements / 2;
    rests += chunks * kChunkElements;
    done += chunks;
  }
  if (kStreaming) _mm_sfence();
  return {done, static_cast<std::size_t>(table - task.table) / 2};
}

// ------------------------------------------------------------------------------------------------
// Decoder.

// 64 values from their exponents and rests.
inline void join(__m512i exponents, __m512i rests, std::byte* values) {
  const __m512i even = blend_low_bytes(rests, _mm512_slli_epi16(exponents, 8));
  const __m512i odd = blend_low_bytes(_mm512_srli_epi16(rests, 8), exponents);
  _mm512_storeu_si512(values, _mm512_shldi_epi16(even, even, 15));
  _mm512_storeu_si512(values + 64, _mm512_shldi_epi16(odd, odd, 15));
}

inline void put_exponent(unsigned place, unsigned shifted_exponent, const std::byte* rests,
                         std::byte* values) {
  const unsigned rotated = shifted_exponent | static_cast<unsigned>(rests[place]);
  store_word(values + 2 * value_at(place), rotated >> 1 | rotated << 15);
}

// Puts the exponents of one chunk's escapes in place; false if places do not ascend.
inline bool patch(unsigned count, const std::byte* table, const std::byte* rests,
                  std::byte* values) {
  bool right = true;
  int previous = -1;
  for (unsigned i = 0; i < count; ++i) {
    const unsigned escape = load_word(table + 2 * i);
    const int place = static_cast<int>(escape & 0xFFU);
    right &= place > previous;
    previous = place;
    put_exponent(escape & 0xFFU, escape & 0xFF00U, rests, values);
  }
  return right;
}

void join_raw_chunk(const std::byte* exponents, const std::byte* rests, std::byte* values) {
  for (std::size_t i = 0; i < kChunkElements; i += 64) {
    join(_mm512_loadu_si512(exponents + i), _mm512_loadu_si512(rests + i), values + 2 * i);
  }
}

template <bool kStreaming>
const std::byte* decode(const DecodeTask& task) {
  const __m512i codebook =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(task.codebook)));
  const std::byte* nibbles = task.in.nibbles;
  const std::byte* rests = task.in.bytes;
  const std::byte* table = task.table;
  std::byte* plane = task.plane;
  alignas(64) std::byte staged[kChunkBytes];  // escapes are patched before lines leave the cache
  bool right = true;
  for (std::size_t chunk = 0; chunk < task.chunks; ++chunk) {
    std::byte* const values = kStreaming ? staged : plane;
    for (std::size_t group = 0; group < kChunkElements / kGroupElements; ++group) {
      if constexpr (kStreaming) {
        prefetch<1>(nibbles + group * 64 + kPrefetchBytes / 2);
        prefetch<2>(rests + group * 128 + kPrefetchBytes);
      } else {
        prefetch_target<4>(plane + group * kGroupBytes);
      }
      const __m512i packed = _mm512_loadu_si512(nibbles + group * 64);
      const __m512i low = _mm512_permutexvar_epi8(packed, codebook);
      const __m512i high = _mm512_permutexvar_epi8(_mm512_srli_epi16(packed, 4), codebook);
      join(low, _mm512_loadu_si512(rests + group * 128), values + group * kGroupBytes);
      join(high, _mm512_loadu_si512(rests + group * 128 + 64),
           values + group * kGroupBytes + kGroupBytes / 2);
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
      for (std::size_t i = 0; i < kChunkBytes; i += 64) {
        put<true>(plane + i, _mm512_load_si512(staged + i));
      }
    }
    nibbles += kChunkElements / 2;
    rests += kChunkElements;
    plane += kChunkBytes;
  }
  if (kStreaming) _mm_sfence();
  return right ? table : nullptr;
}

}  // namespace

EncodeProgress encode_avx512_bf16(const EncodeTask& task) {
  if (task.type != ElementType::kBf16) return encode_fp8_avx512_bf16(task);
  if (task.tables->window) {
    return task.streaming ? encode<WindowCoder, true>(task) : encode<WindowCoder, false>(task);
  }
  return task.streaming ? encode<TableCoder, true>(task) : encode<TableCoder, false>(task);
}

const std::byte* decode_avx512_bf16(const DecodeTask& task) {
  if (task.type != ElementType::kBf16) return decode_fp8_avx512_bf16(task);
  return task.streaming ? decode<true>(task) : decode<false>(task);
}

}  // namespace kvlane::splitzip
