// K and V of a sequence from its stored hidden states (HCache): a sixth of a layer's work or less,
// and no attention. On the CPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/block_pool.h"
#include "cpu/memory.h"
#include "kvlane/status.h"
#include "model/hidden_rows.h"
#include "model/key_rows.h"
#include "model/model.h"

namespace kvlane {

// Tokens `first` ... `first` + `count` - 1 of a sequence that comes back with `tokens` tokens.
// Whole blocks, but for the end of the sequence.
struct RestoreSpan {
  // With blocks for all tokens, and in a coded cache open_arriving_rows(tokens) or whole blocks
  // alone without a window. Passes may have computed K and V of the first layers
  // (PassHooks::kv_layers), so that it has the tokens already.
  BlockTable* table;
  int tokens;
  int first;
  int count;
};

// Buffers for up to `rows_max` tokens at a time, and the work itself. Thread-compatible; several of
// them may write different layers of one table at once. From exact rows K and V have the bits that
// a forward pass gave them, and so have sealed slabs, whatever the parts in which they come.
class HiddenRestorer {
 public:
  // For tables of caches in 16 bits, or of coded caches in `format`, which outlives this, as the
  // model does. Tokens are taken in parts of `rows_max`, a positive multiple of kBlockTokens.
  static Result<std::unique_ptr<HiddenRestorer>> create(const Model& model,
                                                        const HiddenFormat& hidden, int rows_max,
                                                        const KvFormat* format = nullptr);

  // Writes K and V of one layer, of those that the model has here, and seals its complete slabs in
  // a coded cache. `stored` are the rows of all tokens of the span, in order, in pieces of whole
  // rows. When all layers have all tokens the caller says so: table->set_tokens(). On an error the
  // layer is garbage.
  Status restore(const RestoreSpan& span, int layer, std::span<const ByteView> stored);

  // The same of layer 0 from the tokens themselves: its hidden states are their embeddings, which
  // nobody needs to store. `tokens` are those of the span.
  Status restore_embedded(const RestoreSpan& span, std::span<const std::int32_t> tokens);

 private:
  HiddenRestorer(const Model& model, const HiddenFormat& hidden, int rows_max,
                 const KvFormat* format)
      : model_(model),
        hidden_(hidden),
        rows_max_(rows_max),
        format_(format),
        first_layer_(layers_of(model.whole_config(), model.part()).first),
        key_rows_(model, format) {}

  Status allocate();
  Status check(const RestoreSpan& span, int layer) const;
  Status decode(std::span<const ByteView> stored, int first, int count);
  Status project(const RestoreSpan& span, int layer);
  // The product that gives K and V of a layer, if only behind Q.
  const Linear& product_of(int layer) const;
  void write_rows(const RestoreSpan& span, int layer);
  Status seal(const RestoreSpan& span, int layer);
  std::uint16_t* slab_rows(const RestoreSpan& span, int layer, int block) const;

  const Model& model_;
  const HiddenFormat hidden_;
  const int rows_max_;
  const KvFormat* const format_;
  const int first_layer_;  // of the model, that is here
  const KeyRows key_rows_;
  // Of each layer here, K and V alone; null where its weights are packed such that all of Q, K and
  // V is one product.
  std::vector<std::unique_ptr<Linear>> kv_;

  PageBuffer memory_;               // all that follows
  std::byte* normed_ = nullptr;     // [rows][hidden] in hidden_type()
  float* product_ = nullptr;        // [rows][outputs of the product]
  std::uint16_t* slabs_ = nullptr;  // of a coded cache, [blocks] slabs of rows that stay nowhere
};

}  // namespace kvlane
