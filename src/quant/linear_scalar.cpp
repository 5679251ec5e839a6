// Linear codes in plain C++: the judge of all other tiers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/fp16_bounds.h"
#include "quant/linear_kernels.h"

namespace kvlane::linear {
namespace {

// Adding it to a number below 2^22 rounds that to a whole one, half to even, and leaves it in the
// low bits.
constexpr float kRound = 0x1.8p23F;
constexpr std::uint32_t kRoundBits = 0x4b400000;

constexpr std::uint16_t kNan = 0x7fc0;

// The values of a group.
struct Group {
  int token, tokens;
  int channel, channels;
};

Group group_of(const Plane& plane, int head_dim, int entry) {
  switch (plane.groups) {
    case Groups::kPage: return {0, kBlockTokens, 0, head_dim};
    case Groups::kRow: {
      const int channel = entry / kBlockTokens * plane.group;
      return {entry % kBlockTokens, 1, channel, std::min(plane.group, head_dim - channel)};
    }
    default: return {entry / head_dim * plane.group, plane.group, entry % head_dim, 1};
  }
}

// body(token, channel) for each value of a group.
template <class Body>
void for_each(const Group& group, const Body& body) {
  for (int token = group.token; token < group.token + group.tokens; ++token) {
    for (int channel = group.channel; channel < group.channel + group.channels; ++channel) {
      body(token, channel);
    }
  }
}

// A field of 2, 4 or 8 bits in words of 16 along the tokens.
struct Field {
  std::size_t byte;  // of its word
  int shift;
  std::uint32_t mask;
};

Field field(int bits, int head_dim, int token, int channel) {
  const int codes = 16 / bits;
  return {2 * (std::size_t(token / codes) * head_dim + channel), bits * (token % codes),
          (1U << bits) - 1};
}

std::uint32_t read_field(const std::byte* words, const Field& f) {
  std::uint16_t word = 0;
  std::memcpy(&word, words + f.byte, sizeof(word));
  return static_cast<std::uint32_t>(word >> f.shift) & f.mask;
}

void add_field(std::byte* words, const Field& f, std::uint32_t code) {
  std::uint16_t word = 0;
  std::memcpy(&word, words + f.byte, sizeof(word));
  word = static_cast<std::uint16_t>(word | (code & f.mask) << f.shift);
  std::memcpy(words + f.byte, &word, sizeof(word));
}

// The plane of bits 4-5 of 6-bit codes lies behind that of bits 0-3.
std::size_t pairs_offset(int head_dim) { return std::size_t{32} * head_dim; }

std::uint32_t read_code(const OpenJob& job, int token, int channel) {
  const int bits = code_bits(job.plane.code);
  if (bits != 6) return read_field(job.codes, field(bits, job.head_dim, token, channel));
  return read_field(job.codes, field(4, job.head_dim, token, channel)) |
         read_field(job.codes + pairs_offset(job.head_dim), field(2, job.head_dim, token, channel))
             << 4;
}

// Into fields that are zero.
void add_code(const SealJob& job, int token, int channel, std::uint32_t code) {
  const int bits = code_bits(job.plane.code);
  if (bits != 6) return add_field(job.codes, field(bits, job.head_dim, token, channel), code);
  add_field(job.codes, field(4, job.head_dim, token, channel), code);
  add_field(job.codes + pairs_offset(job.head_dim), field(2, job.head_dim, token, channel),
            code >> 4);
}

float at(const SealJob& job, int token, int channel) {
  return to_float(bf16{job.rows[std::size_t(token) * job.head_dim + channel]});
}

// `x` in steps of the spacing that values of the type have at its exponent; by the bits of floats,
// as vectors do it.
std::uint32_t float_code(float x, float inverse_scale, CodeKind code) {
  const SmallFloat type = small_float(code);
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) >> 31;
  const float y = std::abs(x) * inverse_scale;
  const auto least = static_cast<std::uint32_t>(127 + 1 - type.bias);
  const std::uint32_t exponent = std::max(std::bit_cast<std::uint32_t>(y) >> 23, least);
  // Its last bit is the spacing: adding it rounds, half to even.
  const std::uint32_t anchor = (exponent + 23 - type.mantissa_bits) << 23;
  const std::uint32_t steps =
      std::bit_cast<std::uint32_t>(y + std::bit_cast<float>(anchor)) - anchor;
  const std::uint32_t magnitude =
      std::min(steps + ((exponent - least) << type.mantissa_bits), type.largest);
  return magnitude | sign << (code_bits(code) - 1);
}

// Never NaN or infinity: patterns beyond the largest value are numbers as well.
float float_value(std::uint32_t code, CodeKind kind) {
  const SmallFloat type = small_float(kind);
  const std::uint32_t sign = code >> (code_bits(kind) - 1);
  const auto magnitude = static_cast<int>(code & ((1U << (code_bits(kind) - 1)) - 1));
  const int exponent = magnitude >> type.mantissa_bits;
  const int hidden = exponent > 0 ? 1 << type.mantissa_bits : 0;
  const int mantissa = (magnitude & ((1 << type.mantissa_bits) - 1)) + hidden;
  const float value = std::ldexp(static_cast<float>(mantissa),
                                 std::max(exponent, 1) - type.bias - type.mantissa_bits);
  return sign != 0 ? -value : value;
}

void seal_floats(const SealJob& job, const Group& group, std::byte* entry) {
  std::uint32_t most = 0;
  for_each(group, [&](int token, int channel) {
    most = std::max(most, job.rows[std::size_t(token) * job.head_dim + channel] & 0x7fffU);
  });
  const int emax = small_float(job.plane.code).emax;
  const int above = !job.plane.saturates && (most & 0x7fU) > 0x60U ? 1 : 0;
  const int e = std::clamp(static_cast<int>(most >> 7) - emax + above, 0, 254 - emax);
  *entry = std::byte(e);
  const float inverse_scale = std::bit_cast<float>(static_cast<std::uint32_t>(254 - e) << 23);
  for_each(group, [&](int token, int channel) {
    add_code(job, token, channel,
             float_code(at(job, token, channel), inverse_scale, job.plane.code));
  });
}

// The whole number next to a * b, half to even, as 32 bits.
std::uint32_t rounded_product(float a, float b) {
  return std::bit_cast<std::uint32_t>(std::fma(a, b, kRound)) - kRoundBits;
}

void seal_integers(const SealJob& job, const Group& group, std::byte* entry) {
  float least = at(job, group.token, group.channel);
  float greatest = least;
  for_each(group, [&](int token, int channel) {
    least = std::min(least, at(job, token, channel));
    greatest = std::max(greatest, at(job, token, channel));
  });
  const int bits = code_bits(job.plane.code);
  const bool has_min = job.plane.entry == Entry::kMinScale;
  const fp16 minimum = has_min ? fp16_not_above(least) : fp16{0};
  const float m = to_float(minimum);
  const float steps = static_cast<float>(has_min ? (1 << bits) - 1 : (1 << (bits - 1)) - 1);
  const float range = has_min ? greatest - m : std::max(std::abs(least), std::abs(greatest));
  const fp16 scale = fp16_not_below(range / steps);
  const float inverse = scale.bits == 0 ? 0.0F : 1.0F / to_float(scale);
  if (has_min) std::memcpy(entry, &minimum, sizeof(minimum));
  std::memcpy(entry + (has_min ? sizeof(minimum) : 0), &scale, sizeof(scale));
  const auto offset = static_cast<std::uint32_t>(code_offset(job.plane.code));
  for_each(group, [&](int token, int channel) {
    add_code(job, token, channel, rounded_product(at(job, token, channel) - m, inverse) + offset);
  });
}

// m and s of a group; `valid` unless one of them is NaN or infinite.
struct Affine {
  float m, s;
  bool valid;
};

Affine affine_of(const OpenJob& job, int entry) {
  const std::byte* const from = job.metadata + entry_bytes(job.plane.entry) * entry;
  if (job.plane.entry == Entry::kE8m0) {
    const int e = std::to_integer<int>(*from);
    return {0.0F, std::ldexp(1.0F, e - 127), e != 255};
  }
  fp16 minimum{0};
  fp16 scale{0};
  const bool has_min = job.plane.entry == Entry::kMinScale;
  if (has_min) std::memcpy(&minimum, from, sizeof(minimum));
  std::memcpy(&scale, from + (has_min ? sizeof(minimum) : 0), sizeof(scale));
  const auto finite = [](fp16 x) { return (x.bits & 0x7c00U) != 0x7c00U; };
  return {to_float(minimum), to_float(scale), finite(minimum) && finite(scale)};
}

}  // namespace

void seal_scalar(const SealJob& job) {
  std::memset(job.codes, 0, codes_bytes(job.plane, job.head_dim));
  const int count = entries(job.plane, job.head_dim);
  for (int i = 0; i < count; ++i) {
    const Group group = group_of(job.plane, job.head_dim, i);
    std::byte* const entry = job.metadata + entry_bytes(job.plane.entry) * i;
    if (is_float(job.plane.code)) {
      seal_floats(job, group, entry);
    } else {
      seal_integers(job, group, entry);
    }
  }
}

void open_group_scalar(const OpenJob& job, int entry) {
  const Affine affine = affine_of(job, entry);
  const CodeKind kind = job.plane.code;
  for_each(group_of(job.plane, job.head_dim, entry), [&](int token, int channel) {
    const std::uint32_t code = read_code(job, token, channel);
    const float value = is_float(kind)
                            ? float_value(code, kind)
                            : static_cast<float>(static_cast<int>(code) - code_offset(kind));
    // A zero minimum leaves a floating-point code the sign of its zero; integers have none.
    const float x = is_float(kind) ? affine.s * value : affine.m + affine.s * value;
    job.rows[std::size_t(token) * job.head_dim + channel] = affine.valid ? to_bf16(x).bits : kNan;
  });
}

void open_scalar(const OpenJob& job) {
  const int count = entries(job.plane, job.head_dim);
  for (int i = 0; i < count; ++i) open_group_scalar(job, i);
}

SealKernel seal_kernel(const Plane& plane, Isa isa) {
  SealKernel vectors = nullptr;
  if constexpr (kX86) {
    if (isa >= Isa::kAvx2) vectors = seal_kernel_avx2(plane);
    if (isa >= Isa::kAvx512) vectors = seal_kernel_avx512(plane);
  }
  return vectors != nullptr ? vectors : seal_scalar;
}

OpenKernel open_kernel(const Plane& plane, Isa isa) {
  OpenKernel vectors = nullptr;
  if constexpr (kX86) {
    if (isa >= Isa::kAvx2) vectors = open_kernel_avx2(plane);
    const bool floats = plane.code >= CodeKind::kE4m3;
    if (isa >= Isa::kAvx512 && floats) vectors = open_floats_avx512(plane);
    if (isa == Isa::kAvx512Bf16 && !floats) vectors = open_integers_avx512_bf16(plane);
  }
  return vectors != nullptr ? vectors : open_scalar;
}

}  // namespace kvlane::linear
