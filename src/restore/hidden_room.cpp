// Two passes, and four.
// SPDX-License-Identifier: Apache-2.0
#include "restore/hidden_room.h"

#include <algorithm>

#include "model/hidden_rows.h"

namespace kvlane {

HiddenRoom HiddenRoom::of(const Model& model, int rows, int layers) {
  constexpr std::size_t kRingBytesMin = std::size_t{64} << 20;
  constexpr std::size_t kDraftBytesMin = std::size_t{256} << 20;
  const std::size_t pass =
      std::size_t(rows) * layers * model.config().hidden * element_bytes(hidden_type(model));
  return {std::max(kRingBytesMin, 2 * pass), std::max(kDraftBytesMin, 4 * pass)};
}

}  // namespace kvlane
