// AES-256-GCM over OpenSSL's EVP interface.
// SPDX-License-Identifier: Apache-2.0
#include "crypto/aes_gcm.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <algorithm>
#include <memory>

namespace kvlane {
namespace {

constexpr std::size_t kBytesMax = std::size_t{1} << 30;  // OpenSSL counts in int

struct Free {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, Free>;

unsigned char* writable(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
const unsigned char* raw(ByteView bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

// Everything but the tag; `encrypt` is 1 or 0. False when OpenSSL refuses.
bool transform(EVP_CIPHER_CTX* context, int encrypt, const AesKey& key, const AesNonce& nonce,
               ByteView also, std::span<std::byte> bytes) {
  int moved = 0;
  return context != nullptr && bytes.size() <= kBytesMax && also.size() <= kBytesMax &&
         EVP_CipherInit_ex(context, EVP_aes_256_gcm(), nullptr, raw(ByteView(key)),
                           raw(ByteView(nonce)), encrypt) == 1 &&
         EVP_CipherUpdate(context, nullptr, &moved, raw(also), static_cast<int>(also.size())) ==
             1 &&
         EVP_CipherUpdate(context, writable(bytes), &moved, raw(ByteView(bytes)),
                          static_cast<int>(bytes.size())) == 1;
}

}  // namespace

Result<AesTag> aes_gcm_encrypt(const AesKey& key, const AesNonce& nonce, ByteView also,
                               std::span<std::byte> bytes) {
  const Context context(EVP_CIPHER_CTX_new());
  AesTag tag{};
  std::array<std::byte, 16> rest{};  // GCM leaves nothing for the end
  int moved = 0;
  if (!transform(context.get(), 1, key, nonce, also, bytes) ||
      EVP_CipherFinal_ex(context.get(), writable(rest), &moved) != 1 ||
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                          tag.data()) != 1) {
    return internal_error("OpenSSL refuses to encrypt with AES-256-GCM");
  }
  return tag;
}

Status aes_gcm_decrypt(const AesKey& key, const AesNonce& nonce, ByteView also, const AesTag& tag,
                       std::span<std::byte> bytes) {
  const Context context(EVP_CIPHER_CTX_new());
  AesTag expected = tag;
  std::array<std::byte, 16> rest{};
  int moved = 0;
  if (transform(context.get(), 0, key, nonce, also, bytes) &&
      EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_GCM_SET_TAG, static_cast<int>(expected.size()),
                          expected.data()) == 1 &&
      EVP_CipherFinal_ex(context.get(), writable(rest), &moved) == 1) {
    return {};
  }
  // Nobody may use what was not authentic.
  std::fill(bytes.begin(), bytes.end(), std::byte{});
  return corrupt("encrypted bytes were changed, or the key is another");
}

Status secure_random(std::span<std::byte> bytes) {
  if (bytes.size() <= kBytesMax &&
      RAND_bytes(writable(bytes), static_cast<int>(bytes.size())) == 1) {
    return {};
  }
  return internal_error("the system gives no random bytes");
}

}  // namespace kvlane
