// A forward pass over a ragged batch: parts of prompts and single decoding tokens side by side. The
// CPU's is model/forward.h, that of devices model/device_forward.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "cache/block_pool.h"
#include "kvlane/status.h"

namespace kvlane {

class SparseCache;  // cache/sparse_cache.h

// The next tokens of one sequence. Their position is table->tokens(); the table has room for them.
struct ForwardSpan {
  BlockTable* table;
  std::span<const std::int32_t> tokens;
  int logits;  // rows of logits that are wanted: those of the last so many tokens
  // Of each of these rows the most likely next token will do, where the pass can tell it.
  bool best_will_do = false;
  // Of a sequence from which tokens are evicted, on the CPU: it scores the prompt's tokens while
  // they go to the table, and once its prompt is over has the sequence itself: then the position is
  // sparse->tokens(), and the table is left alone.
  SparseCache* sparse = nullptr;
  // Where ranks compute: the stream of hidden states to which those of these tokens go, which they
  // save; 0: none.
  std::uint64_t saved = 0;
};

// Seconds of one pass.
struct ForwardTimes {
  double gemm = 0;
  double attention = 0;
  double dequantise = 0;  // of attention: opening sealed pages, a thread's share of it
  double quantise = 0;    // sealing blocks
  double total = 0;       // all of it, and the rest
};

class DeviceMark;  // model/accelerator.h

// Hidden states of some layers that a pass on a device leaves for others to fetch.
struct KeptRows {
  int layer, layers;      // the first, and how many
  const std::byte* rows;  // of the first, [rows of the pass][hidden], BF16, in the device's memory
  std::size_t layer_bytes;     // from there to the next layer's
  std::span<const int> first;  // of each span its first row: they are not in the spans' order
  std::shared_ptr<const DeviceMark> there;  // they are, once the device is here
};

// What a pass shows on its way, and how far it goes. Each callback may be empty; they are called on
// the thread of run(), layer by layer. Rows are those of the pass, in the order of its spans. A
// device has on_layer, on_kept and kv_layers alone, and on_kept is the devices'.
struct PassHooks {
  // Called when the K and V of this layer are final for all rows of the pass: those in memory of
  // the host now, those of a device, which is ahead of what it has done, once it reaches `done`.
  // Without it a device is saved the marks.
  using OnLayer = std::function<void(int layer, const std::shared_ptr<const DeviceMark>& done)>;

  // Called with the hidden states that are about to enter this layer, [rows][hidden]; those of
  // layer 0 are the embeddings.
  using OnInput = std::function<void(int layer, std::span<const float> hidden)>;

  // Called when this layer's queries are final for all rows of the pass: after the model's norms
  // and rotation, before they are scaled. BF16 [rows][heads][parts][head_dim]; the parts of a head
  // add up to its query.
  using OnQueries =
      std::function<void(int layer, std::span<const std::uint16_t> queries, int parts)>;

  // Called with what this layer's products of Q, K and V read, the hidden states behind the norm:
  // [rows][hidden] in hidden_type() (model/hidden_rows.h). K and V of these rows are in the cache
  // by then.
  using OnNormed = std::function<void(int layer, ByteView normed)>;

  // The same on a device, of the layers that it keeps (DeviceForward::create()): of each when it is
  // in line, or of all behind a pass that is launched as a whole. What comes back is where one
  // lane, always the same, will have read the rows, or null: later passes wait for it before they
  // write over them.
  using OnKept = std::function<std::shared_ptr<const DeviceMark>(const KeptRows& rows)>;

  // Called when K and V of this layer's rows are in the cache and attention is about to read them,
  // and all rows before them.
  using BeforeAttention = std::function<void(int layer)>;

  OnLayer on_layer;
  OnInput on_input;
  OnQueries on_queries;
  OnNormed on_normed;
  OnKept on_kept;
  BeforeAttention before_attention;

  // 1 ... layers: the pass ends behind K and V of layer `kv_layers` - 1, the last one that is told.
  // Those of later layers are the caller's to write, though the tables have the tokens. Nobody may
  // want logits then, nor evict tokens.
  std::optional<int> kv_layers;
};

// kInternal where `kv_layers` is not one of a model of so many layers, or with spans that want what
// such a pass does not have.
Status check_kv_layers(const PassHooks& hooks, std::span<const ForwardSpan> spans, int layers);

// Thread-compatible.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  // Appends the tokens to their sequences. Afterwards logits(i) is the i-th row that was wanted, in
  // the order of spans and tokens, until the next pass. On an error the tables are unchanged, and
  // sparse caches of no further use. kUnsupported for hooks that a device does not have.
  virtual Status run(std::span<const ForwardSpan> spans, const PassHooks& hooks) = 0;

  virtual std::span<float> logits(int index) const = 0;  // [vocab], memory of the host
  // The token that sample_token() takes of that row at temperature 0, if it will do and the pass
  // tells it; then the row is not there.
  virtual std::optional<std::int32_t> best(int /*index*/) const { return std::nullopt; }
  virtual const ForwardTimes& times() const = 0;
};

}  // namespace kvlane
