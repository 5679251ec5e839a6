// Rings in shared memory: bytes around the end, who sleeps, and positions that cannot be.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/shared_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "base/random.h"

namespace kvlane {
namespace {

struct Ring {
  RingControl control{};
  Bytes bytes = Bytes(1024);
  RingWriter writer{control, bytes};
  RingReader reader{control, bytes};
};

Bytes pattern(std::size_t bytes, std::uint32_t seed) {
  Bytes made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    made[i] = std::byte(philox4x32(seed, {std::uint32_t(i), 0, 0, 0})[0]);
  }
  return made;
}

TEST(SharedRing, BytesComeAroundTheEnd) {
  Ring ring;
  for (std::uint32_t round = 0; round < 200; ++round) {
    const Bytes sent = pattern(philox4x32(1, {round, 0, 0, 0})[0] % 1025, round);
    ASSERT_EQ(ring.writer.room(), 1024U);
    ring.writer.put(sent);
    ASSERT_EQ(ring.writer.room(), 1024U - sent.size());
    ASSERT_EQ(ring.reader.available(), sent.size());
    Bytes got(sent.size());
    const std::size_t first = got.size() / 3;
    ring.reader.get(std::span(got).first(first));
    ring.reader.get(std::span(got).subspan(first));
    ASSERT_EQ(got, sent);
    ASSERT_EQ(ring.reader.available(), 0U);
    ASSERT_EQ(ring.writer.room(), 1024U);
    ASSERT_EQ(ring.writer.read(), ring.control.written.load());
  }
}

TEST(SharedRing, SidesOfTwoThreadsAgree) {
  Ring ring;
  const Bytes sent = pattern(200'000, 5);
  Bytes got(sent.size());
  std::thread writing([&] {
    for (std::size_t at = 0; at < sent.size();) {
      const std::size_t part = std::min({*ring.writer.room(), sent.size() - at, std::size_t{300}});
      ring.writer.put(ByteView(sent).subspan(at, part));
      at += part;
    }
  });
  for (std::size_t at = 0; at < got.size();) {
    const std::size_t part = *ring.reader.available();
    ring.reader.get(std::span(got).subspan(at, part));
    at += part;
  }
  writing.join();
  EXPECT_EQ(got, sent);
}

TEST(SharedRing, WhoSleepsIsWokenOnce) {
  Ring ring;
  EXPECT_FALSE(ring.writer.reader_sleeps());
  ring.reader.will_sleep();
  EXPECT_TRUE(ring.writer.reader_sleeps());
  EXPECT_FALSE(ring.writer.reader_sleeps());
  Bytes part(511);
  ring.writer.put(Bytes(1024));
  ring.writer.will_sleep();
  ASSERT_EQ(ring.reader.available(), 1024U);
  EXPECT_FALSE(ring.reader.writer_sleeps());
  ring.reader.get(part);
  EXPECT_FALSE(ring.reader.writer_sleeps()) << "not yet half of the ring";
  ring.reader.get(std::span(part).first(1));
  EXPECT_TRUE(ring.reader.writer_sleeps());
  EXPECT_FALSE(ring.reader.writer_sleeps());
}

TEST(SharedRing, AReaderWhoIsWhereHeCannotBe) {
  for (const std::uint64_t read : {std::uint64_t{99}, std::uint64_t{701}, ~std::uint64_t{0},
                                   std::uint64_t{1} << 63, std::uint64_t{0}}) {
    Ring ring;
    ring.writer.put(Bytes(700));
    ring.control.read = 100;
    ASSERT_EQ(ring.writer.room(), 424U);
    ring.control.read = read;
    EXPECT_EQ(ring.writer.room(), std::nullopt) << read;
  }
}

TEST(SharedRing, AWriterWhoIsWhereHeCannotBe) {
  for (const std::uint64_t written : {std::uint64_t{699}, std::uint64_t{1125}, ~std::uint64_t{0},
                                      std::uint64_t{1} << 63, std::uint64_t{0}}) {
    Ring ring;
    ring.writer.put(Bytes(700));
    ASSERT_EQ(ring.reader.available(), 700U);
    Bytes some(100);
    ring.reader.get(some);
    ring.control.written = 1124;
    ASSERT_EQ(ring.reader.available(), 1024U);
    ring.control.written = 700;
    EXPECT_EQ(ring.reader.available(), std::nullopt) << "takes back what it has shown";
    ring.control.written = written;
    EXPECT_EQ(ring.reader.available(), std::nullopt) << written;
  }
}

}  // namespace
}  // namespace kvlane
