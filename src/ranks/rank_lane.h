// Slabs between the head's memory and the ranks': a lane as devices have one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "ranks/rank_group.h"

namespace kvlane {

// copy() moves whole slabs, from a place or to one. No codecs, no marks. The group outlives
// this.
class RankLane final : public DeviceLane {
 public:
  explicit RankLane(RankGroup& group) : group_(group) {}

  Status wait(const DeviceMark& mark) override;
  Result<std::shared_ptr<const DeviceMark>> mark() override;
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status copy_rows(const RowsCopy& rows) override;
  Status encode(ElementType type, const splitzip::DeviceEncodeTask* tasks,
                std::size_t count) override;
  Status encode(ElementType type, const channel::DeviceEncodeTask* tasks,
                std::size_t count) override;
  Status decode(ElementType type, const splitzip::DeviceDecodeTask* tasks,
                std::size_t count) override;
  Status decode(ElementType type, const channel::DeviceDecodeTask* tasks,
                std::size_t count) override;
  Status checksum(const gpu::Xxh3Task* tasks, std::size_t count) override;
  Status finish() override;

 private:
  struct Pending {
    std::uint64_t request;
    std::byte* to;  // where the answer's bytes go; null: it has none
    std::size_t bytes;
  };

  RankGroup& group_;
  std::vector<Pending> pending_;
};

}  // namespace kvlane
