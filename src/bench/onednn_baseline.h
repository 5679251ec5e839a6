// oneDNN's own speed for a product, without anything of ours around it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

// One product y[m][n] = x[m][k] W^T with weights in the layout oneDNN chose for exactly this shape.
class OnednnBaseline {
 public:
  static Result<std::unique_ptr<OnednnBaseline>> create(int m, int n, int k, ElementType type);
  virtual ~OnednnBaseline() = default;
  virtual double seconds() = 0;  // of one execution
};

}  // namespace kvlane
