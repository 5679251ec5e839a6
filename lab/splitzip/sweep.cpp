// Speed by length and batch: K and V of one layer of Llama 3.1 8B's shape, slab by slab.
//
//   sweep MODEL_DIR TEXT
//
// Values come from the model over the text, repeated; a slab is 64 tokens, K and V [8][64][128]
// each. Prints encode / decode GB/s of raw values for lengths (down) and batches (across), medians
// of interleaved rounds by the thread's processor time.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>

#include "bench/codec_speed.h"
#include "bench/figures.h"
#include "calib/text_tokens.h"
#include "codec/exponents.h"
#include "cpu/parallel.h"

using namespace kvlane;

namespace {

template <class T>
T value_or_exit(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "sweep: %s\n", result.status().message().c_str());
  std::exit(1);
}

std::vector<Codebook> books_of(const PlaneSet& set) {
  std::vector<ExponentCounts> counts(set.sources());
  for (std::size_t i = 0; i < set.planes(); ++i) {
    count_exponents(ElementType::kBf16, set.plane(i), counts[set.source(i)]);
  }
  std::vector<Codebook> books;
  for (const ExponentCounts& each : counts) books.push_back(codebook_of(ElementType::kBf16, each));
  return books;
}

void sweep(const CapturedPlanes& captured, const Coder& coder) {
  std::printf("%s\n| tokens |", coder.name.c_str());
  for (const int batch : {1, 2, 4, 8, 16, 32}) std::printf(" %d |", batch);
  std::printf("\n");
  CodingMemory memory;
  for (const int length : {64, 256, 1024, 4096, 16384}) {
    std::printf("| %d |", length);
    for (const int batch : {1, 2, 4, 8, 16, 32}) {
      const std::size_t planes = std::size_t{2} * length / kBlockTokens * batch;
      if (planes > 4096) continue;
      const PlaneSet set = value_or_exit(PlaneSet::lay_out(captured, 8, 128, planes));
      const std::vector<Codebook> books = books_of(set);
      CodedSet coded(coder, set, books);
      if (!memory.reserve(coded.coded_room(), set.bytes()).ok()) std::exit(1);
      if (!coded.comes_back(memory)) std::exit(1);
      Contender contenders[] = {{"encode", [&] { coded.encode(memory); }, {}},
                                {"decode", [&] { coded.decode(memory); }, {}}};
      time_in_turns(contenders, TimedBy::kOneThread, 7, 2e-3, {});
      const auto speed = [&](const Contender& contender) {
        return static_cast<double>(set.bytes()) / median(contender.seconds) * 1e-9;
      };
      std::printf(" %.1f / %.1f |", speed(contenders[0]), speed(contenders[1]));
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: sweep MODEL_DIR TEXT\n");
    return 2;
  }
  set_parallel_threads(1);
  const auto model = value_or_exit(Model::load(argv[1], {.isa = best_isa()}));
  const auto tokens = value_or_exit(read_text_tokens(argv[1], argv[2], 8192));
  const CapturedPlanes captured = value_or_exit(capture_planes(*model, tokens, {}));
  for (const char* name : {"splitzip", "splitzip:channel"}) {
    sweep(captured, coder_of(*value_or_exit(find_codec(name))));
  }
  return 0;
}
