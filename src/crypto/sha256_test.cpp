// SHA-256 against the published examples of FIPS 180-2.
// SPDX-License-Identifier: Apache-2.0
#include "crypto/sha256.h"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>

namespace kvlane {
namespace {

std::string hex_digest(std::string_view text) {
  const Result<Sha256Digest> digest = sha256(as_byte_view(text));
  return digest.ok() ? to_hex(*digest) : digest.status().message();
}

TEST(Sha256, MatchesThePublishedExamples) {
  EXPECT_EQ(hex_digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_digest(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheDigestOfTheWhole) {
  const std::string text(200, 'x');
  for (std::size_t split = 0; split <= text.size(); split += 25) {
    Sha256 hash;
    hash.update(as_byte_view(text).first(split));
    hash.update(as_byte_view(text).subspan(split));
    const Result<Sha256Digest> digest = hash.finish();
    ASSERT_TRUE(digest.ok());
    EXPECT_EQ(to_hex(*digest), hex_digest(text)) << split;
  }
}

TEST(Sha256, AMovedHashGoesOn) {
  Sha256 first;
  first.update(as_byte_view("a"));
  Sha256 second = std::move(first);
  second.update(as_byte_view("bc"));
  const Result<Sha256Digest> digest = second.finish();
  ASSERT_TRUE(digest.ok());
  EXPECT_EQ(to_hex(*digest), hex_digest("abc"));
}

TEST(Sha256, FinishingTwiceIsAnErrorNotACrash) {
  Sha256 hash;
  ASSERT_TRUE(hash.finish().ok());
  hash.update(as_byte_view("late"));
  EXPECT_EQ(hash.finish().status().code(), Code::kInternal);
}

TEST(Hex, WritesTwoLowerCaseDigitsPerByte) {
  EXPECT_EQ(to_hex({}), "");
  EXPECT_EQ(to_hex(as_byte_view(std::string_view("\x00\x0f\xa5\xff", 4))), "000fa5ff");
}

}  // namespace
}  // namespace kvlane
