// The entropy coders on models and symbols from strangers: what is coded comes back, and any bytes
// decode to symbols of the model.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "codec/arithmetic_coder.h"
#include "codec/lane_coder.h"

namespace kvlane {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

using Firsts = std::vector<std::uint32_t>;

// Symbols whose shares grow with the bytes; the last one takes what is left.
Firsts model_of(std::span<const std::uint8_t> shares, unsigned shift) {
  Firsts firsts{0};
  for (const std::uint8_t share : shares) {
    const std::uint32_t next = firsts.back() + 1 + (std::uint32_t{share} << shift);
    if (next >= kModelTotal) break;
    firsts.push_back(next);
  }
  firsts.push_back(kModelTotal);
  return firsts;
}

int symbol_at(const Firsts& firsts, std::uint32_t slot) {
  return static_cast<int>(std::upper_bound(firsts.begin(), firsts.end() - 1, slot) -
                          firsts.begin() - 1);
}

std::vector<std::uint8_t> read_lanes(const Firsts& firsts, ByteView coded, std::size_t count) {
  LaneDecoder decoder(coded);
  std::vector<std::uint8_t> symbols(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto lane = static_cast<int>(i % kCoderLanes);
    const int symbol = symbol_at(firsts, decoder.slot(lane));
    decoder.take(lane, firsts[symbol], firsts[symbol + 1] - firsts[symbol]);
    symbols[i] = static_cast<std::uint8_t>(symbol);
  }
  return symbols;
}

void round_trips(const Firsts& firsts, std::span<const std::uint8_t> symbols) {
  const std::size_t bound = arithmetic_bound(symbols.size());
  const auto room = std::make_unique<std::byte[]>(bound);
  const std::size_t bytes = arithmetic_encode(symbols, firsts, {room.get(), bound});
  require(bytes <= bound);
  std::vector<std::uint8_t> back(symbols.size());
  arithmetic_decode({room.get(), bytes}, firsts, back);
  require(std::equal(back.begin(), back.end(), symbols.begin()));

  const std::size_t lanes_bound = 2 * symbols.size() + kLaneStateBytes;
  const auto lanes = std::make_unique<std::byte[]>(lanes_bound);
  LaneEncoder encoder({lanes.get(), lanes_bound});
  for (std::size_t i = symbols.size(); i-- > 0;) {
    const std::uint32_t first = firsts[symbols[i]];
    encoder.put(static_cast<int>(i % kCoderLanes), first, firsts[symbols[i] + 1] - first);
  }
  const std::size_t used = encoder.finish();
  require(used > 0);
  const auto again = read_lanes(firsts, {lanes.get() + lanes_bound - used, used}, symbols.size());
  require(std::equal(again.begin(), again.end(), symbols.begin()));
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 2) return 0;
  const std::size_t alphabet = std::min<std::size_t>(data[0] % 64, size - 2);
  const Firsts firsts = model_of({data + 2, alphabet}, data[1] % 9);
  const std::span<const std::uint8_t> rest(data + 2 + alphabet, size - 2 - alphabet);
  std::vector<std::uint8_t> symbols;
  for (const std::uint8_t byte : rest) {
    symbols.push_back(static_cast<std::uint8_t>(byte % (firsts.size() - 1)));
  }
  round_trips(firsts, symbols);

  const auto exact = std::make_unique<std::byte[]>(rest.size());
  std::transform(rest.begin(), rest.end(), exact.get(),
                 [](std::uint8_t byte) { return static_cast<std::byte>(byte); });
  const ByteView coded(exact.get(), rest.size());
  std::vector<std::uint8_t> decoded(100);
  arithmetic_decode(coded, firsts, decoded);
  for (const std::uint8_t symbol : decoded) require(symbol + 1U < firsts.size());
  read_lanes(firsts, coded, 300);
  return 0;
}
