// What tests of engines whose model is computed by ranks share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "engine/engine_fixture.h"
#include "quant/heads_together.h"

namespace kvlane::ranked_fixture {

struct Layout {
  int stages = 1;
  int ranks = 1;  // of each stage; 1 x 1: one process
};

// Of the heads that `model` has; of all of them where it is whole.
inline std::shared_ptr<const KvFormat> format_of(const Model& model, const std::string& name,
                                                 const KvTables* tables = nullptr) {
  const Share heads = kv_heads_of(model.whole_config(), model.part());
  const KvFormatContext whole{.shape = model.whole_config().kv_shape(),
                              .rope = &model.rope(),
                              .tables = tables,
                              .isa = model.isa()};
  return take(make_rank_format(name, whole, heads.first, heads.count));
}

}  // namespace kvlane::ranked_fixture
