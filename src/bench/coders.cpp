// Coding and counting.
// SPDX-License-Identifier: Apache-2.0
#include "bench/coders.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "codec/exponents.h"

namespace kvlane {
namespace {

std::string figure_name(std::string_view codec) {
  std::string name(codec);
  std::ranges::replace(name, ':', '_');
  return name;
}

}  // namespace

Coder coder_of(const Codec& codec) {
  return {
      .name = figure_name(codec.name()),
      .parallel = true,
      .bound = [&codec](const PlaneShape& shape) { return codec.bound(shape); },
      .encode = [&codec](const PlaneShape& shape, ByteView plane, const Codebook* book,
                         std::span<std::byte> to) { return codec.encode(shape, plane, book, to); },
      .decode = [&codec](const PlaneShape& shape, ByteView coded,
                         std::span<std::byte> to) { return codec.decode(shape, coded, to); }};
}

Coder counting_coder_of(const Codec& codec) {
  Coder coder = coder_of(codec);
  coder.name += "_counted";
  coder.encode = [&codec](const PlaneShape& shape, ByteView plane, const Codebook*,
                          std::span<std::byte> to) {
    return codec.encode(shape, plane, nullptr, to);
  };
  return coder;
}

Result<CodedRatio> coded_ratio(const Coder& coder, std::span<const LayerPlanes> layers) {
  double raw_all = 0;
  double coded_all = 0;
  CodedRatio ratio{.least = std::numeric_limits<double>::infinity()};
  Bytes coded;
  Bytes back;
  for (const LayerPlanes& layer : layers) {
    double raw = 0;
    double sum = 0;
    for (const ByteView plane : layer.planes) {
      coded.resize(coder.bound(layer.shape));
      back.assign(plane.size(), std::byte{0xA5});
      const std::size_t size = coder.encode(layer.shape, plane, &layer.book, coded);
      KVLANE_TRY(coder.decode(layer.shape, ByteView(coded).first(size), back));
      if (!std::ranges::equal(back, plane)) {
        return internal_error(coder.name + " did not give a plane back bit for bit");
      }
      raw += static_cast<double>(plane.size());
      sum += static_cast<double>(size);
    }
    ratio.least = std::min(ratio.least, raw / sum);
    raw_all += raw;
    coded_all += sum;
  }
  ratio.all = raw_all / coded_all;
  return ratio;
}

double escape_share(std::span<const LayerPlanes> layers) {
  double values = 0;
  double escapes = 0;
  for (const LayerPlanes& layer : layers) {
    ExponentCounts counts{};
    for (const ByteView plane : layer.planes) count_exponents(layer.shape.type, plane, counts);
    const auto total =
        static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
    values += total;
    escapes += total * (1 - coverage(layer.shape.type, layer.book, counts));
  }
  return escapes / values;
}

}  // namespace kvlane
