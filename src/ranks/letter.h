// What the head of a worker and its ranks write each other: spec/ranks.md sections 1 and 2.
//
// Encoding cannot fail. Decoding takes bytes from elsewhere; errors are kCorrupt, one sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cache/block_pool.h"
#include "codec/codec.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "model/forward_pass.h"
#include "transfer/link.h"

namespace kvlane {

inline constexpr std::uint32_t kRanksVersion = 3;

enum class LetterKind : std::uint8_t {
  kJoin = 1,
  kPlan = 2,
  kPeer = 3,
  kReady = 4,
  kValues = 5,
  kPass = 6,
  kLayer = 7,
  kEnd = 8,
  kCopy = 9,
  kRead = 10,
  kWrite = 11,
  kReply = 12,
  // ranks/state_letter.h:
  kSave = 13,
  kFind = 14,
  kPrefetch = 15,
  kFlush = 16,
  kRestore = 17,
  kAdvance = 18,
  kForget = 19,
  kWake = 20,
  kComplete = 21,
  kEndRows = 22,
};
// kCorrupt for an empty letter.
Result<LetterKind> kind_of(ByteView letter);

struct Join {
  int stages = 1;
  int ranks = 1;  // of a stage
  int rank = 0;   // of all
  ModelIdentity model{};
  Address address;  // where it listens for other ranks

  friend bool operator==(const Join&, const Join&) = default;
};

// What ranks save of the layers of each block, each of its own.
struct StatePlan {
  bool int8 = false;  // hidden states in 8 bits
  int hidden_first = 0, hidden_last = 0;
  int slabs_first = 0;
  std::string codec = "none";  // of slabs
  bool waits = false;          // for room, where saving hidden states is behind
  // From calibration, for a codec that takes them: of K, then of V, for each layer of the model; or
  // none.
  std::vector<Codebook> codebooks = {};

  friend bool operator==(const StatePlan&, const StatePlan&) = default;
};

struct Plan {
  std::string format;  // "bf16" for a cache of rows
  int blocks = 0;
  int row_blocks = 0;
  int arena_blocks = 0;
  int rows_max = 0;
  int logits_max = 0;
  int context = 0;           // Model::context()
  std::uint64_t tables = 0;  // KvFormat::tables()
  std::vector<Address> ranks;
  std::optional<StatePlan> state;  // absent: ranks have no state stores

  friend bool operator==(const Plan&, const Plan&) = default;
};

// One sequence of a pass: what its table is on the head.
struct PassSpan {
  int tokens_before = 0;
  int gone = 0;
  int sight = 0;
  int logits = 0;
  std::vector<std::int32_t> tokens;
  std::vector<BlockId> blocks;
  std::vector<BlockId> rows;
  std::uint64_t saved = 0;  // ForwardSpan::saved

  friend bool operator==(const PassSpan&, const PassSpan&) = default;
};

struct Pass {
  std::uint64_t number = 0;
  std::vector<PassSpan> spans;
};

struct LayerDone {
  std::uint64_t pass = 0;
  int layer = 0;  // of the model
};

struct PassEnd {
  std::uint64_t pass = 0;
  Status status;
  ForwardTimes times;  // without its total
  ByteView logits;     // of rank 0 of the last stage, F32; points into the letter
  // Of the rank's state store, since it began.
  std::uint64_t save_failures = 0;  // blocks
  std::uint64_t hidden_tokens_lost = 0;
};

enum class RankMemory : std::uint8_t { kBlocks = 0, kRows = 1, kArena = 2 };

struct BlockPlace {
  RankMemory memory = RankMemory::kBlocks;
  BlockId block = 0;

  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

struct CopyOrder {
  std::uint64_t request = 0;
  BlockPlace to, from;
};

// READ, or with bytes WRITE.
struct SlabOrder {
  std::uint64_t request = 0;
  BlockPlace place;
  int layer = 0;   // of the model
  ByteView bytes;  // points into the letter
};

struct Reply {
  std::uint64_t request = 0;
  Status status;
  ByteView bytes;  // points into the letter
};

Bytes encode_join(const Join& join);
Bytes encode_plan(const Plan& plan);
Bytes encode_peer(int rank);
Bytes encode_ready();
Bytes encode_values(ByteView values);
Bytes encode_pass(const Pass& pass);
Bytes encode_layer(const LayerDone& layer);
Bytes encode_pass_end(const PassEnd& end);
Bytes encode_copy(const CopyOrder& copy);
Bytes encode_read(const SlabOrder& read);
Bytes encode_write(const SlabOrder& write);
Bytes encode_reply(const Reply& reply);

Result<Join> decode_join(ByteView letter);
Result<Plan> decode_plan(ByteView letter);
Result<int> decode_peer(ByteView letter);
Result<ByteView> decode_values(ByteView letter);
Result<Pass> decode_pass(ByteView letter);
Result<LayerDone> decode_layer(ByteView letter);
Result<PassEnd> decode_pass_end(ByteView letter);
Result<CopyOrder> decode_copy(ByteView letter);
Result<SlabOrder> decode_read(ByteView letter);
Result<SlabOrder> decode_write(ByteView letter);
Result<Reply> decode_reply(ByteView letter);

}  // namespace kvlane
