// Offers of shared memory as bytes, and which peers get one.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_offer.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

using boost::asio::ip::make_address;
using boost::asio::ip::tcp;

tcp::endpoint end_at(const char* address, std::uint16_t port) {
  return {make_address(address), port};
}

SharedOffer example() { return {end_at("127.0.0.1", 0x1234), end_at("::1", 0x5678), 1U << 20}; }

constexpr unsigned char kGoldenOffer[kSharedOfferBytes] = {
    0x8B, 0x4B, 0x56, 0x53, 1, 0, 0, 0, 0, 0, 0x10, 0,    0,   0, 0, 0,  //
    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 127, 0, 0, 1,  //
    0,    0,    0,    0,    0, 0, 0, 0, 0, 0, 0,    0,    0,   0, 0, 1,  //
    0x34, 0x12, 0x78, 0x56, 0, 0, 0, 0};

TEST(SharedOffer, HasTheBytesOfTheSpecification) {
  const ByteView golden = std::as_bytes(std::span(kGoldenOffer));
  EXPECT_EQ(encode_shared_offer(example()), Bytes(golden.begin(), golden.end()));
  const auto parsed = parse_shared_offer(golden);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_TRUE(parsed->means(end_at("127.0.0.1", 0x1234), end_at("::1", 0x5678)));
  EXPECT_EQ(parsed->ring_bytes, 1U << 20);
}

TEST(SharedOffer, MeansOneConnection) {
  const SharedOffer offer = example();
  EXPECT_TRUE(offer.means(end_at("::ffff:127.0.0.1", 0x1234), end_at("::1", 0x5678)));
  EXPECT_FALSE(offer.means(end_at("127.0.0.2", 0x1234), end_at("::1", 0x5678)));
  EXPECT_FALSE(offer.means(end_at("127.0.0.1", 0x1235), end_at("::1", 0x5678)));
  EXPECT_FALSE(offer.means(end_at("127.0.0.1", 0x1234), end_at("::2", 0x5678)));
  EXPECT_FALSE(offer.means(end_at("127.0.0.1", 0x1234), end_at("::1", 0x5679)));
}

TEST(SharedOffer, IsToWhoListens) {
  const SharedOffer offer{end_at("127.0.0.1", 5), end_at("127.0.0.2", 6), 1U << 20};
  EXPECT_TRUE(offer.is_to(end_at("127.0.0.2", 6)));
  EXPECT_TRUE(offer.is_to(end_at("0.0.0.0", 6)));
  EXPECT_TRUE(offer.is_to(end_at("::", 6)));
  EXPECT_FALSE(offer.is_to(end_at("127.0.0.1", 6)));
  EXPECT_FALSE(offer.is_to(end_at("127.0.0.2", 7)));
  EXPECT_FALSE(offer.is_to(end_at("0.0.0.0", 7)));
}

TEST(SharedOffer, OtherLengthsAreRefused) {
  Bytes bytes = encode_shared_offer(example());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parse_shared_offer(ByteView(bytes).first(size)).status().code(), Code::kCorrupt);
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(parse_shared_offer(bytes).status().code(), Code::kCorrupt);
}

TEST(SharedOffer, EveryFieldIsChecked) {
  const Bytes right = encode_shared_offer(example());
  for (std::size_t at = 0; at < right.size(); ++at) {
    Bytes wrong = right;
    wrong[at] ^= std::byte{0x81};
    const auto parsed = parse_shared_offer(wrong);
    const bool is_address = at >= 16 && at < 52;
    EXPECT_EQ(parsed.ok(), is_address) << at;
    if (at == 4 || at == 5) {
      EXPECT_EQ(parsed.status().code(), Code::kUnsupported);
    }
    if (is_address) {
      EXPECT_FALSE(parsed->means(example().connector, example().acceptor)) << at;
    }
  }
}

TEST(SharedOffer, PeersOfThisHost) {
  const auto is = [](const char* local, const char* peer) {
    return is_same_host(end_at(local, 1), end_at(peer, 2));
  };
  EXPECT_TRUE(is("127.0.0.1", "127.0.0.1"));
  EXPECT_TRUE(is("127.0.0.1", "127.9.9.9"));
  EXPECT_TRUE(is("::1", "::1"));
  EXPECT_TRUE(is("::ffff:127.0.0.1", "::ffff:127.0.0.1"));
  EXPECT_TRUE(is("192.0.2.1", "192.0.2.1"));
  EXPECT_TRUE(is("::ffff:192.0.2.1", "192.0.2.1"));
  EXPECT_FALSE(is("192.0.2.1", "192.0.2.2"));
  EXPECT_FALSE(is("2001:db8::1", "2001:db8::2"));
}

TEST(SharedOffer, NamesBelongToPorts) {
  EXPECT_EQ(shared_memory_name(4711), std::string("\0kvlane-transfer-1/4711", 23));
}

}  // namespace
}  // namespace kvlane
