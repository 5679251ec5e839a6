// AES-256-GCM against published vectors, and whatever is changed is found.
// SPDX-License-Identifier: Apache-2.0
#include "crypto/aes_gcm.h"

#include <gtest/gtest.h>

#include "crypto/sha256.h"

namespace kvlane {
namespace {

// Test cases 13 and 14 of McGrew and Viega's paper on GCM: key and nonce of zeros.
TEST(AesGcm, PublishedVectors) {
  Bytes nothing;
  const auto of_nothing = aes_gcm_encrypt({}, {}, {}, nothing);
  ASSERT_TRUE(of_nothing.ok());
  EXPECT_EQ(to_hex(*of_nothing), "530f8afbc74536b9a963b4f1c4cb738b");
  Bytes zeros(16);
  const auto of_zeros = aes_gcm_encrypt({}, {}, {}, zeros);
  ASSERT_TRUE(of_zeros.ok());
  EXPECT_EQ(to_hex(zeros), "cea7403d4d606b6e074ec5d3baf39d18");
  EXPECT_EQ(to_hex(*of_zeros), "d0d1c8a799996bf0265b98b5d48ab919");
}

TEST(AesGcm, BytesComeBackAndChangesAreFound) {
  Bytes plain(1000);
  ASSERT_TRUE(secure_random(plain).ok());
  AesKey key{};
  AesNonce nonce{};
  ASSERT_TRUE(secure_random(key).ok() && secure_random(nonce).ok());
  const Bytes also(20, std::byte{3});
  Bytes hidden = plain;
  const AesTag tag = *aes_gcm_encrypt(key, nonce, also, hidden);
  EXPECT_NE(hidden, plain);
  const auto decrypted = [&](const AesKey& k, const AesNonce& n, ByteView a, const AesTag& t,
                             Bytes bytes) {
    const Status status = aes_gcm_decrypt(k, n, a, t, bytes);
    EXPECT_EQ(bytes, status.ok() ? plain : Bytes(plain.size()));
    return status.code();
  };
  EXPECT_EQ(decrypted(key, nonce, also, tag, hidden), Code::kOk);
  const auto flipped = [](auto bytes) {
    bytes[bytes.size() / 2] ^= std::byte{1};
    return bytes;
  };
  EXPECT_EQ(decrypted(flipped(key), nonce, also, tag, hidden), Code::kCorrupt);
  EXPECT_EQ(decrypted(key, flipped(nonce), also, tag, hidden), Code::kCorrupt);
  EXPECT_EQ(decrypted(key, nonce, flipped(also), tag, hidden), Code::kCorrupt);
  EXPECT_EQ(decrypted(key, nonce, also, flipped(tag), hidden), Code::kCorrupt);
  EXPECT_EQ(decrypted(key, nonce, also, tag, flipped(hidden)), Code::kCorrupt);
}

TEST(AesGcm, RandomBytesDiffer) {
  AesKey a{}, b{};
  ASSERT_TRUE(secure_random(a).ok() && secure_random(b).ok());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace kvlane
