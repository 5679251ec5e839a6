// What passes on all devices ask of their callers.
// SPDX-License-Identifier: Apache-2.0
#include "model/forward_pass.h"

#include <string>

namespace kvlane {

Status check_kv_layers(const PassHooks& hooks, std::span<const ForwardSpan> spans, int layers) {
  if (!hooks.kv_layers) return {};
  if (*hooks.kv_layers < 1 || *hooks.kv_layers > layers) {
    return internal_error("a pass cannot end behind K and V of " +
                          std::to_string(*hooks.kv_layers) + " layers of " +
                          std::to_string(layers));
  }
  for (const ForwardSpan& span : spans) {
    if (span.logits > 0) {
      return internal_error("a pass that ends behind K and V of a layer has no logits");
    }
    if (span.sparse != nullptr) {
      return internal_error(
          "a pass that ends behind K and V of a layer cannot score tokens or have them evicted");
    }
  }
  return {};
}

}  // namespace kvlane
