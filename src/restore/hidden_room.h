// What must wait in memory for a prompt's hidden states not to be lost: the next pass is computed
// while those of the last one are gathered (ring), and blocks of a few passes while the disk takes
// them (drafts).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "model/model.h"

namespace kvlane {

struct HiddenRoom {
  std::size_t ring_bytes;
  std::size_t draft_bytes;

  // rows: of the largest pass; layers: whose hidden states are saved, at most.
  static HiddenRoom of(const Model& model, int rows, int layers);
};

}  // namespace kvlane
