// Slabs on their way from the store to a cache: decoded where they are to lie, by many threads; in
// memory of a device by its codecs, or by the host's into buffers, from where they are copied while
// the next ones are decoded into others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "codec/coded_slab.h"
#include "cpu/isa.h"
#include "model/slab_lane.h"
#include "plan/machine_profile.h"
#include "quant/slab_reader.h"
#include "restore/pieces_under_way.h"
#include "restore/slab_bodies.h"

namespace kvlane {

// At most so many slabs of a layer land at once.
inline constexpr int kPieceBlocks = kRestorePieceTokens / kBlockTokens;

// A complete slab as the store has it: untrusted.
struct StoredSlab {
  std::string_view codec;
  CodedSlab coded;
  int index;  // of its block in the sequence
  BlockId block;
};

// For one thread.
class SlabLanding {
 public:
  // To blocks in memory of the host.
  SlabLanding(const SlabKind& kind, Isa isa) : SlabLanding(kind, isa, SlabLane()) {}
  // Where `lane` leads; if that is to a device, it has kRooms rooms, and codecs for kPieceBlocks
  // slabs. `kind` outlives this.
  SlabLanding(const SlabKind& kind, Isa isa, SlabLane lane)
      : kind_(kind), isa_(isa), lane_(std::move(lane)) {}
  // Of a piece that is decoded, and of one that is copied.
  static constexpr int kRooms = 2 * kPieceBlocks;

  // Writes one to kPieceBlocks slabs of a layer to their blocks, where they are after finish().
  // What is wrong with each is in `verdicts`: after an error it is garbage. What comes back is the
  // device's error, after which all of them are.
  Status land(const BlockPool& pool, int layer, std::span<const StoredSlab> slabs,
              std::span<Status> verdicts);

  // How many pieces were on their way to a device so far.
  std::uint64_t given() const { return under_way_.given(); }
  // Returns when all slabs are in their places. The error is the device's: one of those behind the
  // first `since` may not be.
  Status finish(std::uint64_t since);

 private:
  Status decode(const BlockPool& pool, int layer, std::span<const StoredSlab> slabs,
                std::span<Status> verdicts);
  Status decode_on_device(SlabCoder& coder, const Codec& codec, const BlockPool& pool, int layer,
                          std::span<const StoredSlab> slabs, std::span<Status> verdicts);
  std::span<SealedReader> sealed_readers(int threads);
  void settle();

  const SlabKind& kind_;
  const Isa isa_;
  SlabLane lane_;
  std::vector<SealedReader> sealed_readers_;  // one for each thread that has decoded
  int rooms_ = 0;                             // the first that the next piece has
  PiecesUnderWay under_way_;                  // that are copied to a device
};

}  // namespace kvlane
