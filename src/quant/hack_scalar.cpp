// Codes for attention in plain C++: the judge of all other tiers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/bf16_bounds.h"
#include "base/fp16_bounds.h"
#include "base/random.h"
#include "quant/hack_kernels.h"

namespace kvlane::hack {
namespace {

// Adding it to a number below 2^22 rounds that to a whole one, half to even, and leaves it in the
// low bits.
constexpr float kRound = 0x1.8p23F;
constexpr std::int32_t kRoundBits = 0x4b400000;

constexpr std::uint16_t kLeastNormalBf16 = 0x0080;

// The step of four evenly spaced values that fits a normal distribution best, in its deviations.
constexpr float kStepOf2Bits = 0.996F;
// The width of what is near, in mean distances: normal values hardly ever reach it.
constexpr float kNear = 4;
// Of smaller ones fp16 and one over them are no good: such tokens are their channels' middles.
constexpr float kStepMin = 0x1p-24F;

struct Partition {
  int token, tokens;
  int channel, channels;
};

Partition partition_of(const Plane& plane, int head_dim, int entry) {
  if (plane.axis == Axis::kToken) {
    const int channel = entry / kBlockTokens * plane.partition;
    return {entry % kBlockTokens, 1, channel, std::min(plane.partition, head_dim - channel)};
  }
  const int token = entry / head_dim * plane.partition;
  return {token, std::min(plane.partition, kBlockTokens - token), entry % head_dim, 1};
}

// body(token, channel) for each value of a partition.
template <class Body>
void for_each(const Partition& partition, const Body& body) {
  for (int token = partition.token; token < partition.token + partition.tokens; ++token) {
    const int end = partition.channel + partition.channels;
    for (int channel = partition.channel; channel < end; ++channel) body(token, channel);
  }
}

CodePlace place_of(Part part, int bits, int head_dim, int token, int channel) {
  return part == Part::kKeys ? key_place(bits, token, channel)
                             : value_place(bits, head_dim, token, channel);
}

std::uint32_t read_word(const std::byte* codes, int word) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, codes + sizeof(bits) * word, sizeof(bits));
  return bits;
}

// Into bits that are zero.
void add_code(const SealJob& job, int token, int channel, std::uint32_t code) {
  const CodePlace place = place_of(job.part, job.plane.bits, job.head_dim, token, channel);
  const std::uint32_t word = read_word(job.codes, place.word) | code << place.bit;
  std::memcpy(job.codes + sizeof(word) * place.word, &word, sizeof(word));
}

std::uint16_t not_above(Meta meta, float x) {
  return meta == Meta::kFp16 ? fp16_not_above(x).bits : bf16_not_above(x).bits;
}
// A scale. One over it is finite: 2^-24 and 2^-126 are the least.
std::uint16_t not_below(Meta meta, float x) {
  if (meta == Meta::kFp16) return fp16_not_below(x).bits;
  return x == 0 ? std::uint16_t{0} : std::max(bf16_not_below(x).bits, kLeastNormalBf16);
}
float value_of(Meta meta, std::uint16_t bits) {
  return meta == Meta::kFp16 ? to_float(fp16{bits}) : to_float(bf16{bits});
}

float at(const SealJob& job, int token, int channel) {
  return job.rows[std::size_t(token) * job.head_dim + channel];
}

std::int32_t code_of(const SealJob& job, int token, int channel, float m, float inverse) {
  const float x = at(job, token, channel) - m;
  if (job.rounding == Rounding::kNearest) {
    return std::bit_cast<std::int32_t>(std::fma(x, inverse, kRound)) - kRoundBits;
  }
  const auto odd = static_cast<float>(2 * random_bits(job, token, channel) + 1);
  return static_cast<std::int32_t>(std::fma(x, inverse, odd * 0x1p-17F));
}

void seal_partitions(const SealJob& job) {
  const int most = (1 << job.plane.bits) - 1;
  const int count = entries(job.plane, job.head_dim);
  for (int entry = 0; entry < count; ++entry) {
    const Partition partition = partition_of(job.plane, job.head_dim, entry);
    float least = at(job, partition.token, partition.channel);
    float greatest = least;
    for_each(partition, [&](int token, int channel) {
      least = std::min(least, at(job, token, channel));
      greatest = std::max(greatest, at(job, token, channel));
    });
    const Meta meta = job.plane.meta;
    const std::uint16_t minimum = not_above(meta, least);
    const float m = value_of(meta, minimum);
    const std::uint16_t scale = not_below(meta, (greatest - m) / static_cast<float>(most));
    const float s = value_of(meta, scale);
    std::memcpy(job.metadata + kEntryBytes * entry, &minimum, sizeof(minimum));
    std::memcpy(job.metadata + kEntryBytes * entry + sizeof(minimum), &scale, sizeof(scale));
    const float inverse = s == 0 ? 0.0F : 1.0F / s;
    for_each(partition, [&](int token, int channel) {
      const std::int32_t code = std::clamp(code_of(job, token, channel, m, inverse), 0, most);
      add_code(job, token, channel, static_cast<std::uint32_t>(code));
    });
  }
}

// A token's sum over channels: 16 partial sums, then halves onto halves, as vectors do it.
template <class Term>
float row_sum(int head_dim, const Term& term) {
  constexpr int kLanes = 16;
  float sums[kLanes] = {};
  for (int channel = 0; channel < head_dim; ++channel) sums[channel % kLanes] += term(channel);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

std::uint16_t nearest(Meta meta, float x) {
  return meta == Meta::kFp16 ? to_fp16(x).bits : to_bf16(x).bits;
}

// The middle of the range of a channel's values, of those far from the others only as much as
// kNear mean distances: one large token must not take the middle away from all others.
float middle_of_channel(const SealJob& job, int channel) {
  float least = at(job, 0, channel);
  float greatest = least;
  float sum = least;
  for (int token = 1; token < kBlockTokens; ++token) {
    const float x = at(job, token, channel);
    least = std::min(least, x);
    greatest = std::max(greatest, x);
    sum += x;
  }
  const float mean = ((sum - least) - greatest) / (kBlockTokens - 2);
  float distances = 0;
  float farthest = 0;
  for (int token = 0; token < kBlockTokens; ++token) {
    const float distance = std::abs(at(job, token, channel) - mean);
    distances += distance;
    farthest = std::max(farthest, distance);
  }
  const float near = (distances - farthest) / (kBlockTokens - 1) * kNear;
  return (std::max(least, mean - near) + std::min(greatest, mean + near)) * 0.5F;
}

// Codes of a token around the middles of channels; its scale as it is stored.
std::uint16_t seal_token(const SealJob& job, int token, const float* middles, float* values) {
  const int d = job.head_dim;
  const auto rest = [&](int channel) { return at(job, token, channel) - middles[channel]; };
  const float squares = row_sum(d, [&](int channel) { return rest(channel) * rest(channel); });
  float step = 0;
  if (job.plane.bits == 2) {
    step = std::sqrt(squares / static_cast<float>(d)) * kStepOf2Bits;
  } else {
    for (int channel = 0; channel < d; ++channel) step = std::max(step, std::abs(rest(channel)));
    step /= middle_code(job.plane);
  }
  const float inverse = step >= kStepMin ? 1.0F / step : 0.0F;
  const float middle = middle_code(job.plane);
  const int most = (1 << job.plane.bits) - 1;
  for (int channel = 0; channel < d; ++channel) {
    const float code = std::nearbyint(std::fma(rest(channel), inverse, middle));
    values[channel] = std::clamp(code, 0.0F, static_cast<float>(most)) - middle;
    add_code(job, token, channel, static_cast<std::uint32_t>(values[channel] + middle));
  }
  // What makes the coded vector right along the vector itself.
  const float product = row_sum(d, [&](int channel) { return rest(channel) * values[channel]; });
  return inverse == 0 ? std::uint16_t{0} : nearest(job.plane.meta, squares / product);
}

void seal_both(const SealJob& job) {
  const int d = job.head_dim;
  const Meta meta = job.plane.meta;
  float middles[kHeadDimMax];
  float values[kHeadDimMax];
  float errors[kHeadDimMax] = {};
  float weights = 0;
  for (int channel = 0; channel < d; ++channel) middles[channel] = middle_of_channel(job, channel);
  for (int token = 0; token < kBlockTokens; ++token) {
    const std::uint16_t scale = seal_token(job, token, middles, values);
    std::memcpy(job.metadata + scales_offset(d) + sizeof(scale) * token, &scale, sizeof(scale));
    const float s = value_of(meta, scale);
    // Errors count in units of their token's scale: a large one's would drown all others.
    const float weight = s > 0 ? 1.0F / s : 0.0F;
    weights += weight;
    for (int channel = 0; channel < d; ++channel) {
      errors[channel] += weight * std::fma(-s, values[channel], at(job, token, channel));
    }
  }
  for (int channel = 0; channel < d; ++channel) {
    const float mean = weights > 0 ? errors[channel] / weights : middles[channel];
    const std::uint16_t stored = nearest(meta, mean);
    std::memcpy(job.metadata + sizeof(stored) * channel, &stored, sizeof(stored));
  }
}

struct Affine {
  float m, s, offset;  // offset: what is taken from codes
};

Affine affine_of(const OpenJob& job, int token, int channel) {
  const bool both = job.plane.axis == Axis::kBoth;
  const std::size_t entry = both ? 2 * std::size_t(channel)
                                 : kEntryBytes * entry_of(job.plane, job.head_dim, token, channel);
  const std::size_t scale = both ? scales_offset(job.head_dim) + 2 * std::size_t(token) : entry + 2;
  std::uint16_t m = 0;
  std::uint16_t s = 0;
  std::memcpy(&m, job.metadata + entry, sizeof(m));
  std::memcpy(&s, job.metadata + scale, sizeof(s));
  return {value_of(job.plane.meta, m), value_of(job.plane.meta, s),
          both ? middle_code(job.plane) : 0.0F};
}

}  // namespace

std::uint32_t random_bits(const SealJob& job, int token, int channel) {
  // One call for 8 values of a partition: channels of a token, or tokens of a channel.
  const bool tokens = job.plane.axis == Axis::kToken;
  const int along = tokens ? channel : token;
  const std::uint32_t position = job.draw.position + (tokens ? token : token / 8 * 8);
  const auto words = philox4x32(
      kDrawKey, {position, static_cast<std::uint32_t>(tokens ? channel / 8 : channel),
                 2 * job.draw.kv_head + (job.part == Part::kKeys ? 0 : 1), job.draw.layer});
  return words[along % 8 / 2] >> 16 * (along % 2) & 0xffffU;
}

void seal_scalar(const SealJob& job) {
  std::memset(job.codes, 0, codes_bytes(job.plane, job.head_dim));
  job.plane.axis == Axis::kBoth ? seal_both(job) : seal_partitions(job);
}

void open_scalar(const OpenJob& job) {
  const std::uint32_t mask = (1U << job.plane.bits) - 1;
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int channel = 0; channel < job.head_dim; ++channel) {
      const CodePlace place = place_of(job.part, job.plane.bits, job.head_dim, token, channel);
      const std::uint32_t code = read_word(job.codes, place.word) >> place.bit & mask;
      const Affine affine = affine_of(job, token, channel);
      job.rows[std::size_t(token) * job.head_dim + channel] =
          std::fma(affine.s, static_cast<float>(code) - affine.offset, affine.m);
    }
  }
}

SealKernel seal_kernel(const Plane& plane, Part part, Rounding rounding, Isa isa) {
  SealKernel vectors = nullptr;
  if constexpr (kX86) {
    if (isa >= Isa::kAvx2) vectors = seal_kernel_avx2(plane, part, rounding);
    if (isa >= Isa::kAvx512) vectors = seal_kernel_avx512(plane, part, rounding);
  }
  return vectors != nullptr ? vectors : seal_scalar;
}

OpenKernel open_kernel(const Plane& plane, Part part, Isa isa) {
  OpenKernel vectors = nullptr;
  if constexpr (kX86) {
    if (isa >= Isa::kAvx2) vectors = open_kernel_avx2(plane, part);
    if (isa >= Isa::kAvx512) vectors = open_kernel_avx512(plane, part);
  }
  return vectors != nullptr ? vectors : open_scalar;
}

}  // namespace kvlane::hack
