// Prefill on one engine, decode on another, both with a coded cache: every format gives the tokens
// that one engine with that format gives, whatever the way; caches that differ are told apart.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "base/test_sanitizers.h"
#include "engine/engine_fixture.h"
#include "quant/format_fixture.h"
#include "quant/kv_format.h"
#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using testing::HasSubstr;

constexpr const char* kWindow = "sink=1,recent=1";

const KvTables& fixture_tables() {
  static const KvTables tables = [] {
    const Model& model = fixture_model();
    const KvShape shape = model.config().kv_shape();
    KvTables made;
    tables_fixture::add_kvquant_tables(shape, made);
    tables_fixture::add_zack_tables(shape, true, made);
    tables_fixture::add_zack_kvquant_tables("zack:keep=1", shape, made);
    tables_fixture::add_cachegen_tables(
        shape, {tables_fixture::rotated_rows(shape, 1, model.rope(), 0)}, made);
    return made;
  }();
  return tables;
}

std::shared_ptr<const KvFormat> format_with(const std::string& text,
                                            const KvTables& tables = fixture_tables()) {
  return make_format(text, fixture_model(), &tables);
}

// All that there are, with their presets, and what presets leave out.
std::vector<std::string> all_formats() {
  std::vector<std::string> names = {"int8:sym=0",
                                    "int4:sym=1",
                                    "kivi:bits=4,group=64",
                                    "cachegen:form=paper",
                                    "kvquant:bits=2,outliers=0",
                                    "hack:paper",
                                    "hack:paper,compute=complete",
                                    "zack:keep=1+kvquant:bits=3"};
  const std::string_view known = kv_format_names();
  for (std::size_t at = 0; at < known.size();) {
    const std::size_t end = std::min(known.find(", ", at), known.size());
    const std::string name(known.substr(at, end - at));
    // The fixture's heads are too narrow to drop anything.
    if (name != "bf16") names.push_back(name == "zack" ? "zack:keep=1" : name);
    at = end + 2;
  }
  return names;
}

std::string with_window(const std::string& name) {
  const std::size_t plus = std::min(name.find('+'), name.size());
  return name.substr(0, plus) + (name.find(':') == std::string::npos ? ":" : ",") + kWindow +
         name.substr(plus);
}

EngineOptions options_of(std::shared_ptr<const KvFormat> format) {
  return {.kv_bytes = std::size_t{1} << 25, .kv_format = std::move(format), .chunk_tokens = 100};
}

struct Outcome {
  std::vector<std::int32_t> tokens;
  Status decoded, prefilled;
  KvBytes kv;
};

Outcome push(Worker& prefill, Worker& decode, const GenerationRequest& request) {
  Push push(prefill, decode, request);
  const Status sent = push.prefilled.wait().finish.error;
  if (!sent.ok()) decode.engine->abort(push.decode_id);
  const Finish& finish = push.answer.wait();
  if (finish.error.ok()) {
    EXPECT_EQ(finish.kv.shipped, push.prefilled.wait().finish.kv.shipped);
    EXPECT_EQ(finish.kv.raw, push.prefilled.wait().finish.kv.raw);
  }
  return {push.answer.tokens(), finish.error, sent, finish.kv};
}

Outcome park_and_fetch(Worker& prefill, Worker& decode, const GenerationRequest& request) {
  const TransferId transfer = random_transfer_id();
  Answer answer;
  Prefilled prefilled;
  EXPECT_TRUE(prefill.engine->prefill_and_park(request, transfer, prefilled.on_prefilled()).ok());
  const Status sent = prefilled.wait().finish.error;
  EXPECT_TRUE(
      decode.engine
          ->fetch_and_decode(request, prefill.endpoint->address(), transfer, answer.on_update())
          .ok());
  const Finish& finish = answer.wait();
  return {answer.tokens(), finish.error, sent, finish.kv};
}

std::size_t rows_bytes(int tokens) {
  const KvShape shape = fixture_model().config().kv_shape();
  return std::size_t(tokens) * shape.layers * shape.kv_heads * shape.head_dim * 4;
}

TEST(CodedTransfer, EveryFormatAnswersAsOneProcessDoes) {
  for (const std::string& name : all_formats()) {
    for (const std::string& text : {name, with_window(name)}) {
      SCOPED_TRACE(text);
      const auto format = format_with(text);
      const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
      Worker prefill(*network, fixture_model(), options_of(format));
      Worker decode(*network, fixture_model(), options_of(format));
      for (const int prompt : every_other_if(kSanitized, std::vector{1, 128, 290})) {
        // Long enough that what came is read as sealed blocks, and blocks of the answer are sealed.
        const GenerationRequest request = make_mixed_request(prompt, 70, prompt);
        const std::vector<std::int32_t> expected =
            alone(fixture_model(), request, options_of(format));
        const Outcome pushed = push(prefill, decode, request);
        ASSERT_TRUE(pushed.decoded.ok()) << pushed.decoded.message();
        EXPECT_EQ(pushed.tokens, expected) << prompt;
        EXPECT_EQ(pushed.kv.raw, rows_bytes(prompt));
        if (prompt < 290) continue;
        const Outcome fetched = park_and_fetch(prefill, decode, request);
        ASSERT_TRUE(fetched.decoded.ok()) << fetched.decoded.message();
        EXPECT_EQ(fetched.tokens, expected) << prompt;
        EXPECT_EQ(fetched.kv.shipped, pushed.kv.shipped);
      }
      prefill.expect_clean();
      decode.expect_clean();
    }
  }
}

TEST(CodedTransfer, SealedSlabsTravelInTheirUsedBytes) {
  const KvShape shape = fixture_model().config().kv_shape();
  const auto format = format_with("kivi:bits=2,group=32");
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, fixture_model(), options_of(format));
  Worker decode(*network, fixture_model(), options_of(format));
  const std::size_t used = format->used_bytes({0, 0}, nullptr);
  const Outcome whole = push(prefill, decode, make_mixed_request(256, 4, 1));
  EXPECT_EQ(whole.kv.shipped, shape.layers * 4 * (kFrameHeaderBytes + used));
  const Outcome more = push(prefill, decode, make_mixed_request(256 + 10, 4, 1));
  EXPECT_EQ(more.kv.shipped - whole.kv.shipped, shape.layers * kFrameHeaderBytes + rows_bytes(10));
  EXPECT_EQ(more.kv.raw - whole.kv.raw, rows_bytes(10));
}

TEST(CodedTransfer, RowsGoThroughCodecs) {
  const auto format = format_with(with_window("int4"));
  const GenerationRequest request = make_mixed_request(290, 70, 1);
  const std::vector<std::int32_t> expected = alone(fixture_model(), request, options_of(format));
  for (const std::string codec : {"splitzip", "splitzip:channel", "auto"}) {
    for (const bool whole : {false, true}) {
      const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
      EngineOptions sends = options_of(format);
      sends.kv_codec = codec;
      sends.push_whole = whole;
      Worker prefill(*network, fixture_model(), sends);
      Worker decode(*network, fixture_model(), options_of(format));
      const Outcome pushed = push(prefill, decode, request);
      ASSERT_TRUE(pushed.decoded.ok()) << pushed.decoded.message();
      EXPECT_EQ(pushed.tokens, expected) << codec;
      EXPECT_EQ(pushed.kv.codec, codec == "auto" ? "none" : codec);
    }
  }
}

TEST(CodedTransfer, BlocksThatCameAreShared) {
  const auto format = format_with("kivi:bits=2,group=32");
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, fixture_model(), options_of(format));
  Worker decode(*network, fixture_model(), options_of(format));
  const GenerationRequest request = make_mixed_request(300, 40, 2);
  const Outcome pushed = push(prefill, decode, request);
  // The same prompt again, all in the decode worker; and in the prefill worker, which has sealed
  // blocks without rows to send then.
  Answer answer;
  ASSERT_TRUE(decode.engine->submit(request, answer.on_update()).ok());
  ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  EXPECT_EQ(answer.finish().cached_tokens, 256);
  EXPECT_EQ(answer.tokens(), pushed.tokens);
  const Outcome again = push(prefill, decode, request);
  EXPECT_EQ(again.tokens, pushed.tokens);
  EXPECT_EQ(again.kv.shipped, pushed.kv.shipped);
  EXPECT_GE(prefill.engine->load().prefix_hit_tokens, 256);
}

TEST(CodedTransfer, SeveralAnswersToOnePromptAreThoseOfOneProcess) {
  for (const std::string& text : {std::string("int8"), with_window("kivi")}) {
    const auto format = format_with(text);
    const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
    Worker prefill(*network, fixture_model(), options_of(format));
    Worker decode(*network, fixture_model(), options_of(format));
    GenerationRequest request = make_request(150, 70, 5, 1.0F);
    request.n = 3;
    const auto engine =
        take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr, options_of(format)));
    Answer expected, answer;
    ASSERT_TRUE(engine->submit(request, expected.on_update()).ok());
    ASSERT_TRUE(expected.wait().error.ok());
    const TransferId transfer = random_transfer_id();
    Prefilled prefilled;
    const RequestId id = take(decode.engine->reserve(request, transfer));
    ASSERT_TRUE(decode.engine->attach(id, answer.on_update()).ok());
    ASSERT_TRUE(prefill.engine
                    ->prefill_and_push(request, decode.endpoint->address(), transfer,
                                       prefilled.on_prefilled())
                    .ok());
    ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    prefilled.wait();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(answer.all()[i].tokens, expected.all()[i].tokens);
  }
}

// Prompts that are pushed at once; their answers are those of one process.
void expect_answers_at_once(Worker& prefill, Worker& decode, int count,
                            const std::shared_ptr<const KvFormat>& format) {
  std::vector<GenerationRequest> requests;
  std::deque<Push> pushes;
  for (int i = 0; i < count; ++i) {
    requests.push_back(make_mixed_request(100 + 30 * i, 70, static_cast<std::uint32_t>(i)));
    requests.back().priority = -(i % 3);
    requests.back().client = std::to_string(i % 2);
    pushes.emplace_back(prefill, decode, requests.back());
  }
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(pushes[i].answer.wait().error.ok()) << pushes[i].answer.wait().error.message();
    EXPECT_EQ(pushes[i].answer.tokens(), alone(fixture_model(), requests[i], options_of(format)))
        << i;
  }
  pushes.clear();
  prefill.expect_clean();
  decode.expect_clean();
}

// Rows for the windows of two sequences at most.
EngineOptions with_little_room(const std::shared_ptr<const KvFormat>& format) {
  EngineOptions small = options_of(format);
  small.chunk_tokens = 16;
  small.kv_bytes = 2 * 6 * fixture_model().config().kv_shape().block_bytes();
  return small;
}

TEST(CodedTransfer, WithLittleRoomForRowsAnswersWaitForEachOther) {
  const auto format = format_with(with_window("int8"));
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  Worker prefill(*network, fixture_model(), options_of(format));
  Worker decode(*network, fixture_model(), with_little_room(format));
  expect_answers_at_once(prefill, decode, 6, format);
}

// Who stops while it is sent goes on behind what was sent, before others who wait for memory for
// frames that it has.
TEST(CodedTransfer, WithLittleRoomForRowsPromptsThatLeaveStopAndGoOn) {
  std::int64_t stopped = 0;
  for (const char* const name : {"kivi:bits=2,group=32", "kivi:recent=1", "hack"}) {
    for (const bool whole : {false, true}) {
      for (const bool shared : every_other_if(kThreadSanitized, std::vector{false, true})) {
        SCOPED_TRACE(std::string(name) + (whole ? " whole" : "") + (shared ? " shared" : ""));
        const auto format = format_with(name);
        const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
        EngineOptions small = with_little_room(format);
        small.push_whole = whole;
        small.prefix_caching = shared;
        const std::size_t frames = 24 * fixture_model().config().kv_shape().block_bytes();
        Worker prefill(*network, fixture_model(), small, Seconds(5), frames);
        Worker decode(*network, fixture_model(), options_of(format));
        expect_answers_at_once(prefill, decode, 12, format);
        stopped += prefill.engine->load().preemptions;
      }
    }
  }
  EXPECT_GT(stopped, 0);
}

// Every format's slab has a name that frames hold; that of a test does not.
TEST(CodedTransfer, NamesThatFramesCannotHoldAreRefusedAtTheStart) {
  const auto network = TestNetwork::create({});
  const auto endpoint = take(Endpoint::start(*network, {.model = fixture_model().identity()}));
  const auto format = std::make_shared<const format_fixture::Identity>(
      fixture_model().config().kv_shape(), KvWindow{}, std::string(kFormatNameBytesMax + 1, 'x'));
  const auto engine =
      Engine::create(fixture_model(), fixture_tokenizer(), endpoint.get(), options_of(format));
  ASSERT_FALSE(engine.ok());
  EXPECT_THAT(engine.status().message(), HasSubstr("48 bytes"));
}

struct Difference {
  const char* title;
  std::shared_ptr<const KvFormat> prefill, decode;
  std::vector<std::string> told;  // parts of the sentence
};

TEST(CodedTransfer, CachesThatDifferAreRefusedByName) {
  KvTables others = fixture_tables();
  others.values.begin()->second.back() += 1;
  const auto cachegen = format_with("cachegen"), foreign = format_with("cachegen", others);
  ASSERT_NE(cachegen->tables(), foreign->tables());
  const Difference cases[] = {
      {"format", format_with("int8"), format_with("int4"), {"int8:sym=1", "int4:sym=0"}},
      {"rows", format_with("int8"), nullptr, {"int8:sym=1", "bf16"}},
      {"window", format_with("mxfp4"), format_with("mxfp4:sink=1"), {"mxfp4 ", "mxfp4:sink=1"}},
      {"tables", cachegen, foreign, {"with tables ", "cachegen:form=code,level=2"}},
  };
  for (const Difference& each : cases) {
    const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
    Worker prefill(*network, fixture_model(), options_of(each.prefill));
    Worker decode(*network, fixture_model(), options_of(each.decode));
    const Outcome pushed = push(prefill, decode, make_mixed_request(130, 4, 1));
    EXPECT_EQ(pushed.prefilled.code(), Code::kInvalidArgument) << each.title;
    for (const std::string& part : each.told) {
      EXPECT_THAT(pushed.prefilled.message(), HasSubstr(part)) << each.title;
    }
    EXPECT_FALSE(pushed.decoded.ok());
    prefill.expect_clean();
    decode.expect_clean();
  }
}

}  // namespace
}  // namespace kvlane
