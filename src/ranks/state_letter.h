// What head and ranks write each other about state stores: spec/ranks.md section 6.
//
// As in ranks/letter.h: encoding cannot fail, errors of decoding are kCorrupt.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "cache/block_pool.h"
#include "format/block_name.h"
#include "kvlane/status.h"
#include "plan/restore_cost.h"
#include "restore/restore_decision.h"
#include "restore/restorer.h"
#include "restore/slab_saver.h"

namespace kvlane {

struct SaveOrder {
  std::uint64_t request = 0;
  BlockToSave block{};
};

// FIND, or without a request PREFETCH.
struct FindOrder {
  std::uint64_t request = 0;
  int first = 0;   // block
  int tokens = 0;  // of the sequence
  std::vector<BlockName> names;
};

// What a rank has of its own layers: what the reply to FIND brings.
struct RankStored {
  std::vector<StoredLayer> hidden, slabs;
};

// A sequence comes back: tokens up to the last block that does, names and blocks of the table.
struct RestoreOrder {
  std::uint64_t job = 0;
  int first = 0;                     // block
  int gone = 0;                      // blocks of the table that are
  std::vector<std::int32_t> tokens;  // from the sequence's start
  std::vector<BlockId> blocks;
  std::vector<BlockName> names;
  int count = 0;                       // blocks that come back
  bool embedded = false;               // layer 0 comes from tokens
  std::vector<RestoreSource> sources;  // of all layers
};

struct AdvanceOrder {
  std::uint64_t request = 0;
  std::uint64_t job = 0;
  std::uint64_t rows_allowed = 0;  // RestoreJob::advance()
};

// What the reply to ADVANCE brings.
struct Advanced {
  SequenceRestore::Progress progress = SequenceRestore::Progress::kOver;
  std::uint64_t rows_ready = 0;
  int blocks = 0;
  Status status;
  RestoreSeconds busy;
  double bytes = 0;
};

// All rows of a block of this stream were in passes.
struct CompleteOrder {
  std::uint64_t stream = 0;
  int block = 0;
  BlockName name{};
  BlockName first{};  // of the sequence's block 0
};

Bytes encode_save(const SaveOrder& save);
Bytes encode_find(const FindOrder& find);
Bytes encode_prefetch(const FindOrder& find);
Bytes encode_stored(const RankStored& stored);
Bytes encode_flush(std::uint64_t request);
Bytes encode_restore(const RestoreOrder& restore);
Bytes encode_advance(const AdvanceOrder& advance);
Bytes encode_advanced(const Advanced& advanced);
Bytes encode_forget(std::uint64_t job);
Bytes encode_wake();
Bytes encode_complete(const CompleteOrder& complete);
Bytes encode_end_rows(std::uint64_t stream);

Result<SaveOrder> decode_save(ByteView letter);
Result<FindOrder> decode_find(ByteView letter);
Result<FindOrder> decode_prefetch(ByteView letter);
Result<RankStored> decode_stored(ByteView reply);
Result<std::uint64_t> decode_flush(ByteView letter);
Result<RestoreOrder> decode_restore(ByteView letter);
Result<AdvanceOrder> decode_advance(ByteView letter);
Result<Advanced> decode_advanced(ByteView reply);
Result<std::uint64_t> decode_forget(ByteView letter);
Result<CompleteOrder> decode_complete(ByteView letter);
Result<std::uint64_t> decode_end_rows(ByteView letter);

}  // namespace kvlane
