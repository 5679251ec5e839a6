// What both modes make of planes written by planes.cpp, plane by plane as they would be sent.
//
//   ratio HEADS CHANNELS FILE...
//
// Prints for each file, and for all, raw bytes over coded bytes of BF16 planes
// [HEADS][64][CHANNELS].
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include "codec/codec.h"

using namespace kvlane;

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: ratio HEADS CHANNELS FILE...\n");
    return 2;
  }
  const PlaneShape shape{ElementType::kBf16, std::atoi(argv[1]), 64, std::atoi(argv[2])};
  const Codec* const codecs[] = {*find_codec("splitzip"), *find_codec("splitzip:channel")};
  double raw_total = 0;
  double coded_total[2] = {};
  Bytes coded(codecs[0]->bound(shape) + codecs[1]->bound(shape));
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::vector<char> data(std::istreambuf_iterator<char>(file), {});
    double raw = 0;
    double sum[2] = {};
    for (std::size_t at = 0; at + shape.bytes() <= data.size(); at += shape.bytes()) {
      const ByteView plane = std::as_bytes(std::span(data)).subspan(at, shape.bytes());
      raw += static_cast<double>(plane.size());
      for (int c = 0; c < 2; ++c) {
        sum[c] += static_cast<double>(codecs[c]->encode(shape, plane, nullptr, coded));
      }
    }
    std::printf("%s: splitzip %.4f, splitzip:channel %.4f\n", argv[i], raw / sum[0], raw / sum[1]);
    raw_total += raw;
    for (int c = 0; c < 2; ++c) coded_total[c] += sum[c];
  }
  std::printf("all: splitzip %.4f, splitzip:channel %.4f\n", raw_total / coded_total[0],
              raw_total / coded_total[1]);
  return 0;
}
