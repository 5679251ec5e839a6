// A layer's rows are an exchange to which one rank alone brings something.
// SPDX-License-Identifier: Apache-2.0
#include "restore/rank_rows.h"

#include <algorithm>
#include <utility>

#include "format/shape.h"
#include "model/part.h"

namespace kvlane {

RankRows::RankRows(const Model& model, RankExchange& ranks) : model_(model), ranks_(ranks) {}

// Of its rank's layers the how-manyth.
int RankRows::place_of(int layer, int& rank) const {
  ModelPart part = model_.part();
  for (part.rank = 0; part.rank < part.ranks; ++part.rank) {
    const Share own = stored_hidden_of(model_.whole_config(), part);
    if (layer < own.first || layer >= own.first + own.count) continue;
    rank = part.rank;
    return layer - own.first;
  }
  rank = -1;
  return 0;
}

bool RankRows::stores(int layer) const {
  int rank = -1;
  place_of(layer, rank);
  return rank == model_.part().rank;
}

std::vector<int> RankRows::in_turns(std::span<const int> layers) const {
  std::vector<int> order(layers.begin(), layers.end());
  const auto turn = [&](int layer) {
    int rank = -1;
    const int place = place_of(layer, rank);
    return std::pair(place, rank);
  };
  std::sort(order.begin(), order.end(), [&](int a, int b) { return turn(a) < turn(b); });
  return order;
}

Result<ByteView> RankRows::share(int layer, HiddenFormat::Values values,
                                 std::span<const ByteView> stored, int tokens) {
  const HiddenFormat form(values, hidden_type(model_), model_.config().hidden);
  const std::size_t row = form.row_bytes();
  own_.clear();
  // What cannot be read is told when the others have had their rows, who cannot do without.
  Status read;
  if (stores(layer)) {
    own_.resize(tokens * row);
    std::byte* to = own_.data();
    for (const ByteView rows : stored) {
      if (!rows.empty() && read.ok()) read = form.decode(rows, kBlockTokens, to);
      to += kBlockTokens * row;
    }
  }
  all_.resize(tokens * row);
  KVLANE_TRY(ranks_.gather(own_, tokens, row, all_.data()));
  KVLANE_TRY(read);
  return ByteView(all_);
}

}  // namespace kvlane
