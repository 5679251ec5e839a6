// How many values the best 16 exponents hold, layer by layer: counted on the same text, and on
// others.
//
//   coverage VALUES BOOKS...
//
// Folders are written by lab/channel/planes.cpp, of one model over different texts. Prints the
// share of values of VALUES that are escapes, in units of 1e-4, for K and V of each layer, under
// the codebooks of each other folder.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "codec/exponents.h"

using namespace kvlane;
namespace fs = std::filesystem;

namespace {

ExponentCounts counts_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::vector<char> values(std::istreambuf_iterator<char>(stream), {});
  ExponentCounts counts{};
  count_exponents(ElementType::kBf16, std::as_bytes(std::span(values)), counts);
  return counts;
}

// The smallest share of values that a window of 16 neighbouring exponents leaves out.
double outside_window(const ExponentCounts& counts) {
  std::uint64_t all = 0;
  std::uint64_t inside = 0;
  std::uint64_t best = 0;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    all += counts[e];
    inside += counts[e];
    if (e >= 16) inside -= counts[e - 16];
    best = std::max(best, inside);
  }
  return 1 - static_cast<double>(best) / static_cast<double>(all);
}

int exponents_seen(const ExponentCounts& counts) {
  int seen = 0;
  for (const std::uint64_t count : counts) seen += count > 0;
  return seen;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: coverage VALUES BOOKS...\n");
    return 2;
  }
  const fs::path values = argv[1];
  std::printf("| tensor | exponents | own codebook | own window of 16 |");
  for (int i = 2; i < argc; ++i) std::printf(" %s |", fs::path(argv[i]).filename().c_str());
  std::printf("\n");
  for (const char* tensor : {"k.", "v."}) {
    for (int layer = 0; fs::exists(values / (tensor + std::to_string(layer))); ++layer) {
      const std::string name = tensor + std::to_string(layer);
      const ExponentCounts own = counts_of(values / name);
      const auto escapes = [&](const ExponentCounts& counted) {
        const Codebook book = codebook_of(ElementType::kBf16, counted);
        return 1e4 * (1 - coverage(ElementType::kBf16, book, own));
      };
      std::printf("| %s | %d | %.2f | %.2f |", name.c_str(), exponents_seen(own), escapes(own),
                  1e4 * outside_window(own));
      for (int i = 2; i < argc; ++i)
        std::printf(" %.2f |", escapes(counts_of(fs::path(argv[i]) / name)));
      std::printf("\n");
    }
  }
  return 0;
}
