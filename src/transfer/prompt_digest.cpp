// Which prompt a transfer's K and V are of.
// SPDX-License-Identifier: Apache-2.0
#include "crypto/sha256.h"
#include "transfer/endpoint.h"

namespace kvlane {

Result<PromptDigest> prompt_digest(std::span<const std::int32_t> tokens) {
  return sha256(std::as_bytes(tokens));
}

}  // namespace kvlane
