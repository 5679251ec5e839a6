// SHA-256 over OpenSSL, and hexadecimal text for digests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX: its headers stay out of ours

namespace kvlane {

using Sha256Digest = std::array<std::byte, 32>;

// Hashes what is given to update(), in order. OpenSSL may refuse (no memory, or a configuration
// without SHA-256): that sticks, and finish() reports it. Movable; one thread at a time.
class Sha256 {
 public:
  Sha256();

  void update(ByteView bytes);

  // The digest of all bytes so far; kInternal when OpenSSL refused. Called once, as the last call.
  Result<Sha256Digest> finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;  // empty after a refusal and after finish()
};

// The digest of one buffer.
Result<Sha256Digest> sha256(ByteView bytes);

// Two lower-case digits per byte.
std::string to_hex(ByteView bytes);

}  // namespace kvlane
