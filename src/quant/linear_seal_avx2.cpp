// BF16 rows to linear codes with AVX2: the way of linear_seal_avx512.cpp, 16 channels of a token a
// vector. About 40 operations for 32 values; it runs once a token.
//
// No library function is called here (see kvlane_simd in cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include "quant/linear_avx2.h"

namespace kvlane::linear {
namespace {

using avx2::kEntriesMax;

constexpr int kLanes = 16;
constexpr int kTokens = 8;  // at a time: whole words of every width
constexpr int kMxBlock = 32;

// 16 channels of the page: its rows and its words.
struct Strip {
  const std::uint16_t* rows;
  std::ptrdiff_t row_step;
  std::uint16_t* words;
  std::ptrdiff_t word_step;

  __m256i load(int token) const { return avx2::load(rows + token * row_step); }
  void store(int row, __m256i word) const { avx2::store(words + row * word_step, word); }
};

// Fewer than 16 channels are sealed in here; the rest of the lanes has the first one, so that
// neither least nor greatest changes.
struct Stage {
  alignas(32) std::uint16_t rows[kBlockTokens * kLanes];
  alignas(32) std::uint16_t words[avx2::kWordRowsMax * kLanes];
};

// Channels `channel` ... `end` - 1, at most 16 of them: where they are, or staged.
Strip strip_of(const SealJob& job, int channel, int end, Stage& stage) {
  const std::ptrdiff_t d = job.head_dim;
  const int count = end - channel;
  if (count >= kLanes) {
    auto* const words = reinterpret_cast<std::uint16_t*>(job.codes) + channel;
    return {job.rows + channel, d, words, d};
  }
  for (int token = 0; token < kBlockTokens; ++token) {
    const std::uint16_t* const row = job.rows + token * d + channel;
    for (int lane = 0; lane < kLanes; ++lane) {
      stage.rows[kLanes * token + lane] = row[lane < count ? lane : 0];
    }
  }
  return {stage.rows, kLanes, stage.words, kLanes};
}

// Afterwards: staged words go where they belong.
template <int kBits>
void put_back(const SealJob& job, int channel, int end, const Stage& stage) {
  const int count = end - channel;
  if (count >= kLanes) return;
  auto* const words = reinterpret_cast<std::uint16_t*>(job.codes) + channel;
  for (int row = 0; row < 4 * kBits; ++row) {
    std::uint16_t* const to = words + std::ptrdiff_t{row} * job.head_dim;
    for (int lane = 0; lane < count; ++lane) to[lane] = stage.words[kLanes * row + lane];
  }
}

inline __m256 even_floats(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline __m256 odd_floats(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
// The low halves of both.
inline __m256i interleaved(__m256i even, __m256i odd) {
  return _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
}

template <int kBits>
inline __m256i word_of(const __m256i* codes) {
  __m256i word = codes[0];
  for (int j = 1; j < 16 / kBits; ++j) {
    word = _mm256_or_si256(word, _mm256_slli_epi16(codes[j], kBits * j));
  }
  return word;
}

// The codes of tokens `token` ... `token` + 7, without bits above kBits, into their words.
template <int kBits>
inline void store(const Strip& strip, int token, const __m256i (&codes)[kTokens]) {
  if constexpr (kBits == 6) {
    __m256i low[kTokens];
    __m256i high[kTokens];
    for (int j = 0; j < kTokens; ++j) {
      low[j] = _mm256_and_si256(codes[j], _mm256_set1_epi16(15));
      high[j] = _mm256_srli_epi16(codes[j], 4);
    }
    strip.store(token / 4, word_of<4>(low));
    strip.store(token / 4 + 1, word_of<4>(low + 4));
    strip.store(16 + token / 8, word_of<2>(high));
  } else {
    constexpr int kCodes = 16 / kBits;
    for (int j = 0; j < kTokens; j += kCodes) {
      strip.store((token + j) / kCodes, word_of<kBits>(codes + j));
    }
  }
}

// --- floating-point codes -----------------------------------------------------------------------

inline unsigned least_of(__m128i x) {
  return static_cast<unsigned>(_mm_extract_epi16(_mm_minpos_epu16(x), 0));
}

inline unsigned greatest_magnitude(__m256i magnitudes) {
  const __m128i half =
      _mm_max_epu16(_mm256_castsi256_si128(magnitudes), _mm256_extracti128_si256(magnitudes, 1));
  return 0xffffU ^ least_of(_mm_xor_si128(half, _mm_set1_epi16(-1)));
}

inline __m256i magnitudes_of(__m256i x) { return _mm256_and_si256(x, _mm256_set1_epi16(0x7fff)); }

template <CodeKind kCode>
inline int entry_for(unsigned most, bool saturates) {
  constexpr int kEmax = small_float(kCode).emax;
  const int above = !saturates && (most & 0x7fU) > 0x60U ? 1 : 0;
  const int e = static_cast<int>(most >> 7) - kEmax + above;
  return e < 0 ? 0 : e > 254 - kEmax ? 254 - kEmax : e;
}

inline std::uint32_t inverse_scale_bits(int entry) {
  return static_cast<std::uint32_t>(254 - entry) << 23;
}

// As float_code() of the scalar code, without the sign.
template <CodeKind kCode>
inline __m256i magnitude_codes(__m256 x, __m256 inverse) {
  constexpr SmallFloat kType = small_float(kCode);
  const __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x);
  const __m256i y = _mm256_castps_si256(_mm256_mul_ps(magnitude, inverse));
  const __m256i least = _mm256_set1_epi32((127 + 1 - kType.bias) << 23);
  const __m256i exponent =
      _mm256_max_epu32(_mm256_and_si256(y, _mm256_set1_epi32(0x7f800000)), least);
  const __m256i anchor =
      _mm256_add_epi32(exponent, _mm256_set1_epi32((23 - kType.mantissa_bits) << 23));
  const __m256 sum = _mm256_add_ps(_mm256_castsi256_ps(y), _mm256_castsi256_ps(anchor));
  const __m256i steps = _mm256_sub_epi32(_mm256_castps_si256(sum), anchor);
  const __m256i code = _mm256_add_epi32(
      steps, _mm256_srli_epi32(_mm256_sub_epi32(exponent, least), 23 - kType.mantissa_bits));
  return _mm256_min_epu32(code, _mm256_set1_epi32(static_cast<int>(kType.largest)));
}

template <CodeKind kCode>
inline __m256i float_codes(__m256i x, __m256 inverse) {
  const __m256i magnitudes = interleaved(magnitude_codes<kCode>(even_floats(x), inverse),
                                         magnitude_codes<kCode>(odd_floats(x), inverse));
  const __m256i sign = _mm256_and_si256(x, _mm256_set1_epi16(static_cast<short>(0x8000)));
  return _mm256_or_si256(magnitudes, _mm256_srli_epi16(sign, 16 - code_bits(kCode)));
}

// The greatest magnitudes of each token's channels `first` ... `end` - 1.
void find_magnitudes(const SealJob& job, int first, int end, Stage& stage,
                     std::uint16_t (&greatest)[kBlockTokens]) {
  const Strip low = strip_of(job, first, end, stage);
  for (int token = 0; token < kBlockTokens; ++token) {
    __m256i most = magnitudes_of(low.load(token));
    // A second strip that is short is looked at below.
    if (end - first >= 2 * kLanes) {
      most = _mm256_max_epu16(most,
                              magnitudes_of(avx2::load(low.rows + token * low.row_step + kLanes)));
    }
    greatest[token] = static_cast<std::uint16_t>(greatest_magnitude(most));
  }
  if (end - first <= kLanes || end - first >= 2 * kLanes) return;
  const Strip high = strip_of(job, first + kLanes, end, stage);
  for (int token = 0; token < kBlockTokens; ++token) {
    const auto most =
        static_cast<std::uint16_t>(greatest_magnitude(magnitudes_of(high.load(token))));
    if (most > greatest[token]) greatest[token] = most;
  }
}

template <CodeKind kCode>
void seal_mx(const SealJob& job) {
  Stage stage;
  std::byte* entries = job.metadata;
  for (int first = 0; first < job.head_dim; first += kMxBlock, entries += kBlockTokens) {
    const int end = job.head_dim - first < kMxBlock ? job.head_dim : first + kMxBlock;
    std::uint16_t greatest[kBlockTokens];
    std::uint32_t inverse[kBlockTokens];
    find_magnitudes(job, first, end, stage, greatest);
    for (int token = 0; token < kBlockTokens; ++token) {
      const int entry = entry_for<kCode>(greatest[token], true);
      entries[token] = static_cast<std::byte>(entry);
      inverse[token] = inverse_scale_bits(entry);
    }
    for (int channel = first; channel < end; channel += kLanes) {
      const Strip strip = strip_of(job, channel, end, stage);
      for (int token = 0; token < kBlockTokens; token += kTokens) {
        __m256i codes[kTokens];
        for (int j = 0; j < kTokens; ++j) {
          const __m256i scale = _mm256_set1_epi32(static_cast<int>(inverse[token + j]));
          codes[j] = float_codes<kCode>(strip.load(token + j), _mm256_castsi256_ps(scale));
        }
        store<code_bits(kCode)>(strip, token, codes);
      }
      put_back<code_bits(kCode)>(job, channel, end, stage);
    }
  }
}

template <CodeKind kCode>
void seal_fp8(const SealJob& job) {
  const int d = job.head_dim;
  Stage stage;
  __m256i most = _mm256_setzero_si256();
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d, stage);
    for (int token = 0; token < kBlockTokens; ++token) {
      most = _mm256_max_epu16(most, magnitudes_of(strip.load(token)));
    }
  }
  const int entry = entry_for<kCode>(greatest_magnitude(most), false);
  *job.metadata = static_cast<std::byte>(entry);
  const __m256 inverse =
      _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(inverse_scale_bits(entry))));
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d, stage);
    for (int token = 0; token < kBlockTokens; token += kTokens) {
      __m256i codes[kTokens];
      for (int j = 0; j < kTokens; ++j) {
        codes[j] = float_codes<kCode>(strip.load(token + j), inverse);
      }
      store<code_bits(kCode)>(strip, token, codes);
    }
    put_back<code_bits(kCode)>(job, channel, d, stage);
  }
}

// --- integers -----------------------------------------------------------------------------------

// Of all groups. Room for a strip beyond the last: it is loaded and stored, and not used.
struct Ranges {
  alignas(32) std::uint16_t least[kEntriesMax + kLanes];  // BF16
  alignas(32) std::uint16_t greatest[kEntriesMax + kLanes];
  alignas(32) float m[kEntriesMax + kLanes];
  alignas(32) float inverse[kEntriesMax + kLanes];  // 1 / s, or 0
};

// BF16 bits as signed integers in the order of the numbers, and back.
inline __m256i ordered(__m256i x) {
  return _mm256_xor_si256(x, magnitudes_of(_mm256_srai_epi16(x, 15)));
}
inline std::uint16_t from_ordered(unsigned key) {
  return static_cast<std::uint16_t>((key & 0x8000U) != 0 ? key ^ 0x7fffU : key);
}

// What least and greatest of nothing are.
inline __m256i above_all() { return _mm256_set1_epi16(0x7fff); }
inline __m256i below_all() { return _mm256_set1_epi16(static_cast<short>(0x8000)); }

inline unsigned least_ordered(__m256i keys) {
  const __m128i half =
      _mm_min_epi16(_mm256_castsi256_si128(keys), _mm256_extracti128_si256(keys, 1));
  return 0x8000U ^ least_of(_mm_xor_si128(half, _mm_set1_epi16(static_cast<short>(0x8000))));
}
inline unsigned greatest_ordered(__m256i keys) {
  return 0xffffU ^ least_ordered(_mm256_xor_si256(keys, _mm256_set1_epi16(-1)));
}

// Of the rows of one group; `entry` is its first. A short strip at the end is staged.
void find_row_ranges(const SealJob& job, int first, int end, int entry, Stage& stage,
                     Ranges& ranges) {
  const int whole = (end - first) / kLanes * kLanes;
  const bool rest = first + whole < end;
  const Strip last = rest ? strip_of(job, first + whole, end, stage) : Strip{};
  for (int token = 0; token < kBlockTokens; ++token, ++entry) {
    const std::uint16_t* const row = job.rows + std::ptrdiff_t{token} * job.head_dim + first;
    __m256i least = above_all();
    __m256i greatest = below_all();
    const auto take = [&](__m256i x) {
      const __m256i keys = ordered(x);
      least = _mm256_min_epi16(least, keys);
      greatest = _mm256_max_epi16(greatest, keys);
    };
    for (int i = 0; i < whole; i += kLanes) take(avx2::load(row + i));
    if (rest) take(last.load(token));
    ranges.least[entry] = from_ordered(least_ordered(least));
    ranges.greatest[entry] = from_ordered(greatest_ordered(greatest));
  }
}

void find_column_ranges(const SealJob& job, Stage& stage, Ranges& ranges) {
  const int d = job.head_dim;
  for (int first = 0; first < kBlockTokens; first += job.plane.group) {
    // Ascending, so that a short strip's other lanes are written over.
    for (int channel = 0; channel < d; channel += kLanes) {
      const Strip strip = strip_of(job, channel, d, stage);
      __m256i least = above_all();
      __m256i greatest = below_all();
      for (int token = first; token < first + job.plane.group; ++token) {
        const __m256i keys = ordered(strip.load(token));
        least = _mm256_min_epi16(least, keys);
        greatest = _mm256_max_epi16(greatest, keys);
      }
      const int entry = first / job.plane.group * d + channel;
      avx2::store(ranges.least + entry, ordered(least));
      avx2::store(ranges.greatest + entry, ordered(greatest));
    }
  }
}

inline __m256 bf16_floats(const std::uint16_t* from) {
  const __m256i bits =
      _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

inline __m256 magnitude(__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); }

// Writes the metadata; m and 1 / s to `ranges`.
template <int kBits, bool kHasMin>
void make_entries(const SealJob& job, int count, Ranges& ranges) {
  constexpr float kSteps = kHasMin ? (1 << kBits) - 1 : (1 << (kBits - 1)) - 1;
  const __m256 zero = _mm256_setzero_ps();
  for (int i = 0; i < count; i += 8) {
    const __m256 least = bf16_floats(ranges.least + i);
    const __m256 greatest = bf16_floats(ranges.greatest + i);
    __m256 m = zero;
    __m256 range = _mm256_max_ps(magnitude(least), magnitude(greatest));
    __m128i m_half = _mm_setzero_si128();
    if constexpr (kHasMin) {
      // Adding zero makes -0 a +0.
      m_half =
          _mm256_cvtps_ph(_mm256_add_ps(least, zero), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      m = _mm256_cvtph_ps(m_half);
      range = _mm256_add_ps(_mm256_sub_ps(greatest, m), zero);
    }
    const __m128i s_half = _mm256_cvtps_ph(_mm256_div_ps(range, _mm256_set1_ps(kSteps)),
                                           _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
    const __m256 s = _mm256_cvtph_ps(s_half);
    const __m256 some = _mm256_cmp_ps(s, zero, _CMP_NEQ_UQ);
    _mm256_store_ps(ranges.m + i, m);
    _mm256_store_ps(ranges.inverse + i,
                    _mm256_and_ps(some, _mm256_div_ps(_mm256_set1_ps(1.0F), s)));
    if constexpr (kHasMin) {
      const __m256i pairs = _mm256_or_si256(_mm256_cvtepu16_epi32(m_half),
                                            _mm256_slli_epi32(_mm256_cvtepu16_epi32(s_half), 16));
      const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count - i),
                                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
      _mm256_maskstore_epi32(reinterpret_cast<int*>(job.metadata + std::ptrdiff_t{4} * i), mask,
                             pairs);
    } else {
      // Rows only: a whole number of 64.
      _mm_storeu_si128(reinterpret_cast<__m128i*>(job.metadata + std::ptrdiff_t{2} * i), s_half);
    }
  }
}

// m and 1 / s of 16 channels, of even and odd ones.
struct Quantiser {
  __m256 m_even, m_odd, inverse_even, inverse_odd;
};

// The codes as unsigned numbers, in 16 bits.
template <int kOffset>
inline __m256i integer_codes(__m256i x, const Quantiser& q) {
  const __m256 round = _mm256_set1_ps(0x1.8p23F);
  const __m256i even = _mm256_castps_si256(
      _mm256_fmadd_ps(_mm256_sub_ps(even_floats(x), q.m_even), q.inverse_even, round));
  const __m256i odd = _mm256_castps_si256(
      _mm256_fmadd_ps(_mm256_sub_ps(odd_floats(x), q.m_odd), q.inverse_odd, round));
  // The low halves of round's bits are zero.
  const __m256i codes = interleaved(even, odd);
  if constexpr (kOffset == 0) return codes;
  return _mm256_add_epi16(codes, _mm256_set1_epi16(kOffset));
}

template <int kBits, bool kHasMin>
void seal_rows(const SealJob& job) {
  constexpr int kOffset = kHasMin ? 0 : 1 << (kBits - 1);
  const int d = job.head_dim;
  const int group = job.plane.group;
  const int count = (d + group - 1) / group * kBlockTokens;
  if (count > kEntriesMax) return seal_scalar(job);
  Stage stage;
  Ranges ranges;
  const auto end_of = [&](int first) { return d - first < group ? d : first + group; };
  for (int first = 0; first < d; first += group) {
    find_row_ranges(job, first, end_of(first), first / group * kBlockTokens, stage, ranges);
  }
  make_entries<kBits, kHasMin>(job, count, ranges);
  int entry = 0;
  for (int first = 0; first < d; first += group, entry += kBlockTokens) {
    const int end = end_of(first);
    for (int channel = first; channel < end; channel += kLanes) {
      const Strip strip = strip_of(job, channel, end, stage);
      for (int token = 0; token < kBlockTokens; token += kTokens) {
        __m256i codes[kTokens];
        for (int j = 0; j < kTokens; ++j) {
          const __m256 m = _mm256_set1_ps(ranges.m[entry + token + j]);
          const __m256 inverse = _mm256_set1_ps(ranges.inverse[entry + token + j]);
          codes[j] = integer_codes<kOffset>(strip.load(token + j), {m, m, inverse, inverse});
        }
        store<kBits>(strip, token, codes);
      }
      put_back<kBits>(job, channel, end, stage);
    }
  }
}

// Even and odd ones of 16 numbers.
inline void split(const float* from, __m256& even, __m256& odd) {
  const __m256 low = _mm256_loadu_ps(from);
  const __m256 high = _mm256_loadu_ps(from + 8);
  const auto in_order = [](__m256 x) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), _MM_SHUFFLE(3, 1, 2, 0)));
  };
  even = in_order(_mm256_shuffle_ps(low, high, 0x88));
  odd = in_order(_mm256_shuffle_ps(low, high, 0xdd));
}

template <int kBits>
void seal_columns(const SealJob& job) {
  const int d = job.head_dim;
  const int count = kBlockTokens / job.plane.group * d;
  if (count > kEntriesMax) return seal_scalar(job);
  Stage stage;
  Ranges ranges;
  find_column_ranges(job, stage, ranges);
  make_entries<kBits, true>(job, count, ranges);
  for (int channel = 0; channel < d; channel += kLanes) {
    const Strip strip = strip_of(job, channel, d, stage);
    for (int first = 0; first < kBlockTokens; first += job.plane.group) {
      const int entry = first / job.plane.group * d + channel;
      Quantiser q;
      split(ranges.m + entry, q.m_even, q.m_odd);
      split(ranges.inverse + entry, q.inverse_even, q.inverse_odd);
      for (int token = first; token < first + job.plane.group; token += kTokens) {
        __m256i codes[kTokens];
        for (int j = 0; j < kTokens; ++j) {
          codes[j] = integer_codes<0>(strip.load(token + j), q);
        }
        store<kBits>(strip, token, codes);
      }
    }
    put_back<kBits>(job, channel, d, stage);
  }
}

SealKernel float_kernel(CodeKind code, bool page) {
  switch (code) {
    case CodeKind::kE4m3: return page ? seal_fp8<CodeKind::kE4m3> : seal_mx<CodeKind::kE4m3>;
    case CodeKind::kE5m2: return page ? seal_fp8<CodeKind::kE5m2> : seal_mx<CodeKind::kE5m2>;
    case CodeKind::kE2m3: return page ? nullptr : seal_mx<CodeKind::kE2m3>;
    case CodeKind::kE3m2: return page ? nullptr : seal_mx<CodeKind::kE3m2>;
    default: return page ? nullptr : seal_mx<CodeKind::kE2m1>;
  }
}

SealKernel row_kernel(CodeKind code) {
  switch (code) {
    case CodeKind::kUint2: return seal_rows<2, true>;
    case CodeKind::kUint4: return seal_rows<4, true>;
    case CodeKind::kUint8: return seal_rows<8, true>;
    case CodeKind::kSint4: return seal_rows<4, false>;
    default: return seal_rows<8, false>;
  }
}

}  // namespace

SealKernel seal_kernel_avx2(const Plane& plane) {
  if (plane.code >= CodeKind::kE4m3) {
    const bool page = plane.groups == Groups::kPage;
    const bool mx = plane.groups == Groups::kRow && plane.group == kMxBlock && plane.saturates;
    return (page && !plane.saturates) || mx ? float_kernel(plane.code, page) : nullptr;
  }
  if (plane.groups == Groups::kRow) return row_kernel(plane.code);
  if (plane.groups != Groups::kColumn || plane.group % kTokens != 0) return nullptr;
  if (plane.code == CodeKind::kUint2) return seal_columns<2>;
  return plane.code == CodeKind::kUint4 ? seal_columns<4> : nullptr;
}

}  // namespace kvlane::linear
