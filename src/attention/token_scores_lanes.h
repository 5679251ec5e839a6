// Scores of tokens in lanes that compilers put into whatever vectors a tier has. Sums have one
// order, and no product is fused with its sum, so all tiers have the same bits; logarithms and
// powers are series, since those of libraries differ between processors.
//
// For files of one tier: no library function is called here (see kvlane_simd in
// cmake/kvlane.cmake).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "attention/token_scores.h"
#include "format/shape.h"

namespace kvlane {
namespace token_scores_lanes {

constexpr int kLanes = 16;
using Floats [[gnu::vector_size(64), gnu::aligned(4), gnu::may_alias]] = float;
using Ints [[gnu::vector_size(64)]] = std::int32_t;
using Words [[gnu::vector_size(64)]] = std::uint32_t;
using Shorts [[gnu::vector_size(32), gnu::aligned(2), gnu::may_alias]] = std::uint16_t;

// Of vectors, by reference: how they are passed depends on the tier.
#define KVLANE_LANES static inline __attribute__((always_inline))

KVLANE_LANES const Floats& at(const float* p) { return *reinterpret_cast<const Floats*>(p); }
KVLANE_LANES Floats& at(float* p) { return *reinterpret_cast<Floats*>(p); }

constexpr int padded(int count) { return (count + kBlockTokens - 1) / kBlockTokens * kBlockTokens; }

static void block_products(const float* query, const float* keys, int dim, float* products) {
  static_assert(kBlockTokens == 4 * kLanes);
  Floats a{}, b{}, c{}, d{};
  for (int i = 0; i < dim; ++i) {
    const float* const row = keys + i * kBlockTokens;
    a += at(row) * query[i];
    b += at(row + kLanes) * query[i];
    c += at(row + 2 * kLanes) * query[i];
    d += at(row + 3 * kLanes) * query[i];
  }
  at(products) = a;
  at(products + kLanes) = b;
  at(products + 2 * kLanes) = c;
  at(products + 3 * kLanes) = d;
}

static void row_products(const float* query, const std::uint16_t* keys, int dim, int count,
                         float* products) {
  for (int token = 0; token < count; ++token) {
    const std::uint16_t* const key = keys + std::int64_t{token} * dim;
    Floats sums{};
    int i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      const Shorts bits = *reinterpret_cast<const Shorts*>(key + i);
      sums += at(query + i) * reinterpret_cast<Floats>(__builtin_convertvector(bits, Words) << 16);
    }
    float sum[kLanes];
    at(sum) = sums;
    for (int lane = 0; i < dim; ++i, ++lane) {
      sum[lane] += query[i] * __builtin_bit_cast(float, std::uint32_t{key[i]} << 16);
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) sum[lane] += sum[lane + half];
    }
    products[token] = sum[0];
  }
}

// The natural logarithm of normal x > 0: relative error under 3e-7, where x is not near 1 of the
// result's parts. log m = 2 atanh((m - 1) / (m + 1)) for m from sqrt(1/2) to sqrt(2), whose fifth
// dropped term is 1e-9 of the sum.
KVLANE_LANES void to_logarithm(Floats& x) {
  constexpr std::int32_t kRootOfHalf = 0x3F3504F3;
  const Ints bits = reinterpret_cast<Ints>(x);
  const Ints exponent = (bits - kRootOfHalf) >> 23;
  const Floats m = reinterpret_cast<Floats>(bits - (exponent << 23));
  const Floats s = (m - 1.0F) / (m + 1.0F);
  const Floats z = s * s;
  Floats series = z * (1.0F / 9) + (1.0F / 7);
  series = series * z + (1.0F / 5);
  series = series * z + (1.0F / 3);
  series = series * z + 1.0F;
  x = 2.0F * s * series + __builtin_convertvector(exponent, Floats) * 0.69314718F;
}

// e^x for x <= 0, which is 0 below -87; what is no number stays so. Taylor of degree 6 of 2^rest on
// [-1/2, 1/2], relative error 2e-7, and that of x * log2(e).
KVLANE_LANES void to_power(Floats& x) {
  constexpr float kRounding = 0x1.8p23F;  // adding it leaves no place for fractions
  Floats y = x * 1.44269504F;
  y = y >= -126.0F ? y : Floats{} - 126.0F;
  const Floats whole = (y + kRounding) - kRounding;
  const Floats rest = y - whole;
  Floats p = rest * 1.5403530e-4F + 1.3333558e-3F;
  p = p * rest + 9.6181291e-3F;
  p = p * rest + 5.5504109e-2F;
  p = p * rest + 2.4022651e-1F;
  p = p * rest + 6.9314718e-1F;
  p = p * rest + 1.0F;
  const Ints exponent = __builtin_convertvector(whole, Ints) << 23;
  const Floats power = reinterpret_cast<Floats>(reinterpret_cast<Ints>(p) + exponent);
  x = x < -87.0F ? Floats{} : (x == x ? power : x);
}

// Philox4x32-10 (base/random.h) of sixteen counters at once, in place.
KVLANE_LANES void draw(std::uint64_t key, Words (&counter)[4]) {
  std::uint32_t key_low = static_cast<std::uint32_t>(key);
  std::uint32_t key_high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const Words low[2] = {counter[0] * 0xD2511F53U, counter[2] * 0xCD9E8D57U};
    Words high[2] = {counter[0], counter[2]};
    for (int lane = 0; lane < kLanes; ++lane) {
      high[0][lane] = static_cast<std::uint32_t>(std::uint64_t{0xD2511F53U} * high[0][lane] >> 32);
      high[1][lane] = static_cast<std::uint32_t>(std::uint64_t{0xCD9E8D57U} * high[1][lane] >> 32);
    }
    counter[0] = high[1] ^ counter[1] ^ key_low;
    counter[1] = low[1];
    counter[2] = high[0] ^ counter[3] ^ key_high;
    counter[3] = low[0];
    key_low += 0x9E3779B9U;
    key_high += 0xBB67AE85U;
  }
}

// Keeps this use of random numbers apart from others with the same seed.
constexpr std::uint64_t kNoiseKey = std::uint64_t{0x67756D62} << 32;

// Words to noise: a uniform number in the middle of one of 2^23 parts of (0, 1), so that neither
// end can be met, then -log(-log(u)).
KVLANE_LANES void to_noise(const Words& words, Floats& noise) {
  noise = (__builtin_convertvector(words >> 9, Floats) + 0.5F) * 0x1p-23F;
  to_logarithm(noise);
  noise = -noise;
  to_logarithm(noise);
  noise = -noise;
}

// The keys at positions 4 * quad ... 4 * quad + 3 have the four words of one counter.
KVLANE_LANES void draw_quads(const NoiseOf& noise, const Words& quads, Words (&words)[4]) {
  words[0] = quads;
  words[1] = Words{} + static_cast<std::uint32_t>(noise.position);
  words[2] = Words{} + static_cast<std::uint32_t>(noise.query_head);
  words[3] = Words{} + static_cast<std::uint32_t>(noise.layer);
  draw(kNoiseKey | noise.seed, words);
}

static void add_noise(const NoiseOf& noise, const std::int32_t* positions, int count,
                      float* products) {
  Words words[4];
  if (positions == nullptr) {
    for (int first = 0; first < count; first += 4 * kLanes) {
      Words quads;
      for (int lane = 0; lane < kLanes; ++lane) {
        quads[lane] = static_cast<std::uint32_t>(first / 4 + lane);
      }
      draw_quads(noise, quads, words);
      for (int part = 0; part < 4; ++part) {
        Floats of_part;
        to_noise(words[part], of_part);
        for (int lane = 0; lane < kLanes; ++lane) {
          products[first + 4 * lane + part] += of_part[lane];
        }
      }
    }
    return;
  }
  for (int first = 0; first < count; first += kLanes) {
    Words quads{}, parts{};
    for (int lane = 0; lane < kLanes && first + lane < count; ++lane) {
      quads[lane] = static_cast<std::uint32_t>(positions[first + lane]) / 4;
      parts[lane] = static_cast<std::uint32_t>(positions[first + lane]) % 4;
    }
    draw_quads(noise, quads, words);
    const Words chosen =
        parts < 2U ? (parts == 0U ? words[0] : words[1]) : (parts == 2U ? words[2] : words[3]);
    Floats of_keys;
    to_noise(chosen, of_keys);
    at(products + first) += of_keys;
  }
}

static void add_probabilities(float scale, int count, float* products, float* scores) {
  const int end = padded(count);
  for (int i = count; i < end; ++i) products[i] = -__builtin_inff();
  Floats most = Floats{} - __builtin_inff();
  for (int i = 0; i < end; i += kLanes) {
    at(products + i) *= scale;
    most = at(products + i) > most ? at(products + i) : most;
  }
  float max = most[0];
  for (int lane = 1; lane < kLanes; ++lane) max = most[lane] > max ? most[lane] : max;
  double sums[kLanes] = {};
  for (int i = 0; i < end; i += kLanes) {
    Floats x = at(products + i) - max;
    to_power(x);
    at(products + i) = x;
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += double{x[lane]};
  }
  double sum = 0;
  for (const double each : sums) sum += each;
  const float share = static_cast<float>(1 / sum);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    at(products + i) *= share;
    at(scores + i) += at(products + i);
  }
  for (; i < count; ++i) {
    products[i] *= share;
    scores[i] += products[i];
  }
}

constexpr ScoreKernels kKernels = {block_products, row_products, add_noise, add_probabilities};

}  // namespace token_scores_lanes
}  // namespace kvlane
