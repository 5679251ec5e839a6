// An extent: slabs or hidden states of consecutive layers of one block, as they lie in a state
// store. Byte layout, value ranges and the order of checks: spec/store.md, sections 3 and 4.
//
// Only the header page is written and read here; parts are bytes that somebody else moves.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "format/block_name.h"
#include "format/element.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

inline constexpr std::uint16_t kExtentVersion = 1;
// Header, parts and extents begin at multiples of it: what O_DIRECT asks for at most.
inline constexpr std::size_t kExtentPageBytes = 4096;
inline constexpr std::size_t kExtentHeaderBytes = kExtentPageBytes;
// Of the header, what does not depend on the number of parts; also the additional data of AEAD.
inline constexpr std::size_t kExtentFixedBytes = 224;
inline constexpr std::size_t kExtentPartBytes = 48;
inline constexpr int kExtentLayersMax = 80;
inline constexpr int kExtentShardsMax = 1024;
inline constexpr int kExtentHiddenWidthMax = 1 << 20;
inline constexpr std::uint64_t kExtentBytesMax = std::uint64_t{1} << 28;

// The values are part of a persistent format: never change or reuse one.
enum class ExtentKind : std::uint8_t {
  kKv = 1,      // bodies of frames
  kHidden = 2,  // what K and V of a layer are computed from
};

constexpr const char* extent_kind_name(ExtentKind kind) {
  return kind == ExtentKind::kKv ? "kv" : "hidden";
}

// Which block of which shard: all of its extents have this in common.
struct BlockKey {
  BlockName name{};
  ExtentKind kind = ExtentKind::kKv;
  int shards = 1;
  int shard = 0;  // 0 ... shards - 1

  friend bool operator==(const BlockKey&, const BlockKey&) = default;
};

struct BlockKeyHash {
  std::size_t operator()(const BlockKey& key) const {
    const auto rest = static_cast<std::size_t>(key.kind) << 20 ^
                      static_cast<std::size_t>(key.shards) << 10 ^
                      static_cast<std::size_t>(key.shard);
    return BlockNameHash{}(key.name) + rest * 0x9E3779B97F4A7C15U;
  }
};

// One layer of an extent.
struct ExtentPart {
  std::uint32_t page = 0;  // where it begins in the extent, in kExtentPageBytes; the header is 0
  std::uint32_t k_bytes = 0;
  std::uint32_t v_bytes = 0;
  std::uint64_t checksum = 0;       // XXH3-64 of its bytes as stored
  std::array<std::byte, 16> tag{};  // encrypted: of AES-256-GCM

  std::size_t bytes() const { return std::size_t{k_bytes} + v_bytes; }
  // With the zeros behind it: what is written, and what a direct read takes.
  std::size_t padded_bytes() const {
    return (bytes() + kExtentPageBytes - 1) / kExtentPageBytes * kExtentPageBytes;
  }
  friend bool operator==(const ExtentPart&, const ExtentPart&) = default;
};

// What the header says. Every field is validated by parse_extent_head; any well-formed name passes
// for format and codec.
struct ExtentHead {
  BlockKey key;
  ModelIdentity model{};
  std::string format = "bf16";
  std::string codec = "none";
  ElementType type = ElementType::kBf16;
  int tokens = kBlockTokens;  // rows of a part
  int layer = 0;              // of the first part
  int heads = 1;              // kKv: KV heads of a part; kHidden: 1
  int width = 0;              // kKv: head_dim; kHidden: channels of a row
  std::int64_t position = 0;  // of the block's first token
  bool rope_applied = false;
  bool sealed = false;
  std::uint64_t tables = 0;
  std::uint64_t key_id = 0;  // encrypted: of which key
  bool encrypted = false;
  std::array<std::byte, 12> nonce{};
  std::vector<ExtentPart> parts;  // layer, layer + 1, ...

  int layers() const { return static_cast<int>(parts.size()); }
  bool holds(int wanted) const { return wanted >= layer && wanted < layer + layers(); }
  // Header, parts and padding; what place_parts() made of them.
  std::uint64_t extent_bytes() const {
    if (parts.empty()) return kExtentHeaderBytes;
    const std::uint64_t page = parts.back().page;
    return page * kExtentPageBytes + parts.back().padded_bytes();
  }
  friend bool operator==(const ExtentHead&, const ExtentHead&) = default;
};

// Sets `page` of each part from the lengths of those before it. kInvalidArgument when a length is
// 0 or the extent would be larger than kExtentBytesMax.
Status place_parts(ExtentHead& head);

// The header page. kInvalidArgument when a field is out of the range of spec/store.md.
Result<Bytes> build_extent_head(const ExtentHead& head);

// Reads a header page, at least kExtentHeaderBytes. Fails with kCorrupt or kUnsupported; then there
// is no extent.
Result<ExtentHead> parse_extent_head(ByteView page);

// A header page without its zeros, as catalogues keep it, and the page again: section 8. The latter
// fails with kCorrupt when the length is none that the former gives.
Bytes shorten_extent_head(ByteView page);
Result<Bytes> lengthen_extent_head(ByteView head);

// Which directory of `directories` an extent should go to: section 3. `first` is the name of its
// sequence's block 0, `layer` the extent's first.
int extent_directory(const BlockName& first, int layer, std::int64_t position, int directories);

}  // namespace kvlane
