// Blocks for tests of the store: contents that follow from names, saved, read and compared.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <future>
#include <utility>
#include <vector>

#include "base/temporary_directory.h"
#include "cpu/memory.h"
#include "store/store.h"

namespace kvlane {

inline BlockKey key_of(int block) {
  BlockKey key{.kind = ExtentKind::kHidden};
  key.name.fill(std::byte{0xAB});
  std::memcpy(key.name.data(), &block, sizeof block);
  return key;
}
// Of a block of one of several sequences.
inline BlockName block_name(int sequence, int block) { return key_of(64 * sequence + block).name; }

// Hidden states of `layers` layers; parts of 5,000 bytes, which no page ends with.
inline ExtentHead hidden_head(int block, int layer, int layers) {
  ExtentHead head{.key = key_of(block), .format = "attention_input", .layer = layer, .width = 39};
  head.parts.assign(static_cast<std::size_t>(layers), ExtentPart{.k_bytes = 5000});
  EXPECT_TRUE(place_parts(head).ok());
  return head;
}
inline std::uint64_t head_bytes(int layers) { return hidden_head(0, 0, layers).extent_bytes(); }
// Of what save_block() saves.
inline std::uint64_t block_bytes() { return head_bytes(3) + head_bytes(2); }

inline Bytes content_of(int block, int layer, std::size_t bytes) {
  Bytes content(bytes);
  std::uint32_t state = static_cast<std::uint32_t>(block) * 2654435761U + 97U * layer + 1;
  for (std::byte& byte : content) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return content;
}

inline int block_of(const ExtentHead& head) {
  int block = 0;
  std::memcpy(&block, head.key.name.data(), sizeof block);
  return block;
}

inline ExtentDraft filled(ExtentDraft draft) {
  const ExtentHead& head = draft.head();
  for (int p = 0; p < head.layers(); ++p) {
    const auto part = draft.part(p);
    const Bytes content = content_of(block_of(head), head.layer + p, part.size());
    std::memcpy(part.data(), content.data(), content.size());
  }
  return draft;
}
inline ExtentDraft draft_of(Store& store, const ExtentHead& head) {
  auto draft = store.draft(head);
  EXPECT_TRUE(draft.ok()) << draft.status().message();
  return filled(std::move(*draft));
}

inline Status save_and_wait(Store& store, const ExtentHead& head, int directory = 0) {
  std::promise<Status> outcome;
  store.put(draft_of(store, head), directory,
            [&outcome](const Status& status) { outcome.set_value(status); });
  store.flush();
  return outcome.get_future().get();
}

// Five layers in two extents.
inline void save_block(Store& store, int block) {
  const auto good = [](const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); };
  store.put(draft_of(store, hidden_head(block, 0, 3)), 0, good);
  store.put(draft_of(store, hidden_head(block, 3, 2)), 0, good);
}
inline void save_and_wait_block(Store& store, int block) {
  EXPECT_TRUE(save_and_wait(store, hidden_head(block, 0, 3)).ok());
  EXPECT_TRUE(save_and_wait(store, hidden_head(block, 3, 2)).ok());
}

// The parts one behind the other, without what is between them.
inline Status read_parts(Store& store, const PinnedExtent& extent, int first, int count,
                         Bytes& parts) {
  const ExtentHead& head = extent.head();
  const std::size_t bytes = extent_read_bytes(head, first, count);
  const PageBuffer memory = std::move(*PageBuffer::allocate(bytes));
  std::promise<Status> outcome;
  store.read({{extent, first, count, {memory.data(), bytes}}},
             [&outcome](std::size_t, const Status& status) { outcome.set_value(status); });
  const Status status = outcome.get_future().get();
  if (!status.ok()) return status;
  for (int p = first; p < first + count; ++p) {
    const ExtentPart& part = head.parts[static_cast<std::size_t>(p)];
    const std::size_t at =
        std::size_t{part.page - head.parts[static_cast<std::size_t>(first)].page} *
        kExtentPageBytes;
    parts.insert(parts.end(), memory.data() + at, memory.data() + at + part.bytes());
  }
  return status;
}

// Reads all of an extent; what comes must be what was saved. The status of the read.
inline Status read_and_compare(Store& store, const PinnedExtent& extent) {
  const ExtentHead& head = extent.head();
  Bytes parts;
  const Status status = read_parts(store, extent, 0, head.layers(), parts);
  if (!status.ok()) return status;
  Bytes expected;
  for (int p = 0; p < head.layers(); ++p) {
    const Bytes one =
        content_of(block_of(head), head.layer + p, head.parts[static_cast<std::size_t>(p)].bytes());
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_TRUE(parts == expected) << "block " << block_of(head) << " has wrong bytes";
  return status;
}

inline void expect_block(Store& store, int block) {
  const auto found = store.find(key_of(block));
  ASSERT_EQ(found.size(), 2U) << block;
  for (const PinnedExtent& extent : found) {
    const Status status = read_and_compare(store, extent);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Of blocks 0 ... `count` - 1, those that are there with all of their layers.
inline std::vector<int> blocks_there(const Store& store, int count) {
  std::vector<int> there;
  for (int block = 0; block < count; ++block) {
    if (store.holds(key_of(block), 0, 5)) there.push_back(block);
  }
  return there;
}

// What the files of a directory take from the disk, without holes.
inline std::uint64_t disk_bytes(const std::filesystem::path& directory) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    struct stat info {};
    EXPECT_EQ(::stat(entry.path().c_str(), &info), 0);
    bytes += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace kvlane
