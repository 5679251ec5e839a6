// A loaded model: packed weights and the forward pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "format/shape.h"
#include "kvlane/status.h"
#include "model/config.h"

namespace kvlane {

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ModelIdentity& identity() const = 0;
};

}  // namespace kvlane
