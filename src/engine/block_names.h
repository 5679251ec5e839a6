// Names of a sequence's blocks: the hash chain of spec/block_name.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "format/block_name.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

// Grows with its sequence. Movable, one thread at a time.
class BlockNames {
 public:
  // The start of all chains of one model, format and tenant. kInternal when OpenSSL refuses.
  static Result<BlockName> root(const ModelIdentity& model, std::string_view format,
                                std::string_view salt);

  explicit BlockNames(const BlockName& root) : last_(root) {}

  // Names the blocks that `tokens`, the sequence from its start, has complete by now. kInternal
  // when OpenSSL refuses; the names so far stay.
  Status extend(std::span<const std::int32_t> tokens);

  std::span<const BlockName> all() const { return names_; }

 private:
  BlockName last_;
  std::vector<BlockName> names_;
};

}  // namespace kvlane
