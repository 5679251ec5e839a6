// Checksums and copies go into line together: a block that should not have been written is lost
// anyway, and nobody has seen it.
// SPDX-License-Identifier: Apache-2.0
#include "restore/direct_landing.h"

#include <string>

#include "codec/codec.h"
#include "gpu/device.h"
#include "gpu/xxh3_batch.h"

namespace kvlane {

Result<std::unique_ptr<DirectLanding>> DirectLanding::open(Accelerator& device,
                                                           gpu::DirectStorage& storage,
                                                           std::size_t bytes, int slabs_max) {
  std::unique_ptr<DirectLanding> landing(new DirectLanding);
  KVLANE_ASSIGN(landing->rooms_, DirectRooms::open(device, storage, bytes));
  KVLANE_ASSIGN(landing->lane_, device.lane());
  KVLANE_ASSIGN(landing->host_,
                device.allocate_host(slabs_max * (sizeof(gpu::Xxh3Task) + sizeof(std::uint64_t))));
  landing->tasks_ = reinterpret_cast<gpu::Xxh3Task*>(landing->host_.get());
  landing->sums_ = reinterpret_cast<std::uint64_t*>(landing->tasks_ + slabs_max);
  return landing;
}

bool DirectLanding::takes(const SlabKind& kind, const ExtentHead& head, int first, int count) {
  if (head.encrypted || head.codec != "none") return false;
  const std::size_t plane = plane_shape(kind.shape(), kBlockTokens).bytes();
  for (int p = first; p < first + count; ++p) {
    const ExtentPart& part = head.parts[p];
    const int layer = head.layer + p;
    const bool lies = kind.format() == nullptr
                          ? part.k_bytes == plane && part.v_bytes == plane
                          : kind.format()->packs_as_it_lies(layer) &&
                                part.k_bytes == kind.slab_bytes(layer) && part.v_bytes == 0;
    if (!lies || part.bytes() < gpu::kXxh3BytesMin) return false;
  }
  return true;
}

Status DirectLanding::land(const SlabKind& kind, const BlockPool& pool, int layer,
                           std::span<const ArrivedSlab> slabs, std::span<Status> verdicts) {
  const Status given = give(kind, pool, layer, slabs);
  // Also after an error: what is in line reads what the next call writes.
  const Status finished = lane_->finish();
  KVLANE_TRY(given);
  KVLANE_TRY(finished);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (sums_[i] == slabs[i].part->checksum) continue;
    verdicts[i] = corrupt("layer " + std::to_string(layer) +
                          " of an extent has a wrong checksum in the device's memory");
  }
  return {};
}

Status DirectLanding::give(const SlabKind& kind, const BlockPool& pool, int layer,
                           std::span<const ArrivedSlab> slabs) {
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const ExtentPart& part = *slabs[i].part;
    sums_[i] = ~part.checksum;  // not what was there before
    tasks_[i] = {slabs[i].bytes, part.bytes(), &sums_[i]};
  }
  KVLANE_TRY(lane_->checksum(tasks_, slabs.size()));
  const std::size_t head = plane_shape(kind.shape(), kBlockTokens).head_bytes();
  for (const ArrivedSlab& slab : slabs) {
    std::byte* const to = pool.slab_memory(slab.block, layer);
    if (kind.format() != nullptr) {
      KVLANE_TRY(lane_->copy(to, slab.bytes, slab.part->bytes()));
      continue;
    }
    // Planes of all heads become pages of K and V.
    for (int plane = 0; plane < 2; ++plane) {
      KVLANE_TRY(lane_->copy_rows({.to = to + plane * head,
                                   .to_stride = kind.shape().page_bytes(),
                                   .from = slab.bytes + plane * slab.part->k_bytes,
                                   .from_stride = head,
                                   .bytes = head,
                                   .rows = std::size_t(kind.shape().kv_heads)}));
    }
  }
  return {};
}

}  // namespace kvlane
