// The kernels of codec `splitzip`, tier by tier, with plain stores and with stores past the caches,
// on planes inside and outside of the caches.
//
//   ladder FILE
//
// FILE is a K or V of lab/channel/planes.cpp; its values are repeated. Prints GB/s of raw values
// and the speed relative to memcpy, medians of interleaved rounds by the thread's processor time.
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "bench/figures.h"
#include "bench/interleaved.h"
#include "codec/exponents.h"
#include "codec/splitzip_kernels.h"
#include "cpu/memory.h"

using namespace kvlane;

namespace {

struct Variant {
  Isa isa;
  bool streaming;
};

std::byte* memory(std::size_t bytes) {
  static std::vector<PageBuffer> kept;
  auto buffer = PageBuffer::allocate(bytes);
  if (!buffer.ok()) std::exit(1);
  kept.push_back(std::move(*buffer));
  return kept.back().data();
}

// Four lines to three, and three to four.
__attribute__((target("avx512f"))) void move_encoded(std::byte* to, const std::byte* from,
                                                     std::size_t raw_bytes) {
  for (std::size_t i = 0; i < raw_bytes; i += 256, from += 256, to += 192) {
    for (int k = 0; k < 256; k += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from + 2048 + k), _MM_HINT_T1);
    }
    const __m512i last = _mm512_loadu_si512(from + 192);
    for (int k = 0; k < 192; k += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k),
                          _mm512_xor_si512(_mm512_loadu_si512(from + k), last));
    }
  }
  _mm_sfence();
}
__attribute__((target("avx512f"))) void move_decoded(std::byte* to, const std::byte* from,
                                                     std::size_t raw_bytes) {
  for (std::size_t i = 0; i < raw_bytes; i += 256, from += 192, to += 256) {
    for (int k = 0; k < 192; k += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(from + 2048 + k), _MM_HINT_T1);
    }
    for (int k = 0; k < 256; k += 64) {
      _mm512_stream_si512(reinterpret_cast<__m512i*>(to + k), _mm512_loadu_si512(from + k % 192));
    }
  }
  _mm_sfence();
}

// Kernels alone, on planes of which each has its sections where bodies have them.
class Planes {
 public:
  Planes(std::size_t plane_bytes, std::size_t planes, const std::vector<char>& values)
      : elements_(plane_bytes / 2),
        planes_(planes),
        room_(splitzip::pad_to(splitzip::raw_body_bytes(plane_bytes) + 64, 64)),
        raw_(memory(bytes())),
        copy_(memory(bytes())),
        coded_(memory(planes * room_)),
        at_(splitzip::sections(ElementType::kBf16, elements_, 0)) {
    for (std::size_t i = 0; i < bytes(); i += values.size()) {
      std::memcpy(raw_ + i, values.data(), std::min(values.size(), bytes() - i));
    }
    ExponentCounts counts{};
    count_exponents(ElementType::kBf16, std::as_bytes(std::span(values)), counts);
    book_ = codebook_of(ElementType::kBf16, counts);
    std::fill(std::begin(tables_.code_of), std::end(tables_.code_of),
              splitzip::CodeTables::kEscape);
    for (std::size_t code = 0; code < book_.exponents.size(); ++code) {
      tables_.code_of[book_.exponents[code]] = static_cast<std::uint8_t>(code);
      tables_.exponent[code] = book_.exponents[code];
    }
    tables_.window = book_.exponents.back() - book_.exponents.front() == 15;
  }

  std::size_t bytes() const { return 2 * elements_ * planes_; }
  void copy() const { std::memcpy(copy_, raw_, bytes()); }
  void move_as_encoder() const { move_encoded(copy_, raw_, bytes()); }
  void move_as_decoder() const { move_decoded(copy_, raw_, bytes()); }
  bool came_back() const { return std::memcmp(copy_, raw_, bytes()) == 0; }

  void encode(const Variant& variant) const {
    for (std::size_t i = 0; i < planes_; ++i) {
      std::byte* const body = coded_ + i * room_;
      splitzip::kernels_of(variant.isa)
          .encode({.type = ElementType::kBf16,
                   .plane = raw_ + 2 * elements_ * i,
                   .chunks = elements_ / splitzip::kChunkElements,
                   .tables = &tables_,
                   .out = {body + at_.nibbles, body + at_.bytes, nullptr, nullptr},
                   .counts = reinterpret_cast<std::uint8_t*>(body + at_.counts),
                   .table = body + at_.table,
                   .table_words_max = (room_ - at_.table) / 2,
                   .streaming = variant.streaming});
    }
  }
  void decode(const Variant& variant) const {
    for (std::size_t i = 0; i < planes_; ++i) {
      const std::byte* const body = coded_ + i * room_;
      splitzip::kernels_of(variant.isa)
          .decode({.type = ElementType::kBf16,
                   .in = {body + at_.nibbles, body + at_.bytes, nullptr, nullptr},
                   .codebook = tables_.exponent,
                   .counts = reinterpret_cast<const std::uint8_t*>(body + at_.counts),
                   .table = body + at_.table,
                   .chunks = elements_ / splitzip::kChunkElements,
                   .plane = copy_ + 2 * elements_ * i,
                   .streaming = variant.streaming});
    }
  }

 private:
  std::size_t elements_, planes_, room_;
  std::byte *raw_, *copy_, *coded_;
  splitzip::Sections at_;
  Codebook book_;
  splitzip::CodeTables tables_{};
};

void measure(const char* what, const Planes& planes) {
  std::vector<Contender> contenders = {{"memcpy", [&] { planes.copy(); }, {}}};
  if (isa_supported(Isa::kAvx512)) {
    contenders.push_back({"encode, bytes alone", [&] { planes.move_as_encoder(); }, {}});
    contenders.push_back({"decode, bytes alone", [&] { planes.move_as_decoder(); }, {}});
  }
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    for (const bool streaming : {false, true}) {
      if (isa == Isa::kScalar && streaming) continue;  // it has none
      const Variant variant{isa, streaming};
      const std::string name =
          std::string(isa_name(isa)) + (streaming ? ", past the caches" : ", plain stores");
      contenders.push_back({"encode " + name, [&planes, variant] { planes.encode(variant); }, {}});
      contenders.push_back({"decode " + name, [&planes, variant] { planes.decode(variant); }, {}});
    }
  }
  time_in_turns(contenders, TimedBy::kOneThread, 9, 2e-3, {});
  if (!planes.came_back()) std::exit(1);
  std::printf("%s\n", what);
  for (const Contender& contender : contenders) {
    std::printf("| %s | %.1f | %.2f |\n", contender.name.c_str(),
                static_cast<double>(planes.bytes()) / median(contender.seconds) * 1e-9,
                speed_ratio(contenders[0], contender));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ladder FILE\n");
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> values(std::istreambuf_iterator<char>(file), {});
  if (values.empty()) return 1;
  measure("256 MB, planes of 16 MB", Planes(std::size_t{16} << 20, 16, values));
  measure("256 MB, planes of 128 KB", Planes(std::size_t{128} << 10, 2048, values));
  measure("192 KB", Planes(std::size_t{96} << 10, 2, values));
  return 0;
}
