// The public code's chunk: symbols, models of the chunk itself, streams.
// SPDX-License-Identifier: Apache-2.0
#include "quant/cachegen_framing.h"

#include <algorithm>
#include <vector>

#include "base/bf16.h"
#include "base/bytes.h"
#include "codec/arithmetic_coder.h"
#include "quant/cachegen_symbols.h"

namespace kvlane {
namespace cachegen {
namespace {

constexpr std::size_t kStreamTokens = 256;
constexpr std::uint32_t kBinsMax =
    32;  // of all layers: the public code's models have room for them
constexpr std::uint64_t kModelBytes = (kBinsMax + 1) * sizeof(std::uint16_t);

// [channels][tokens]
std::vector<std::uint8_t> quantise(std::span<const std::uint16_t> rows, std::size_t channels,
                                   int middle) {
  const std::size_t tokens = rows.size() / channels;
  std::vector<std::uint8_t> symbols(rows.size());
  for (std::size_t token = 0; token < tokens; ++token) {
    const auto row = rows.subspan(token * channels, channels);
    float largest = 0;
    for (const std::uint16_t bits : row) {
      largest = std::max(largest, to_float(bf16{static_cast<std::uint16_t>(bits & 0x7FFF)}));
    }
    const Scale scale(largest, middle);
    for (std::size_t c = 0; c < channels; ++c) {
      symbols[c * tokens + token] =
          static_cast<std::uint8_t>(symbol_of(to_float(bf16{row[c]}), scale));
    }
  }
  return symbols;
}

// As the public code rounds them: of 65535 - 32 parts, one more for each symbol.
std::vector<std::uint32_t> model_of(std::span<const std::uint8_t> symbols, int alphabet) {
  std::vector<std::uint64_t> below(alphabet + 1);
  for (const std::uint8_t symbol : symbols) ++below[symbol + 1];
  std::vector<std::uint32_t> firsts(alphabet + 1);
  std::uint64_t sum = 0;
  for (int i = 0; i < alphabet; ++i) {
    sum += below[i];
    firsts[i] = static_cast<std::uint32_t>((kModelTotal - 1 - kBinsMax) * sum / symbols.size() + i);
  }
  firsts[alphabet] = kModelTotal;
  return firsts;
}

}  // namespace
}  // namespace cachegen

CachegenFraming& CachegenFraming::operator+=(const CachegenFraming& other) {
  values += other.values;
  stream_bytes += other.stream_bytes;
  model_bytes += other.model_bytes;
  length_bytes += other.length_bytes;
  scale_bytes += other.scale_bytes;
  return *this;
}

CachegenFraming measure_cachegen_framing(std::span<const std::uint16_t> rows, int channels,
                                         int bins) {
  using namespace cachegen;
  const std::size_t tokens = rows.size() / channels;
  CachegenFraming framing;
  if (tokens == 0) return framing;
  const std::vector<std::uint8_t> all = quantise(rows, channels, middle_of(bins));
  Bytes stream(arithmetic_bound(kStreamTokens));
  for (int c = 0; c < channels; ++c) {
    const auto symbols = std::span(all).subspan(c * tokens, tokens);
    const std::vector<std::uint32_t> firsts = model_of(symbols, symbols_of(bins));
    for (std::size_t first = 0; first < tokens; first += kStreamTokens) {
      const auto part = symbols.subspan(first, std::min(kStreamTokens, tokens - first));
      framing.stream_bytes += arithmetic_encode(part, firsts, stream);
      framing.length_bytes += sizeof(std::int32_t);
    }
    framing.model_bytes += kModelBytes;
  }
  framing.values = rows.size();
  framing.scale_bytes = tokens * sizeof(std::uint16_t);
  return framing;
}

}  // namespace kvlane
