// Sealed slabs whose values go through codecs: a sender and a receiver of `zack` with each codec,
// what is shipped, what is refused; and whole engines.
// SPDX-License-Identifier: Apache-2.0
#include "quant/sealed_planes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <future>

#include "engine/engine_fixture.h"
#include "engine/kv_receiver.h"
#include "engine/kv_sender.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using testing::HasSubstr;

constexpr KvShape kSealedShape{2, 2, 64, ElementType::kBf16};
// Five complete blocks, of which the window keeps the first and the last as rows, and an open one.
constexpr int kSealedTokens = 5 * kBlockTokens + 9;
constexpr const char* kZack = "zack:keep=0.6,sink=1,recent=1";
constexpr const char* kWireCodecs[] = {"none", "splitzip", "splitzip:channel", "auto"};

std::shared_ptr<const KvFormat> planes_format(const char* text,
                                              const KvShape& shape = kSealedShape) {
  KvTables tables;
  tables_fixture::add_zack_tables(shape, true, tables);
  return take(make_kv_format(text, {.shape = shape, .tables = &tables}));
}

// What reaches the wire.
class FrameRecorder final : public OutgoingTransfer {
 public:
  explicit FrameRecorder(std::vector<Bytes>& frames) : frames_(frames) {}
  Status add_slab(FrameHeader header, const BodyWriter& body) override {
    Bytes frame(kFrameHeaderBytes + header.body_bytes(), std::byte{0xA5});  // as messages are
    KVLANE_TRY(write_frame(std::move(header), body, frame));
    frames_.push_back(std::move(frame));
    return {};
  }
  void finish(TransferEnd) override {}
  void fail(const Status&) override {}

 private:
  std::vector<Bytes>& frames_;
};

// A coded table of one sequence that came, or is to come, from elsewhere.
struct SealedCache {
  explicit SealedCache(const std::shared_ptr<const KvFormat>& of)
      : format(of),
        sealed(
            take(BlockPool::create_sealed(kSealedShape, of->slab_sizes(), std::size_t{1} << 20))),
        rows(take(BlockPool::create(kSealedShape, 6 * kSealedShape.block_bytes()))),
        table(sealed, rows, of->window()) {
    EXPECT_TRUE(table.grow(kSealedTokens).ok());
    EXPECT_TRUE(table.open_arriving_rows(kSealedTokens).ok());
  }

  // Bell-shaped values, each channel with its own width.
  void fill() {
    for (int block = 0; block < table.blocks(); ++block) {
      for (int layer = 0; layer < kSealedShape.layers; ++layer) {
        const auto seed = static_cast<std::uint64_t>(block * kSealedShape.layers + layer);
        const auto bits = tables_fixture::to_bits(tables_fixture::plain_rows(kSealedShape, seed));
        if (table.arrives_as_rows(block, kSealedTokens)) {
          std::memcpy(table.rows(block, layer), bits.data(), kSealedShape.slab_bytes());
        } else {
          EXPECT_TRUE(
              format->seal({layer, block * kBlockTokens}, bits.data(), table.sealed(block, layer))
                  .ok());
        }
      }
    }
  }

  std::shared_ptr<const KvFormat> format;
  BlockPool sealed, rows;
  BlockTable table;
};

struct SentFrames {
  std::vector<Bytes> frames;
  KvBytes kv;
};

SentFrames send(const SealedCache& cache, std::string_view codec,
                std::optional<LinkSpeed> link = {}) {
  SentFrames sent;
  const auto choice =
      take(CodecChoice::create(codec, best_isa(), plane_shape(kSealedShape, kBlockTokens)));
  std::promise<SentKv> over;
  KvSender sender(cache.sealed, SlabLane(), ModelIdentity{}, cache.format, *choice, {});
  const auto job = std::make_shared<KvSender::Job>(
      std::make_shared<FrameRecorder>(sent.frames), cache.table, kSealedTokens,
      choice->for_transfer(link), [link] { return link; });
  for (int layer = 0; layer < kSealedShape.layers; ++layer) {
    sender.add(job, layer, 0, blocks_for(kSealedTokens), nullptr);
  }
  sender.finish(job, {}, [&](const SentKv& all) { over.set_value(all); });
  const SentKv all = over.get_future().get();
  EXPECT_TRUE(all.status.ok()) << all.status.message();
  sent.kv = all.kv;
  return sent;
}

// A receiver that has room.
struct Receiving {
  explicit Receiving(SealedCache& to)
      : receiver(to.table, lane, kSealedTokens, std::nullopt, best_isa(), to.format,
                 [](const Result<ReceivedKv>&) {}) {
    receiver.grant();
    EXPECT_TRUE(
        receiver
            .on_begin({kSealedTokens, kSealedShape.layers, to.format->name(), "splitzip:channel"})
            .ok());
  }
  Status take_frame(ByteView bytes) {
    KVLANE_ASSIGN(const Frame frame, parse_frame(bytes));
    return receiver.on_slab(frame);
  }

  SlabLane lane;
  KvReceiver receiver;
};

void expect_equal(const SealedCache& got, const SealedCache& sent) {
  for (int block = 0; block < sent.table.blocks(); ++block) {
    for (int layer = 0; layer < kSealedShape.layers; ++layer) {
      if (!sent.table.arrives_as_rows(block, kSealedTokens)) {
        EXPECT_EQ(std::memcmp(got.table.sealed(block, layer), sent.table.sealed(block, layer),
                              sent.format->slab_bytes(layer)),
                  0)
            << block << layer;
      } else if (block < kSealedTokens / kBlockTokens) {
        EXPECT_EQ(std::memcmp(got.table.rows(block, layer), sent.table.rows(block, layer),
                              kSealedShape.slab_bytes()),
                  0)
            << block << layer;
      }
    }
  }
}

TEST(SealedPlanes, CrossInEveryCodecBitForBit) {
  SealedCache from(planes_format(kZack));
  from.fill();
  for (const std::string codec : kWireCodecs) {
    SCOPED_TRACE(codec);
    const SentFrames sent = send(from, codec);
    SealedCache to(planes_format(kZack));
    Receiving receiving(to);
    std::uint64_t shipped = 0;
    int sealed = 0;
    for (const Bytes& frame : sent.frames) {
      const Status status = receiving.take_frame(frame);
      ASSERT_TRUE(status.ok()) << status.message();
      shipped += frame.size();
      const FrameHeader header = *parse_frame_header(frame);
      sealed += header.sealed ? 1 : 0;
      EXPECT_EQ(header.sealed,
                !from.table.arrives_as_rows(static_cast<int>(header.position / kBlockTokens),
                                            kSealedTokens));
      // Without a link that is known to be slow `auto` sends all as it is.
      EXPECT_EQ(header.codec, codec == "auto" ? "none" : codec);
    }
    EXPECT_EQ(sealed, 3 * kSealedShape.layers);
    EXPECT_EQ(sent.kv.shipped, shipped);
    EXPECT_EQ(sent.kv.raw, std::uint64_t{2} * kSealedTokens * kSealedShape.layers *
                               kSealedShape.kv_heads * kSealedShape.head_dim * 2);
    expect_equal(to, from);
  }
}

// All but the frames' headers, and those of bodies.
TEST(SealedPlanes, AreShippedInFewerBytes) {
  SealedCache from(planes_format("zack:keep=0.6"));
  from.fill();
  const auto shipped = [&](std::string_view codec, std::optional<LinkSpeed> link = {}) {
    return static_cast<double>(send(from, codec, link).kv.shipped);
  };
  const double none = shipped("none");
  EXPECT_GT(none / shipped("splitzip"), 1.25);
  EXPECT_GT(none / shipped("splitzip:channel"), 1.25);
  // On a slow link it pays.
  EXPECT_GT(none / shipped("auto", LinkSpeed{.bytes_per_second = 1e6}), 1.2);
}

TEST(SealedPlanes, GrowByLittleAtMost) {
  const auto format = planes_format("zack:keep=0.6");
  SealedPlanes planes(*format);
  for (const std::string_view codec : {"splitzip", "splitzip:channel"}) {
    const Codec& coder = *take(find_codec(codec));
    const std::size_t bound = coder.bound(planes.k_shape(1)) + coder.bound(planes.v_shape(1));
    EXPECT_LE(bound, format->slab_bytes(1) + 2 * kPlaneGrowthBytesMax);
  }
}

class Refused : public testing::Test {
 protected:
  Refused() : from_(planes_format("zack:keep=0.6")), to_(planes_format("zack:keep=0.6")) {
    from_.fill();
  }

  // The first frame of a sealed slab.
  static Frame parsed(const SentFrames& sent) { return *parse_frame(sent.frames.front()); }

  SealedCache from_, to_;
};

TEST_F(Refused, AreBodiesThatAreNotWhole) {
  for (const std::string_view codec : {"splitzip", "splitzip:channel"}) {
    SCOPED_TRACE(codec);
    const SentFrames sent = send(from_, codec);
    const Frame good = parsed(sent);
    ASSERT_EQ(good.header.codec, codec);
    Receiving receiving(to_);
    EXPECT_TRUE(receiving.receiver.on_slab(good).ok());
    const Frame bad[] = {
        {good.header, good.k.first(good.k.size() - 1), good.v},
        {good.header, good.k, good.v.first(good.v.size() - 1)},
        {good.header, good.k, {}},
        {good.header, {}, good.v},
    };
    for (const Frame& frame : bad) {
      const Status status = receiving.receiver.on_slab(frame);
      EXPECT_EQ(status.code(), Code::kCorrupt);
      EXPECT_FALSE(status.message().empty());
    }
    // In another layer planes have other widths.
    Frame elsewhere = good;
    elsewhere.header.layer = 1;
    ASSERT_NE(from_.format->slab_bytes(0), from_.format->slab_bytes(1));
    EXPECT_EQ(receiving.receiver.on_slab(elsewhere).code(), Code::kCorrupt);
    // Rows have more values than planes of what is kept.
    Frame rows = good;
    rows.header.codec = codec == "splitzip" ? "splitzip:channel" : "splitzip";
    EXPECT_EQ(receiving.receiver.on_slab(rows).code(), Code::kCorrupt);
  }
}

TEST_F(Refused, AreCodecsOnCodes) {
  SealedCache to(planes_format("zack:keep=0.6+int8"));
  Receiving receiving(to);
  Frame frame = parsed(send(from_, "splitzip"));
  frame.header.format = to.format->slab_name();
  frame.header.tables = to.format->tables();
  const Status status = receiving.receiver.on_slab(frame);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(),
              HasSubstr("slab 0 of layer 0 came in codec splitzip, which sealed slabs of format "
                        "zack:keep=0.6+int8:sym=1 never have"));
}

// Sealed slabs of codes are sent in `none` whatever the codec of rows.
TEST(SealedPlanes, OfCodesThereAreNone) {
  SealedCache from(planes_format("zack:keep=0.6,sink=1+hack"));
  from.fill();
  for (const Bytes& bytes : send(from, "splitzip").frames) {
    const FrameHeader header = *parse_frame_header(bytes);
    EXPECT_EQ(header.codec, header.sealed ? "none" : "splitzip");
  }
}

// Whole engines: tokens are those of one process.
TEST(SealedPlanes, AnswersAreThoseOfOneProcess) {
  const Model& model = fixture_model("qwen3-gqa-bf16");
  KvTables tables;
  tables_fixture::add_zack_tables(model.config().kv_shape(), true, tables);
  const auto format = take(
      make_kv_format("zack:keep=0.75,recent=1",
                     {.shape = model.config().kv_shape(), .tables = &tables, .isa = model.isa()}));
  const EngineOptions options{.kv_bytes = std::size_t{1} << 24, .kv_format = format};
  const GenerationRequest request = make_mixed_request(290, 70, 3);
  const auto one = take(Engine::create(model, fixture_tokenizer(), nullptr, options));
  Answer expected;
  ASSERT_TRUE(one->submit(request, expected.on_update()).ok());
  ASSERT_TRUE(expected.wait().error.ok()) << expected.wait().error.message();
  std::uint64_t uncoded = 0;
  for (const std::string codec : kWireCodecs) {
    SCOPED_TRACE(codec);
    const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
    EngineOptions sends = options;
    sends.kv_codec = codec;
    Worker prefill(*network, model, sends);
    Worker decode(*network, model, options);
    const TransferId transfer = random_transfer_id();
    Answer answer;
    Prefilled prefilled;
    const RequestId id = take(decode.engine->reserve(request, transfer));
    ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
    ASSERT_TRUE(prefill.engine
                    ->prefill_and_push(request, decode.endpoint->address(), transfer,
                                       prefilled.on_prefilled())
                    .ok());
    ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    EXPECT_EQ(answer.tokens(), expected.tokens());
    const KvBytes& kv = answer.finish().kv;
    EXPECT_EQ(kv.shipped, prefilled.wait().finish.kv.shipped);
    if (codec == "none") uncoded = kv.shipped;
    if (codec == "none" || codec == "auto") {
      EXPECT_LE(kv.shipped, uncoded);
    } else {
      EXPECT_EQ(kv.codec, codec);
      EXPECT_LT(static_cast<double>(kv.shipped), 0.85 * static_cast<double>(uncoded));
    }
    prefill.expect_clean();
    decode.expect_clean();
  }
}

}  // namespace
}  // namespace kvlane
