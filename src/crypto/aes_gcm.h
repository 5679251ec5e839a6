// AES-256-GCM over OpenSSL: bytes are hidden in place, and what was changed is found.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

using AesKey = std::array<std::byte, 32>;
using AesNonce = std::array<std::byte, 12>;  // never twice under one key
using AesTag = std::array<std::byte, 16>;

// Encrypts `bytes` where they are and gives the tag over them and `also`, which stays as it is. At
// most 2^30 bytes. kInternal when OpenSSL refuses; `bytes` are then worthless.
Result<AesTag> aes_gcm_encrypt(const AesKey& key, const AesNonce& nonce, ByteView also,
                               std::span<std::byte> bytes);

// Decrypts `bytes` where they are. kCorrupt when anything is not as it was; `bytes` are then zeros.
Status aes_gcm_decrypt(const AesKey& key, const AesNonce& nonce, ByteView also, const AesTag& tag,
                       std::span<std::byte> bytes);

// `bytes` random bytes of the system's generator, good enough for keys.
Status secure_random(std::span<std::byte> bytes);

}  // namespace kvlane
