// See bench/gpu_planes.h.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_planes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "base/bf16.h"

namespace kvlane {

namespace {

constexpr double kFarShare = 0.003;
// Puts the largest values where the range of E4M3 ends, as those who use it do.
constexpr float kE4m3Scale = 16;

// Sign and the upper bits of exponent and mantissa, with a smaller exponent's bias; below its
// range zero, above it the largest value that is not the last pattern (NaN).
std::uint8_t to_fp8(float x, int exponent_bits) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const int mantissa_bits = 7 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 127 + bias;
  const std::uint32_t sign = bits >> 31 << 7;
  if (exponent <= 0) return static_cast<std::uint8_t>(sign);
  const int largest = (1 << exponent_bits) - 2;
  const std::uint32_t mantissa = bits >> (23 - mantissa_bits) & ((1U << mantissa_bits) - 1);
  const auto kept = static_cast<std::uint32_t>(std::min(exponent, largest));
  return static_cast<std::uint8_t>(sign | kept << mantissa_bits | mantissa);
}

Bytes made_plane(const PlaneShape& shape, std::mt19937& random) {
  std::normal_distribution<float> gauss;
  std::bernoulli_distribution is_far(kFarShare);
  std::uniform_int_distribution<int> far_exponent(-80, -20);
  Bytes plane(shape.bytes());
  std::vector<float> scales(static_cast<std::size_t>(shape.head_dim));
  std::size_t i = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    for (float& scale : scales) scale = std::exp2(gauss(random));
    for (int row = 0; row < shape.rows; ++row) {
      for (const float scale : scales) {
        float value = gauss(random) * scale;
        if (is_far(random)) value = std::ldexp(value, far_exponent(random));
        if (shape.type == ElementType::kFp8E4m3) value *= kE4m3Scale;
        if (shape.type == ElementType::kBf16) {
          const bf16 rounded = to_bf16(value);
          std::memcpy(plane.data() + 2 * i, &rounded.bits, 2);
        } else {
          plane[i] = std::byte(to_fp8(value, shape.type == ElementType::kFp8E4m3 ? 4 : 5));
        }
        ++i;
      }
    }
  }
  return plane;
}

}  // namespace

std::vector<Bytes> made_planes(ElementType type, int count) {
  PlaneShape shape = kGpuBenchShape;
  shape.type = type;
  std::mt19937 random(20260901);
  std::vector<Bytes> planes;
  for (int i = 0; i < count; ++i) planes.push_back(made_plane(shape, random));
  return planes;
}

Result<std::vector<Bytes>> read_planes(const std::string& file, int count_max) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return not_found("there is no file '" + file + "', or it cannot be read");
  std::vector<Bytes> planes;
  for (int i = 0; i < count_max; ++i) {
    Bytes plane(kGpuBenchShape.bytes());
    in.read(reinterpret_cast<char*>(plane.data()), static_cast<std::streamsize>(plane.size()));
    if (static_cast<std::size_t>(in.gcount()) != plane.size()) break;
    planes.push_back(std::move(plane));
  }
  if (planes.empty()) {
    return invalid_argument("'" + file + "' has fewer than the " +
                            std::to_string(kGpuBenchShape.bytes()) + " bytes of a plane");
  }
  return planes;
}

}  // namespace kvlane
