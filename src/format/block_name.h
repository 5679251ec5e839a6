// What a sealed block is called wherever it lies. Normative: spec/block_name.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstring>

namespace kvlane {

// A link of a chain of SHA-256 digests over (model, format, tenant salt, tokens so far): equal
// names mean equal contents, in every process and on every machine of one CPU tier.
using BlockName = std::array<std::byte, 32>;

// Digests are as good as random, so any eight bytes of them are a hash.
struct BlockNameHash {
  std::size_t operator()(const BlockName& name) const {
    std::size_t hash;
    std::memcpy(&hash, name.data(), sizeof hash);
    return hash;
  }
};

}  // namespace kvlane
