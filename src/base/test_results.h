// What tests do with results whose errors they do not expect.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <utility>

#include "kvlane/status.h"

namespace kvlane {

// The value, or the end of the test.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(*result);
}

}  // namespace kvlane
