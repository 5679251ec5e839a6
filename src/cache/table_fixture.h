// What tests of block tables share: the shape of their caches, and passes without a model.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "cache/block_pool.h"

namespace kvlane::table_fixture {

inline const KvShape kShape{2, 3, 16, ElementType::kBf16};
inline constexpr std::size_t kSlabBytes = 192;  // of a sealed slab

inline BlockName name_of(int block) {
  BlockName name{};
  name[0] = static_cast<std::byte>(block + 1);
  return name;
}

// One pass over `tokens` more tokens.
inline void pass(BlockTable& table, int tokens) {
  const int end = table.tokens() + tokens;
  ASSERT_TRUE(table.grow(end).ok());
  ASSERT_TRUE(table.open_rows(end).ok());
  table.set_tokens(end);
}

}  // namespace kvlane::table_fixture
