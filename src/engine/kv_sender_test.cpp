// Slabs that leave a device are the same frames as slabs that leave the host.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_sender.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "base/bf16.h"
#include "base/random.h"
#include "engine/engine_fixture.h"
#include "model/emulated_accelerator.h"

namespace kvlane {
namespace {

const KvShape kSentShape{2, 2, 32, ElementType::kBf16};
// More than go through a device's codec at once, and the last one is cut short.
constexpr int kSentBlocks = 21;
constexpr int kSentTokens = kSentBlocks * kBlockTokens - 50;
const std::size_t kSentBytes = kSentBlocks * kSentShape.block_bytes();

// Keeps what it is given.
class SlabRecorder final : public OutgoingTransfer {
 public:
  struct Slab {
    std::string codec;
    int layer;
    std::int64_t position;
    int tokens;
    Bytes k, v;

    friend bool operator==(const Slab&, const Slab&) = default;
  };

  // What memory of messages holds before a body is written there.
  static constexpr std::byte kOld{0xA5};

  explicit SlabRecorder(std::vector<Slab>& slabs) : slabs_(slabs) {}
  Status add_slab(FrameHeader header, const BodyWriter& body) override {
    slabs_.push_back({header.codec, header.layer, header.position, header.tokens,
                      Bytes(header.k_bytes, kOld), Bytes(header.v_bytes, kOld)});
    body(slabs_.back().k, slabs_.back().v);
    return {};
  }
  void finish(TransferEnd) override {}
  void fail(const Status&) override {}

 private:
  std::vector<Slab>& slabs_;
};

// From block 9 on exponents are others, so that a codebook does not fit any more.
Bytes contents() {
  Bytes bytes(kSentBytes);
  for (std::size_t i = 0; i < bytes.size() / 2; ++i) {
    const auto block = static_cast<int>(2 * i / kSentShape.block_bytes());
    const auto dice = philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0});
    const float scale = block < 9 ? 1.0F : 1e20F;
    const bf16 value = to_bf16(scale * (static_cast<float>(dice[0]) * 0x1p-31F - 1));
    std::memcpy(bytes.data() + 2 * i, &value, 2);
  }
  return bytes;
}

struct SentSlabs {
  std::vector<SlabRecorder::Slab> slabs;
  KvBytes kv;
  std::int64_t counted, replaced;
};

std::unique_ptr<CodecChoice> choice_of(std::string_view codec) {
  return take(CodecChoice::create(codec, best_isa(), plane_shape(kSentShape, kBlockTokens)));
}

SentSlabs send(BlockPool& pool, SlabLane lane, CodecChoice& choice,
               const std::shared_ptr<const DeviceMark>& done) {
  SentSlabs sent;
  BlockTable table(pool);
  EXPECT_TRUE(table.grow(kSentTokens).ok());
  std::promise<SentKv> over;
  {
    KvSender sender(pool, std::move(lane), ModelIdentity{}, nullptr, choice, {});
    const auto job = std::make_shared<KvSender::Job>(
        std::make_shared<SlabRecorder>(sent.slabs), table, kSentTokens,
        choice.for_transfer(std::nullopt), [] { return std::optional<LinkSpeed>(); });
    for (int layer = 0; layer < kSentShape.layers; ++layer) {
      sender.add(job, layer, 0, 3, done);
      sender.add(job, layer, 3, kSentBlocks, done);
    }
    sender.finish(job, {}, [&](const SentKv& all) { over.set_value(all); });
    const SentKv all = over.get_future().get();
    EXPECT_TRUE(all.status.ok()) << all.status.message();
    sent.kv = all.kv;
    sent.counted = sender.planes_counted();
    sent.replaced = sender.codebooks_replaced();
  }
  return sent;
}

TEST(KvSender, SendsTheSameFramesFromADeviceAsFromTheHost) {
  const Bytes bytes = contents();
  for (const std::string_view codec : {"none", "splitzip", "splitzip:channel"}) {
    SCOPED_TRACE(codec);
    BlockPool host = take(BlockPool::create(kSentShape, kSentBytes));
    ASSERT_EQ(host.blocks_total(), kSentBlocks);
    std::memcpy(host.block(0), bytes.data(), bytes.size());
    const SentSlabs expected = send(host, SlabLane(), *choice_of(codec), nullptr);

    EmulatedAccelerator device;
    const auto memory = take(device.allocate(kSentBytes));
    BlockPool pool =
        take(BlockPool::over(kSentShape, {memory.get(), kSentBytes}, take(device.copies())));
    ASSERT_TRUE(device.copy(memory.get(), bytes.data(), bytes.size()).ok());
    const auto written = take(device.mark());
    const SentSlabs sent =
        send(pool, take(SlabLane::open(device, kSentShape, 16)), *choice_of(codec), written);
    EXPECT_EQ(sent.slabs.size(), std::size_t{kSentBlocks} * kSentShape.layers);
    EXPECT_TRUE(sent.slabs == expected.slabs);
    EXPECT_EQ(sent.kv.raw, expected.kv.raw);
    EXPECT_EQ(sent.kv.shipped, expected.kv.shipped);
    EXPECT_EQ(sent.counted, expected.counted);
    EXPECT_EQ(sent.replaced, expected.replaced);
    EXPECT_EQ(sent.replaced > 0, codec == "splitzip");
  }
}

// Every codec is tried in turn, on the way that it would take, beside what is sent.
TEST(KvSender, AutoSendsFromADeviceWhatCanBeRead) {
  EmulatedAccelerator device;
  const Bytes bytes = contents();
  const auto memory = take(device.allocate(kSentBytes));
  BlockPool pool =
      take(BlockPool::over(kSentShape, {memory.get(), kSentBytes}, take(device.copies())));
  ASSERT_TRUE(device.copy(memory.get(), bytes.data(), bytes.size()).ok());
  const auto written = take(device.mark());
  const auto choice = choice_of(kAutoCodec);
  const SentSlabs sent = send(pool, take(SlabLane::open(device, kSentShape, 4)), *choice, written);
  ASSERT_EQ(sent.slabs.size(), std::size_t{kSentBlocks} * kSentShape.layers);
  for (const SlabRecorder::Slab& slab : sent.slabs) {
    const Codec& codec = *take(find_codec(slab.codec));
    const PlaneShape plane = plane_shape(kSentShape, slab.tokens);
    Bytes values(plane.bytes());
    EXPECT_TRUE(codec.decode(plane, slab.k, values).ok());
    EXPECT_TRUE(codec.decode(plane, slab.v, values).ok());
  }
}

// Blocks of the host, and those that are brought to it slab by slab, as from ranks.
TEST(KvSender, AutoLearnsOfCodecsThatAreNotInUse) {
  const Bytes bytes = contents();
  EmulatedAccelerator device;
  for (const bool on_host : {true, false}) {
    SCOPED_TRACE(on_host);
    BlockPool pool = take(BlockPool::create(kSentShape, kSentBytes));
    std::memcpy(pool.block(0), bytes.data(), bytes.size());
    SlabLane lane;
    if (!on_host) lane = take(SlabLane::over(take(device.lane()), kSentShape.slab_bytes()));
    const auto choice = choice_of(kAutoCodec);
    const auto speed = [&](std::string_view codec) { return choice->pace(codec)->encode; };
    const double splitzip = speed("splitzip"), channel = speed("splitzip:channel");
    const SentSlabs sent = send(pool, std::move(lane), *choice, nullptr);
    // Of a link that nothing is known of, nothing is known that would be worth coding for.
    for (const SlabRecorder::Slab& slab : sent.slabs) EXPECT_EQ(slab.codec, "none");
    EXPECT_TRUE(speed("splitzip") != splitzip || speed("splitzip:channel") != channel);
  }
}

}  // namespace
}  // namespace kvlane
