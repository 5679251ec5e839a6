// SHA-256 over OpenSSL's EVP interface.
// SPDX-License-Identifier: Apache-2.0
#include "crypto/sha256.h"

#include <openssl/evp.h>

namespace kvlane {

void Sha256::Free::operator()(evp_md_ctx_st* context) const { EVP_MD_CTX_free(context); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) context_.reset();
}

void Sha256::update(ByteView bytes) {
  if (context_ && EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) != 1) {
    context_.reset();
  }
}

Result<Sha256Digest> Sha256::finish() {
  const auto context = std::move(context_);
  Sha256Digest digest{};
  unsigned digest_bytes = 0;
  if (!context ||
      EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()),
                         &digest_bytes) != 1 ||
      digest_bytes != digest.size()) {
    return internal_error("OpenSSL refuses to compute SHA-256");
  }
  return digest;
}

Result<Sha256Digest> sha256(ByteView bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string to_hex(ByteView bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte >> 4)];
    text += kDigits[std::to_integer<unsigned>(byte & std::byte{0xf})];
  }
  return text;
}

}  // namespace kvlane
