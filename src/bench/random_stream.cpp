// Philox words as uniform, normal and gamma numbers, and as token ids.
// SPDX-License-Identifier: Apache-2.0
#include "bench/random_stream.h"

#include <cmath>
#include <numbers>

namespace kvlane {

namespace {

PhiloxCounter words(std::uint64_t seed, Purpose purpose, std::uint64_t index, std::uint32_t count) {
  return philox4x32(
      seed, {count, static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
             static_cast<std::uint32_t>(purpose)});
}

}  // namespace

double RandomStream::unit() {
  const PhiloxCounter drawn = words(seed_, purpose_, index_, drawn_++);
  return uniform_unit(drawn[0], drawn[1]);
}

double RandomStream::normal() {
  // Box and Muller; the second number of the pair is not worth a member.
  const double radius = std::sqrt(-2 * std::log1p(-unit()));
  return radius * std::cos(2 * std::numbers::pi * unit());
}

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). Below shape 1, a
// variable of shape + 1 times a power of a uniform one.
double RandomStream::gamma(double shape) {
  if (shape < 1) {
    const double larger = gamma(shape + 1);
    return larger * std::pow(1 - unit(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log1p(-unit()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

double RandomStream::beta(double a, double b) {
  const double x = gamma(a);
  const double y = gamma(b);
  return x + y > 0 ? x / (x + y) : 0.5;  // both vanish only for tiny shapes
}

void append_token_ids(std::uint64_t seed, Purpose purpose, std::uint64_t index, std::size_t first,
                      std::size_t count, int vocabulary, std::vector<std::int32_t>& out) {
  constexpr std::size_t kPerCounter = 4;
  PhiloxCounter drawn{};
  for (std::size_t i = first; i < first + count; ++i) {
    if (i == first || i % kPerCounter == 0) {
      drawn = words(seed, purpose, index, static_cast<std::uint32_t>(i / kPerCounter));
    }
    // The upper bits of a product are uniform enough: vocabularies are far below 2^32.
    const std::uint64_t scaled =
        std::uint64_t{drawn[i % kPerCounter]} * static_cast<std::uint64_t>(vocabulary);
    out.push_back(static_cast<std::int32_t>(scaled >> 32));
  }
}

}  // namespace kvlane
