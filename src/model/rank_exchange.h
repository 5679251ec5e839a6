// What ranks that compute one model together hand each other during a forward pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// For the thread that runs passes. All ranks make the same calls in the same order; each returns
// when its rank may go on. After an error no further call will do any good.
class RankExchange {
 public:
  virtual ~RankExchange() = default;

  // Among the ranks of a stage. `own`: [rows][bytes of this rank's outputs]; `whole`: [rows][bytes
  // of all ranks' outputs], in their order, `row_bytes` each, not overlapping.
  virtual Status gather(ByteView own, int rows, std::size_t row_bytes, std::byte* whole) = 0;

  // Hidden states, [rows][hidden] in F32: from the same rank of the stage before, and to that of
  // the one behind.
  virtual Status receive(std::byte* hidden, std::size_t bytes) = 0;
  virtual Status send(ByteView hidden) = 0;
};

}  // namespace kvlane
