// A slab of the model is the parts of its stage's ranks, one after another, or whole in each.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_lane.h"

#include <cstring>
#include <memory>
#include <utility>

namespace kvlane {
namespace {

Status not_here() { return unsupported("ranks on CPUs have no work of devices"); }

}  // namespace

std::unique_ptr<DeviceLane> RankGroup::lane() { return std::make_unique<RankLane>(*this); }

Status RankLane::copy(std::byte* to, const std::byte* from, std::size_t /*bytes*/) {
  const auto at = group_.place_of(from);
  const bool reads = at.ok();
  KVLANE_ASSIGN(const RankGroup::Place place, reads ? at : group_.place_of(to));
  const int stage = stage_of(group_.shape_.layers, group_.stages(), place.layer);
  for (int rank = 0; rank < group_.ranks(); ++rank) {
    if (reads && !group_.is_read(place, rank)) continue;
    const PagePlace part = group_.part_of(place, rank);
    KVLANE_ASSIGN(const std::uint64_t request,
                  group_.ask(stage * group_.ranks() + rank, [&](std::uint64_t number) {
                    SlabOrder order{number, place.block, place.layer, {}};
                    if (reads) return encode_read(order);
                    order.bytes = {from + part.offset, part.bytes};
                    return encode_write(order);
                  }));
    pending_.push_back({request, reads ? to + part.offset : nullptr, reads ? part.bytes : 0});
  }
  return {};
}

Status RankLane::finish() {
  Status all;
  for (const Pending& pending : std::exchange(pending_, {})) {
    const auto letter = group_.answer(pending.request);
    if (!letter.ok()) {
      all = letter.status();
      continue;
    }
    const auto reply = decode_reply(*letter);
    if (reply->bytes.size() != pending.bytes) {
      all = corrupt("a rank sent a slab of another size");
    } else if (pending.bytes > 0) {
      std::memcpy(pending.to, reply->bytes.data(), pending.bytes);
    }
  }
  return all;
}

// Passes here tell of a layer when it is there.
Status RankLane::wait(const DeviceMark& /*mark*/) { return not_here(); }
Result<std::shared_ptr<const DeviceMark>> RankLane::mark() { return not_here(); }
Status RankLane::copy_rows(const RowsCopy& /*rows*/) { return not_here(); }
Status RankLane::encode(ElementType, const splitzip::DeviceEncodeTask*, std::size_t) {
  return not_here();
}
Status RankLane::encode(ElementType, const channel::DeviceEncodeTask*, std::size_t) {
  return not_here();
}
Status RankLane::decode(ElementType, const splitzip::DeviceDecodeTask*, std::size_t) {
  return not_here();
}
Status RankLane::decode(ElementType, const channel::DeviceDecodeTask*, std::size_t) {
  return not_here();
}
Status RankLane::checksum(const gpu::Xxh3Task*, std::size_t) { return not_here(); }

}  // namespace kvlane
