// A piece at a time.
// SPDX-License-Identifier: Apache-2.0
#include "restore/slab_landing.h"

#include <algorithm>
#include <utility>

#include "cpu/parallel.h"

namespace kvlane {
namespace {

// Slabs of fewer bytes in all are decoded sooner by one thread than by several.
constexpr std::size_t kSerialBytesMax = std::size_t{256} << 10;

}  // namespace

Status SlabLanding::land(const BlockPool& pool, int layer, std::span<const StoredSlab> slabs,
                         std::span<Status> verdicts) {
  // Sealed slabs in a codec are the host's to open.
  if (lane_.on_host() || kind_.format() != nullptr) return decode(pool, layer, slabs, verdicts);
  while (!slabs.empty()) {
    const auto other = std::find_if(slabs.begin(), slabs.end(), [&](const StoredSlab& slab) {
      return slab.codec != slabs.front().codec;
    });
    const std::size_t alike = other - slabs.begin();
    KVLANE_ASSIGN(const Codec* const codec, find_codec(slabs.front().codec, isa_));
    SlabCoder* const coder = lane_.coder_of(*codec);
    KVLANE_TRY(coder == nullptr ? decode(pool, layer, slabs.first(alike), verdicts.first(alike))
                                : decode_on_device(*coder, *codec, pool, layer, slabs.first(alike),
                                                   verdicts.first(alike)));
    slabs = slabs.subspan(alike);
    verdicts = verdicts.subspan(alike);
  }
  return {};
}

Status SlabLanding::decode(const BlockPool& pool, int layer, std::span<const StoredSlab> slabs,
                           std::span<Status> verdicts) {
  const std::size_t bytes = slabs.size() * kind_.slab_bytes(layer);
  const ParallelScope threads(bytes < kSerialBytesMax ? 1 : parallel_threads());
  std::span<SealedReader> readers;
  if (kind_.format() != nullptr) readers = sealed_readers(parallel_threads());
  parallel_for(static_cast<std::int64_t>(slabs.size()), [&](std::int64_t i) {
    const StoredSlab& stored = slabs[i];
    const auto codec = find_codec(stored.codec, isa_);
    if (!codec.ok()) {
      verdicts[i] = codec.status();
      return;
    }
    const int which = rooms_ + static_cast<int>(i);
    std::byte* const slab = lane_.room(pool, stored.block, layer, kBlockTokens, which);
    verdicts[i] = readers.empty()
                      ? read_rows(**codec, kind_.shape(), kBlockTokens, stored.coded, slab)
                      : readers[parallel_thread_index()].read(
                            **codec, {layer, stored.index * kBlockTokens}, stored.coded, slab);
  });
  if (lane_.on_host()) return {};
  // The other rooms are free when their slabs are where they belong, and the next piece's then.
  settle();
  const int first = rooms_;
  rooms_ = kPieceBlocks - rooms_;
  under_way_.give();
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (!verdicts[i].ok()) continue;
    KVLANE_TRY(lane_.give(pool, slabs[i].block, layer, first + static_cast<int>(i)));
  }
  return {};
}

Status SlabLanding::decode_on_device(SlabCoder& coder, const Codec& codec, const BlockPool& pool,
                                     int layer, std::span<const StoredSlab> slabs,
                                     std::span<Status> verdicts) {
  std::vector<ComingSlab> coming;
  for (const StoredSlab& slab : slabs) {
    coming.push_back({slab.coded, kBlockTokens, pool.slab_memory(slab.block, layer)});
  }
  return coder.decode(codec, coming, verdicts);
}

std::span<SealedReader> SlabLanding::sealed_readers(int threads) {
  const auto count = static_cast<std::size_t>(threads);
  while (sealed_readers_.size() < count) sealed_readers_.emplace_back(*kind_.format());
  return sealed_readers_;
}

Status SlabLanding::finish(std::uint64_t since) {
  settle();
  return under_way_.verdict(since);
}

void SlabLanding::settle() {
  under_way_.settle([this] { return lane_.finish(); });
}

}  // namespace kvlane
