// Hidden states that one rank of a stage has stored and all of them project: the one who read rows
// hands them to the others (HCache, section 5: each device reads a part, and all gather).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "base/bytes.h"
#include "kvlane/status.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "model/rank_exchange.h"

namespace kvlane {

// For the thread of the model's passes. Model and exchange outlive this.
class RankRows {
 public:
  RankRows(const Model& model, RankExchange& ranks);

  // Whether it is this rank that stores hidden states of a layer of its stage.
  bool stores(int layer) const;

  // These layers in the order in which all ranks share them: of each rank one in turn, so that all
  // disks are read at once.
  std::vector<int> in_turns(std::span<const int> layers) const;

  // All ranks of the stage call this for the same layers and numbers of tokens in the same order.
  // Where stores(layer), `stored` has the rows of each block in that form, untrusted; no bytes:
  // they are lost, and zeros in all ranks. What comes back, until the next call, is
  // [tokens][hidden] in hidden_type(). After an error of the exchange no pass will do any good.
  Result<ByteView> share(int layer, HiddenFormat::Values values, std::span<const ByteView> stored,
                         int tokens);

 private:
  int place_of(int layer, int& rank) const;

  const Model& model_;
  RankExchange& ranks_;
  std::vector<std::byte> own_, all_;
};

}  // namespace kvlane
