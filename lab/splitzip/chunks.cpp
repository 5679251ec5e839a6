// What chunks of other sizes would cost: escapes of real planes, counted chunk by chunk.
//
//   chunks PLANE_VALUES VALUES BOOKS
//
// Folders are written by lab/channel/planes.cpp: VALUES are coded in planes of PLANE_VALUES values
// with codebooks counted on BOOKS, K and V of each layer apart. Prints for each chunk size the bits
// that counts and escapes take of a value, and the ratio with 12 bits beside. A place in a chunk
// takes one byte up to 256 values, else two; a count one byte or two, and no chunk is raw, as with
// trained models none is.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "codec/exponents.h"

using namespace kvlane;
namespace fs = std::filesystem;

namespace {

std::vector<std::uint16_t> read_values(const fs::path& file) {
  std::vector<std::uint16_t> values(fs::file_size(file) / 2);
  std::ifstream(file, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(2 * values.size()));
  return values;
}

struct Cost {
  double values = 0;
  double escapes = 0;
  double counts_bytes = 0;
  double escapes_bytes = 0;
  int most = 0;  // escapes in a chunk
};

void add(Cost& cost, const std::vector<std::uint16_t>& values, const Codebook& book,
         std::size_t plane, std::size_t chunk) {
  bool known[256] = {};
  for (const std::uint8_t exponent : book.exponents) known[exponent] = true;
  for (std::size_t first = 0; first < values.size(); first += plane) {
    const std::size_t end = std::min(first + plane, values.size());
    for (std::size_t at = first; at < end; at += chunk) {
      int escapes = 0;
      for (std::size_t i = at; i < std::min(at + chunk, end); ++i) {
        escapes += !known[values[i] >> 7 & 0xFF];
      }
      cost.counts_bytes += chunk <= 256 ? 1 : 2;
      cost.escapes_bytes += escapes * (chunk <= 256 ? 2 : 3);
      cost.escapes += escapes;
      cost.most = std::max(cost.most, escapes);
    }
    cost.values += static_cast<double>(end - first);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: chunks PLANE_VALUES VALUES BOOKS\n");
    return 2;
  }
  const std::size_t plane = std::strtoull(argv[1], nullptr, 10);
  std::printf("| chunk | counts, bits a value | escapes, bits a value | ratio | most escapes |\n");
  for (std::size_t chunk = 32; chunk <= 16384; chunk *= 2) {
    Cost cost;
    for (const char* tensor : {"k.", "v."}) {
      for (int layer = 0;; ++layer) {
        const std::string name = tensor + std::to_string(layer);
        if (!fs::exists(fs::path(argv[2]) / name)) break;
        ExponentCounts counts{};
        const std::vector<std::uint16_t> others = read_values(fs::path(argv[3]) / name);
        count_exponents(ElementType::kBf16, std::as_bytes(std::span(others)), counts);
        add(cost, read_values(fs::path(argv[2]) / name), codebook_of(ElementType::kBf16, counts),
            plane, chunk);
      }
    }
    const double counts_bits = 8 * cost.counts_bytes / cost.values;
    const double escapes_bits = 8 * cost.escapes_bytes / cost.values;
    std::printf("| %zu | %.4f | %.4f | %.4f | %d |\n", chunk, counts_bits, escapes_bits,
                16 / (12 + counts_bits + escapes_bits), cost.most);
  }
  return 0;
}
