// Sealing pages for attention on codes in kernels (spec/hack.md, section 6): a block of threads
// makes codes and metadata of K or V of one page. The bytes are those of the scalar code.
//
// Warp w has the tokens 8 w ... 8 w + 7 and a lane the channels lane, lane + 32 ... of them, in
// registers from the load on: so mixing and sums over channels are shuffles, what is over tokens of
// a channel goes through shared memory by warps, in order where sums are taken. Codes are put
// together in shared memory. A value costs 2 bytes of reading, and what the format has of writing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/fp16_bounds.h"
#include "quant/hack_layout.h"
#include "quant/hack_seal_batch.h"
#include "quant/hadamard_device.h"

namespace kvlane {

inline constexpr int kHackSealWarps = 8;

// K or V of a page. Rows and sections begin at multiples of 16 bytes. Metadata are binary16; codes
// are rounded to the nearest.
struct HackSealPart {
  const std::byte* rows;  // [64][head_dim], BF16
  std::byte* codes;
  std::byte* metadata;
  std::int32_t metadata_bytes;  // with the zeros behind it
  std::int32_t head_dim;        // a multiple of 16
  std::int32_t bits;            // 2, 4 or 8
  std::int32_t partition;       // 32, 64 or 128, of V at most 64; 0: by both
  ChannelMix mix;
  float limit;  // of magnitudes
  // 1 where a value is not within the limit or no number: then the bytes mean nothing. Else 0.
  std::uint32_t* beyond;
};

// K or V of the page of a KV head of place `place`.
template <bool kKeys>
KVLANE_DEVICE HackSealPart seal_part_of(const HackSealBatch& batch, int place, int head) {
  const HackSealPlace at = batch.places[place];
  const hack::Plane& plane = kKeys ? batch.k : batch.v;
  const std::size_t row_bytes = std::size_t{2} * kBlockTokens * batch.head_dim;
  std::byte* const page = batch.slabs + at.sealed * batch.block_bytes + head * batch.layout.bytes;
  const std::size_t metadata = kKeys ? batch.layout.k_metadata : batch.layout.v_metadata;
  const std::size_t end = kKeys ? batch.layout.v_metadata : batch.layout.bytes;
  const bool both = plane.axis == hack::Axis::kBoth;
  return {batch.rows + at.rows * batch.rows_block_bytes + (2 * head + (kKeys ? 0 : 1)) * row_bytes,
          page + (kKeys ? 0 : batch.layout.v_codes),
          page + metadata,
          static_cast<std::int32_t>(end - metadata),
          batch.head_dim,
          plane.bits,
          both ? 0 : plane.partition,
          batch.mix,
          both ? 0x1p14F : 65504.0F,
          batch.beyond + 2 * (std::size_t(place) * batch.kv_heads + head) + (kKeys ? 0 : 1)};
}

template <int kDim>
struct HackSealShared {
  float least[kHackSealWarps][kDim], greatest[kHackSealWarps][kDim];
  float sums[kDim];             // over tokens
  float weights[kBlockTokens];  // of tokens: by both
  std::uint32_t wrong;
  std::uint32_t words[kBlockTokens * kDim / 4];  // of codes, at most 8 bits each
};

namespace hack_seal {

using namespace gpu;

inline constexpr int kTokens = kBlockTokens / kHackSealWarps;  // of a warp
inline constexpr float kRound = 0x1.8p23F;  // adding it rounds to a whole number, half to even

// A warp's values: [token][channel / 32].
template <int kDim>
struct Values {
  float of[kTokens][kDim / 32];
};

// Binary16 next to a float; zero is +0.
KVLANE_DEVICE std::uint32_t fp16_below(float x) {
#ifdef __CUDA_ARCH__
  std::uint16_t bits;
  asm("cvt.rm.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return x == 0 ? 0U : bits;
#else
  return fp16_not_above(x).bits;
#endif
}
// Of numbers that are not negative.
KVLANE_DEVICE std::uint32_t fp16_above(float x) {
#ifdef __CUDA_ARCH__
  std::uint16_t bits;
  asm("cvt.rp.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
#else
  return fp16_not_below(x).bits;
#endif
}
KVLANE_DEVICE std::uint32_t fp16_nearest(float x) { return pack_fp16(x, 0) & 0xFFFF; }

KVLANE_DEVICE float smaller(float a, float b) { return -larger(-a, -b); }

// As std::min and std::max: of two zeros the first, whose sign may be stored.
KVLANE_DEVICE float later_if_smaller(float a, float b) { return b < a ? b : a; }
KVLANE_DEVICE float later_if_larger(float a, float b) { return a < b ? b : a; }

// Sums of all channels in the order of the specification: 16 sums, then halves onto halves. A
// channel's partner at 16 is in the same sum.
template <int kParts, class Thread>
KVLANE_DEVICE float row_sum(Thread& t, const float (&x)[kParts]) {
  const bool low = t.lane() < 16;
  float sum = 0;
  KVLANE_UNROLL
  for (int i = 0; i < kParts; ++i) {
    const float other = float_of(t.shuffle(bits_of(x[i]), t.lane() ^ 16));
    sum += low ? x[i] : other;
    sum += low ? other : x[i];
  }
  KVLANE_UNROLL
  for (int half = 8; half > 0; half /= 2) {
    sum += float_of(t.shuffle(bits_of(sum), t.lane() ^ half));
  }
  return sum;
}

// Channels behind the row are 0.
template <int kDim, class Thread>
KVLANE_DEVICE void load_rows(Thread& t, const HackSealPart& part, Values<kDim>& values,
                             std::uint32_t& wrong) {
  bool right = true;
  KVLANE_UNROLL
  for (int j = 0; j < kTokens; ++j) {
    const std::size_t row = std::size_t(kTokens * t.warp() + j) * part.head_dim;
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) {
      const int channel = kWarpThreads * i + t.lane();
      float& x = values.of[j][i];
      x = 0;
      if (channel < part.head_dim) {
        x = float_of(load_aligned_half(part.rows + 2 * (row + channel)) << 16);
      }
    }
    mix_row(t, part.mix, values.of[j]);
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) right = right && std::abs(values.of[j][i]) <= part.limit;
  }
  const bool is_wrong = any_wrong(t, wrong, right);
  if (t.index() == 0) *part.beyond = is_wrong ? 1 : 0;
}

// Each channel's least and greatest value of a warp's tokens, and of `warps` warps from `first` on.
template <int kDim, class Thread>
KVLANE_DEVICE void share_ranges(Thread& t, const Values<kDim>& values,
                                HackSealShared<kDim>& shared) {
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    float least = values.of[0][i], greatest = least;
    KVLANE_UNROLL
    for (int j = 1; j < kTokens; ++j) {
      least = later_if_smaller(least, values.of[j][i]);
      greatest = later_if_larger(greatest, values.of[j][i]);
    }
    shared.least[t.warp()][kWarpThreads * i + t.lane()] = least;
    shared.greatest[t.warp()][kWarpThreads * i + t.lane()] = greatest;
  }
  t.sync_block();
}
template <int kDim>
KVLANE_DEVICE void range_of(const HackSealShared<kDim>& shared, int channel, int first, int warps,
                            float& least, float& greatest) {
  least = shared.least[first][channel];
  greatest = shared.greatest[first][channel];
  for (int w = first + 1; w < first + warps; ++w) {
    least = later_if_smaller(least, shared.least[w][channel]);
    greatest = later_if_larger(greatest, shared.greatest[w][channel]);
  }
}

// Puts a code into its word, of bits that are 0. Lanes whose channels share a word of K add up
// first. All lanes of the warp come here.
template <bool kKeys, int kDim, class Thread>
KVLANE_DEVICE void put_code(Thread& t, const HackSealPart& part, int token, int channel,
                            std::uint32_t code, HackSealShared<kDim>& shared) {
  const bool there = channel < part.head_dim;
  const hack::CodePlace place = kKeys ? hack::key_place(part.bits, token, channel)
                                      : hack::value_place(part.bits, part.head_dim, token, channel);
  std::uint32_t word = code << place.bit;
  if (!kKeys) {
    if (there) t.add(shared.words[place.word], word);
    return;
  }
  const int lanes = 32 / part.bits;
  KVLANE_UNROLL
  for (int by = 1; by < 16; by *= 2) {
    const std::uint32_t other = t.shuffle(word, t.lane() ^ by);
    if (by < lanes) word |= other;
  }
  if (there && t.lane() % lanes == 0) shared.words[place.word] = word;
}

// m, s and 1 / s of a partition, and m and s as they are stored.
struct Affine {
  float m, inverse;
  std::uint32_t entry;
};
KVLANE_DEVICE Affine affine_of(float least, float greatest, float most) {
  const std::uint32_t minimum = fp16_below(least);
  const float m = low_fp16(minimum);
  const std::uint32_t scale = fp16_above((greatest - m) / most);
  const float s = low_fp16(scale);
  return {m, s == 0 ? 0.0F : 1.0F / s, minimum | scale << 16};
}
KVLANE_DEVICE std::uint32_t code_of(const Affine& affine, float x, float most) {
  const float code = fused(x - affine.m, affine.inverse, kRound) - kRound;
  return static_cast<std::uint32_t>(smaller(larger(code, 0), most));
}

KVLANE_DEVICE void store_entry(const HackSealPart& part, int entry, std::uint32_t word) {
  std::byte* const at = part.metadata + hack::kEntryBytes * entry;
  store_aligned_half(at, word);
  store_aligned_half(at + 2, word >> 16);
}

template <int kDim, class Thread>
KVLANE_DEVICE void seal_by_token(Thread& t, const HackSealPart& part, const Values<kDim>& values,
                                 HackSealShared<kDim>& shared) {
  const float most = static_cast<float>((1 << part.bits) - 1);
  const int run = part.partition / kWarpThreads;
  KVLANE_UNROLL
  for (int j = 0; j < kTokens; ++j) {
    const int token = kTokens * t.warp() + j;
    // Of the 32 channels of a part, then of a partition; channels behind the row are in none.
    float least[kDim / 32], greatest[kDim / 32];
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) {
      const bool there = kWarpThreads * i + t.lane() < part.head_dim;
      const float x = values.of[j][i];
      least[i] = -max_of_lanes(t, there ? -x : minus_infinity());
      greatest[i] = max_of_lanes(t, there ? x : minus_infinity());
    }
    // Pairs of parts, then of pairs: all of a partition have its range.
    KVLANE_UNROLL
    for (int by = 1; by < kDim / 32; by *= 2) {
      if (by >= run) continue;
      KVLANE_UNROLL
      for (int i = 0; i < kDim / 32; ++i) {
        if ((i & by) != 0) continue;
        least[i] = least[i + by] = smaller(least[i], least[i + by]);
        greatest[i] = greatest[i + by] = larger(greatest[i], greatest[i + by]);
      }
    }
    KVLANE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) {
      const int channel = kWarpThreads * i + t.lane();
      if (kWarpThreads * i >= part.head_dim) continue;
      const Affine affine = affine_of(least[i], greatest[i], most);
      if (i % run == 0 && t.lane() == 0) {
        store_entry(part, i / run * kBlockTokens + token, affine.entry);
      }
      put_code<true>(t, part, token, channel, code_of(affine, values.of[j][i], most), shared);
    }
  }
}

template <int kDim, class Thread>
KVLANE_DEVICE void seal_by_channel(Thread& t, const HackSealPart& part, const Values<kDim>& values,
                                   HackSealShared<kDim>& shared) {
  const float most = static_cast<float>((1 << part.bits) - 1);
  const int warps = part.partition / kTokens;  // of a partition
  const int first = t.warp() / warps * warps;
  share_ranges(t, values, shared);
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    float least, greatest;
    range_of(shared, channel, first, warps, least, greatest);
    const Affine affine = affine_of(least, greatest, most);
    if (t.warp() == first && channel < part.head_dim) {
      store_entry(part, t.warp() / warps * part.head_dim + channel, affine.entry);
    }
    KVLANE_UNROLL
    for (int j = 0; j < kTokens; ++j) {
      put_code<false>(t, part, kTokens * t.warp() + j, channel,
                      code_of(affine, values.of[j][i], most), shared);
    }
  }
}

// Codes of one token around the middles of channels. Its values become their errors times its
// weight, which is returned.
template <bool kKeys, int kDim, class Thread>
KVLANE_DEVICE float seal_token(Thread& t, const HackSealPart& part, int token,
                               const float (&middles)[kDim / 32], float (&x)[kDim / 32],
                               HackSealShared<kDim>& shared) {
  constexpr float kStepOf2Bits = 0.996F, kStepMin = 0x1p-24F;
  const float most = static_cast<float>((1 << part.bits) - 1), middle = most / 2;
  float y[kDim / 32], terms[kDim / 32];
  float greatest = 0;
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    y[i] = x[i] - middles[i];
    terms[i] = times(y[i], y[i]);
    greatest = larger(greatest, std::abs(y[i]));
  }
  const float squares = row_sum(t, terms);
  greatest = max_of_lanes(t, greatest);
  const float step =
      part.bits == 2 ? times(std::sqrt(squares / static_cast<float>(part.head_dim)), kStepOf2Bits)
                     : greatest / middle;
  const float inverse = step >= kStepMin ? 1.0F / step : 0.0F;
  float code[kDim / 32];
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const float rounded = (fused(y[i], inverse, middle) + kRound) - kRound;
    code[i] = smaller(larger(rounded, 0), most);
    put_code<kKeys>(t, part, token, kWarpThreads * i + t.lane(),
                    static_cast<std::uint32_t>(code[i]), shared);
    code[i] -= middle;
    terms[i] = times(y[i], code[i]);
  }
  const float product = row_sum(t, terms);
  const std::uint32_t scale = inverse == 0 ? 0 : fp16_nearest(squares / product);
  if (t.lane() == 0) {
    store_aligned_half(part.metadata + hack::scales_offset(part.head_dim) + 2 * token, scale);
  }
  const float s = low_fp16(scale), weight = s > 0 ? 1.0F / s : 0.0F;
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) x[i] = times(weight, fused(-s, code[i], x[i]));
  return weight;
}

// Sums over the page's tokens in their order, one warp after another: shared.sums has those of all
// channels in the end. By all threads of the block.
template <int kDim, class Thread>
KVLANE_DEVICE void sum_tokens(Thread& t, const Values<kDim>& terms, HackSealShared<kDim>& shared) {
  for (int w = 0; w < kHackSealWarps; ++w) {
    if (t.warp() == w) {
      KVLANE_UNROLL
      for (int i = 0; i < kDim / 32; ++i) {
        float& total = shared.sums[kWarpThreads * i + t.lane()];
        float sum = w == 0 ? 0 : total;
        KVLANE_UNROLL
        for (int j = 0; j < kTokens; ++j) sum += terms.of[j][i];
        total = sum;
      }
    }
    t.sync_block();
  }
}

// The middle of each channel's range, of values far from all others only as much as four mean
// distances: see the specification.
template <int kDim, class Thread>
KVLANE_DEVICE void find_middles(Thread& t, const Values<kDim>& values, float (&middles)[kDim / 32],
                                HackSealShared<kDim>& shared) {
  constexpr float kNear = 4;
  float least[kDim / 32], greatest[kDim / 32], mean[kDim / 32];
  share_ranges(t, values, shared);
  sum_tokens(t, values, shared);
  Values<kDim> distances{};
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    range_of(shared, channel, 0, kHackSealWarps, least[i], greatest[i]);
    mean[i] = ((shared.sums[channel] - least[i]) - greatest[i]) / (kBlockTokens - 2);
    KVLANE_UNROLL
    for (int j = 0; j < kTokens; ++j) distances.of[j][i] = std::abs(values.of[j][i] - mean[i]);
  }
  t.sync_block();
  share_ranges(t, distances, shared);
  sum_tokens(t, distances, shared);
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    float nearest, farthest;
    range_of(shared, channel, 0, kHackSealWarps, nearest, farthest);
    const float near = times((shared.sums[channel] - farthest) / (kBlockTokens - 1), kNear);
    middles[i] = times(
        later_if_larger(least[i], mean[i] - near) + later_if_smaller(greatest[i], mean[i] + near),
        0.5F);
  }
  t.sync_block();
}

template <bool kKeys, int kDim, class Thread>
KVLANE_DEVICE void seal_by_both(Thread& t, const HackSealPart& part, Values<kDim>& values,
                                HackSealShared<kDim>& shared) {
  float middles[kDim / 32];
  find_middles(t, values, middles, shared);
  KVLANE_UNROLL
  for (int j = 0; j < kTokens; ++j) {
    const int token = kTokens * t.warp() + j;
    const float weight = seal_token<kKeys>(t, part, token, middles, values.of[j], shared);
    if (t.lane() == 0) shared.weights[token] = weight;
  }
  sum_tokens(t, values, shared);
  float weights = 0;
  for (int token = 0; token < kBlockTokens; ++token) weights += shared.weights[token];
  if (t.warp() != 0) return;
  KVLANE_UNROLL
  for (int i = 0; i < kDim / 32; ++i) {
    const int channel = kWarpThreads * i + t.lane();
    const float mean = weights > 0 ? shared.sums[channel] / weights : middles[i];
    if (channel < part.head_dim) {
      store_aligned_half(part.metadata + 2 * channel, fp16_nearest(mean));
    }
  }
}

}  // namespace hack_seal

// By all threads of a block of kHackSealWarps warps. kDim is at least part.head_dim.
template <bool kKeys, bool kBoth, int kDim, class Thread>
KVLANE_DEVICE void seal_part(Thread& t, const HackSealPart& part, HackSealShared<kDim>& shared) {
  using namespace gpu;
  const int words = kBlockTokens * part.head_dim * part.bits / 32;
  for (int i = t.index(); i < words; i += t.threads()) shared.words[i] = 0;
  if (t.index() == 0) shared.wrong = 0;
  t.sync_block();
  hack_seal::Values<kDim> values;
  hack_seal::load_rows(t, part, values, shared.wrong);
  if constexpr (kBoth) {
    hack_seal::seal_by_both<kKeys>(t, part, values, shared);
  } else if constexpr (kKeys) {
    hack_seal::seal_by_token(t, part, values, shared);
  } else {
    hack_seal::seal_by_channel(t, part, values, shared);
  }
  t.sync_block();
  for (int i = 4 * t.index(); i < words; i += 4 * t.threads()) {
    store_once(part.codes + 4 * i,
               {{shared.words[i], shared.words[i + 1], shared.words[i + 2], shared.words[i + 3]}});
  }
  const int used = kBoth ? 2 * (part.head_dim + kBlockTokens) : part.metadata_bytes;
  store_zeros(t, part.metadata, used, part.metadata_bytes);
}

}  // namespace kvlane
