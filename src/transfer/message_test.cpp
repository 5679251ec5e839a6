// Messages: every type both ways, every truncation, every flipped byte, every limit.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "transfer/message_body.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using testing::begin_of;
using testing::end_of;
using testing::frame_of;
using ::testing::HasSubstr;
using testing::id_of;
using testing::model_named;

Hello hello_of_test() {
  return {"worker-1", {"::1", 4711}, model_named(0x5C), "bf16", {"none", "splitzip"}};
}

struct Example {
  MessageType type;
  Bytes bytes;
};

// One message of each type.
std::vector<Example> examples() {
  const TransferId id = id_of(1);
  const TransferBegin begin = begin_of(100, 2);
  return {
      {MessageType::kHello, encode_hello(MessageType::kHello, hello_of_test())},
      {MessageType::kHelloAck, encode_hello(MessageType::kHelloAck, hello_of_test())},
      {MessageType::kReject, encode_reject(invalid_argument("another model"))},
      {MessageType::kBegin, encode_begin(id, begin)},
      {MessageType::kSlab, encode_slab(id, frame_of(begin, {1, 1}))},
      {MessageType::kEnd, encode_end(id, {3, end_of(42)})},
      {MessageType::kMissing, encode_missing(id, {4, {{0, 1}, {1, 0}}})},
      {MessageType::kDone, encode_done(id, {{"transfer", 0.5}})},
      {MessageType::kFetch, encode_fetch(id)},
      {MessageType::kError, encode_error(id, timed_out("too late"))},
      {MessageType::kError, encode_error({}, corrupt("garbage"))},
      {MessageType::kWait, encode_wait(id)},
      {MessageType::kRank, encode_rank(id, Bytes(100))},
      {MessageType::kJoin, encode_stream_join({id, 3})},
      {MessageType::kFence, encode_fence(id, {0, 7, 1})},
  };
}

// The header's checksum made right again after a change.
void reseal(Bytes& bytes) {
  const std::uint64_t sum = XXH3_64bits(bytes.data(), 40);
  std::memcpy(bytes.data() + 40, &sum, sizeof sum);
}

ByteView message_body(const Bytes& message) {
  return ByteView(message).subspan(kMessageHeaderBytes);
}

Bytes json_body(const nlohmann::json& json) {
  const std::string text = json.dump();
  const ByteView bytes = as_byte_view(text);
  return {bytes.begin(), bytes.end()};
}

TEST(Message, EveryTypeComesBack) {
  for (const Example& example : examples()) {
    const Result<Message> message = parse_message(example.bytes);
    ASSERT_TRUE(message.ok()) << message_name(example.type) << ": " << message.status().message();
    EXPECT_EQ(message->header.type, example.type);
    EXPECT_EQ(message->body.size(), example.bytes.size() - kMessageHeaderBytes);
  }
}

TEST(Message, LayoutIsThatOfTheSpec) {
  const Bytes bytes = encode_missing(id_of(0x01020304), {5, {{6, 7}}});
  const auto at = [&](std::size_t offset) { return std::to_integer<int>(bytes[offset]); };
  ASSERT_EQ(bytes.size(), 48U + 16U);
  EXPECT_EQ(as_text(ByteView(bytes).first(4)), "\x8BKVM");
  EXPECT_EQ(at(4), 1);   // version
  EXPECT_EQ(at(6), 7);   // type
  EXPECT_EQ(at(8), 16);  // body_bytes
  EXPECT_EQ(at(16), 4);  // the id's first byte
  std::uint64_t body_checksum = 0;
  std::memcpy(&body_checksum, bytes.data() + 32, sizeof body_checksum);
  EXPECT_EQ(body_checksum, XXH3_64bits(bytes.data() + 48, 16));
  EXPECT_EQ(at(48), 5);  // round
  EXPECT_EQ(at(52), 1);  // count
  EXPECT_EQ(at(56), 6);  // layer
  EXPECT_EQ(at(60), 7);  // block
}

TEST(Message, EveryPrefixAndOneByteMoreIsRefused) {
  for (const Example& example : examples()) {
    for (std::size_t size = 0; size < example.bytes.size(); ++size) {
      const Result<Message> message = parse_message(ByteView(example.bytes).first(size));
      ASSERT_FALSE(message.ok()) << message_name(example.type) << " cut to " << size;
      EXPECT_EQ(message.status().code(), Code::kCorrupt);
    }
    Bytes longer = example.bytes;
    longer.push_back(std::byte{0});
    EXPECT_EQ(parse_message(longer).status().code(), Code::kCorrupt);
  }
}

TEST(Message, EveryFlippedBitIsRefused) {
  for (const Example& example : examples()) {
    // A slab's body is the frame's business.
    const std::size_t end =
        example.type == MessageType::kSlab ? kMessageHeaderBytes : example.bytes.size();
    for (std::size_t at = 0; at < end; ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        Bytes bytes = example.bytes;
        bytes[at] ^= std::byte(1 << bit);
        EXPECT_FALSE(parse_message(bytes).ok()) << message_name(example.type) << " at " << at;
      }
    }
  }
}

TEST(Message, HeaderChecksNameWhatIsWrong) {
  struct Case {
    std::size_t offset;
    std::byte value;
    Code code;
    const char* sentence;
  };
  const Case cases[] = {
      {0, std::byte{'G'}, Code::kCorrupt, "does not speak"},
      {4, std::byte{2}, Code::kUnsupported, "version 2"},
      {6, std::byte{0}, Code::kUnsupported, "unknown type 0"},
      {6, std::byte{15}, Code::kUnsupported, "unknown type 15"},
      {7, std::byte{1}, Code::kUnsupported, "reserved"},
      {15, std::byte{1}, Code::kUnsupported, "reserved"},
      {10, std::byte{2}, Code::kCorrupt, "at most 65536"},
  };
  for (const Case& wrong : cases) {
    Bytes bytes = encode_begin(id_of(1), begin_of(1, 1));
    bytes[wrong.offset] = wrong.value;
    reseal(bytes);
    const Result<MessageHeader> header =
        parse_message_header(ByteView(bytes).first(kMessageHeaderBytes));
    ASSERT_FALSE(header.ok()) << wrong.sentence;
    EXPECT_EQ(header.status().code(), wrong.code);
    EXPECT_THAT(header.status().message(), HasSubstr(wrong.sentence));
  }
}

TEST(Message, BodyLimitsDependOnTheType) {
  EXPECT_EQ(body_bytes_max(MessageType::kFetch), 0U);
  EXPECT_EQ(body_bytes_max(MessageType::kWait), 0U);
  EXPECT_EQ(body_bytes_max(MessageType::kEnd), kEndBodyBytesMax);
  EXPECT_EQ(body_bytes_max(MessageType::kHello), kControlBodyBytesMax);
  Bytes slab = encode_slab(id_of(1), {});
  const auto parse_with_size = [&](std::uint32_t size) {
    std::memcpy(slab.data() + 8, &size, sizeof size);
    reseal(slab);
    return parse_message_header(slab);
  };
  EXPECT_TRUE(parse_with_size(kSlabBodyBytesMax).ok());
  EXPECT_EQ(parse_with_size(kSlabBodyBytesMax + 1).status().code(), Code::kCorrupt);
}

TEST(Message, TheHeaderOfASlabMayBeWrittenAlone) {
  const Bytes frame = frame_of(begin_of(100, 2), {1, 1});
  Bytes slab(kMessageHeaderBytes, std::byte{9});
  begin_slab(id_of(1), frame.size(), std::span(slab).first<kMessageHeaderBytes>());
  slab.insert(slab.end(), frame.begin(), frame.end());
  EXPECT_EQ(slab, encode_slab(id_of(1), frame));
}

TEST(Message, IdsBelongToTransfersOnly) {
  Bytes begin = encode_begin({}, begin_of(1, 1));
  EXPECT_THAT(parse_message(begin).status().message(), HasSubstr("BEGIN without a transfer id"));
  Bytes hello = encode_hello(MessageType::kHello, hello_of_test());
  hello[16] = std::byte{1};
  reseal(hello);
  EXPECT_THAT(parse_message(hello).status().message(), HasSubstr("HELLO with a transfer id"));
}

TEST(Message, MayBeginMessage) {
  EXPECT_TRUE(may_begin_message({}));
  EXPECT_TRUE(may_begin_message(as_byte_view("\x8BKV")));
  EXPECT_FALSE(may_begin_message(as_byte_view("G")));
  EXPECT_FALSE(may_begin_message(as_byte_view("\x8BKVL")));
}

TEST(Message, HelloComesBack) {
  const Hello hello = hello_of_test();
  const Bytes bytes = encode_hello(MessageType::kHello, hello);
  const Result<Hello> back = decode_hello(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->engine, hello.engine);
  EXPECT_EQ(back->address, hello.address);
  EXPECT_EQ(back->model, hello.model);
  EXPECT_EQ(back->format, hello.format);
  EXPECT_EQ(back->codecs, hello.codecs);
}

TEST(Message, HelloMembersAreChecked) {
  const Bytes bytes = encode_hello(MessageType::kHello, hello_of_test());
  const auto valid = nlohmann::json::parse(as_text(message_body(bytes)));
  const std::pair<const char*, nlohmann::json> wrong[] = {
      {"engine", ""},
      {"engine", std::string(97, 'e')},
      {"engine", 7},
      {"host", std::string(256, 'h')},
      {"port", -1},
      {"port", 65536},
      {"port", 1.5},
      {"model", "5c"},
      {"model", std::string(64, 'X')},
      {"format", "BF 16"},
      {"format", std::string(129, 'f')},
      {"codecs", nlohmann::json::array()},
      {"codecs", {"none", ""}},
      {"codecs", {"none", 3}},
      {"codecs", std::vector<std::string>(33, "none")},
      {"capabilities", "all"},
      {"capabilities", {{"streams", 0}}},
      {"capabilities", {{"streams", "2"}}},
      {"capabilities", {{"join", "00"}}},
      {"capabilities", {{"join", std::string(32, 'X')}}},
  };
  for (const auto& [member, value] : wrong) {
    auto json = valid;
    json[member] = value;
    const Result<Hello> hello = decode_hello(json_body(json));
    ASSERT_FALSE(hello.ok()) << member << " " << value;
    const auto inner = value.is_object() ? value.items().begin().key() : std::string(member);
    EXPECT_THAT(hello.status().message(), HasSubstr(inner));
  }
  for (const auto& item : valid.items()) {
    auto json = valid;
    json.erase(item.key());
    EXPECT_FALSE(decode_hello(json_body(json)).ok()) << "without " << item.key();
  }
  auto extended = valid;
  extended["later"] = {{"more", 1}};
  extended["capabilities"] = {{"tls", true}};
  EXPECT_TRUE(decode_hello(json_body(extended)).ok());
}

TEST(Message, HelloTellsHowManyConnectionsALinkMayHave) {
  Hello hello = hello_of_test();
  hello.streams = 16;
  hello.join = id_of(5);
  const Bytes bytes = encode_hello(MessageType::kHelloAck, hello);
  const Result<Hello> back = decode_hello(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->streams, 16U);
  EXPECT_EQ(back->join, hello.join);
}

TEST(Message, JoinsAndFencesAreChecked) {
  const auto join_of = [](const Bytes& bytes) { return decode_stream_join(*parse_message(bytes)); };
  const auto join = join_of(encode_stream_join({id_of(5), 15}));
  ASSERT_TRUE(join.ok());
  EXPECT_EQ(join->link, id_of(5));
  EXPECT_EQ(join->stream, 15U);
  for (const std::uint32_t number : {0U, 16U, 0xFFFFFFFFU}) {
    EXPECT_THAT(join_of(encode_stream_join({id_of(5), number})).status().message(),
                HasSubstr("number " + std::to_string(number)));
  }
  const Bytes body(8, std::byte{1});
  for (const std::size_t bytes : {0U, 4U, 8U}) {
    EXPECT_FALSE(decode_stream_join({{}, ByteView(body).first(bytes)}).ok());
  }
  const Fence fence = {3, 0, 0xFFFFFFFFFFFFFFFF};
  const Bytes sealed = encode_fence(id_of(5), fence);
  EXPECT_EQ(*decode_fence(message_body(sealed)), fence);
  for (const std::size_t bytes : {0U, 7U, 9U, 136U}) {
    EXPECT_FALSE(decode_fence(Bytes(bytes)).ok()) << bytes;
  }
}

TEST(Message, BodiesThatAreNoObjectsAreRefused) {
  const std::string deep(60000, '[');
  for (const std::string& text : {std::string(), std::string("null"), std::string("[1]"),
                                  std::string("{"), std::string("{\"a\":\"\xFF\"}"), deep}) {
    const ByteView body = as_byte_view(text);
    Status reported;
    EXPECT_EQ(decode_hello(body).status().code(), Code::kCorrupt);
    EXPECT_EQ(decode_begin(body).status().code(), Code::kCorrupt);
    EXPECT_EQ(decode_end(body).status().code(), Code::kCorrupt);
    EXPECT_EQ(decode_done(body).status().code(), Code::kCorrupt);
    EXPECT_EQ(decode_error(body, &reported).code(), Code::kCorrupt);
  }
}

TEST(Message, BeginComesBackWithinItsRanges) {
  const TransferBegin begin{kTransferTokensMax, 64, "zack:keep=0.5+hack:k=2,v=2,p=64", "splitzip"};
  ASSERT_TRUE(check_begin(begin).ok());
  const Bytes bytes = encode_begin(id_of(1), begin);
  const Result<TransferBegin> back = decode_begin(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, begin);

  const TransferBegin wrong[] = {
      {0, 1, "bf16", "none"},    {-5, 1, "bf16", "none"},
      {1, 0, "bf16", "none"},    {kTransferTokensMax + 1, 1, "bf16", "none"},
      {1, 4097, "bf16", "none"}, {kTransferTokensMax, 65, "bf16", "none"},
      {1, 1, "", "none"},        {1, 1, "bf16", "No"},
  };
  for (const TransferBegin& each : wrong) {
    EXPECT_EQ(check_begin(each).code(), Code::kInvalidArgument);
    const Bytes encoded = encode_begin(id_of(1), each);
    EXPECT_EQ(decode_begin(message_body(encoded)).status().code(), Code::kCorrupt);
  }
}

TEST(Message, EndComesBackExactly) {
  TransferEnd end = end_of(std::numeric_limits<std::int32_t>::min());
  end.seed = end.raw_bytes = std::numeric_limits<std::uint64_t>::max();
  end.cached_tokens = kTransferTokensMax;
  end.durations["third"] = 1.0 / 3;
  const Bytes bytes = encode_end(id_of(1), {0xFFFFFFFFU, end});
  const Result<NumberedEnd> back = decode_end(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->round, 0xFFFFFFFFU);
  EXPECT_EQ(back->end.first, end.first);
  EXPECT_EQ(back->end.seed, end.seed);
  EXPECT_EQ(back->end.raw_bytes, end.raw_bytes);
  EXPECT_EQ(back->end.shipped_bytes, end.shipped_bytes);
  EXPECT_EQ(back->end.cached_tokens, end.cached_tokens);
  EXPECT_EQ(back->end.durations, end.durations);
  EXPECT_EQ(back->end.since_begin, end.since_begin);
}

TEST(Message, EndMembersAreChecked) {
  const Bytes bytes = encode_end(id_of(1), {0, end_of(1)});
  const auto valid = nlohmann::json::parse(as_text(message_body(bytes)));
  const std::pair<const char*, nlohmann::json> wrong[] = {
      {"round", -1},
      {"round", 4294967296},
      {"cached_tokens", -1},
      {"cached_tokens", kTransferTokensMax + 1},
      {"first", 7},
      {"first", nlohmann::json::array()},
      {"first", nlohmann::json::array({7})},
      {"first", nlohmann::json::array({nlohmann::json::object()})},
      {"first", std::vector<nlohmann::json>(129, {{"token", 1}})},
      {"first", {{{"token", 2147483648}}}},
      {"first", {{{"token", 18446744073709551615U}}}},
      {"first", {{{"token", 1.0}}}},
      {"first", {{{"token", 1}, {"logprob", nullptr}}}},
      {"first", {{{"token", 1}, {"logprob", -3.5e38}}}},
      {"first", {{{"token", 1}, {"top", 2}}}},
      {"first", {{{"token", 1}, {"top", {{1, -1}, {2}}}}}},
      {"first", {{{"token", 1}, {"top", {{1, -1}, {2, "-1"}}}}}},
      {"first", {{{"token", 1}, {"top", {{1, -1}, {-2147483649, -1}}}}}},
      {"first",
       {{{"token", 1}, {"top", std::vector<nlohmann::json>(21, nlohmann::json({1, -1}))}}}},
      {"seed", -1},
      {"raw_bytes", "1"},
      {"shipped_bytes", nullptr},
      {"since_begin", -0.5},
      {"since_begin", nullptr},
      {"durations", nlohmann::json::array()},
      {"durations", {{"prefill", -1}}},
      {"durations", {{"prefill", "1"}}},
      {"durations", {{"", 1}}},
      {"durations", {{std::string(97, 'd'), 1}}},
  };
  for (const auto& [member, value] : wrong) {
    auto json = valid;
    json[member] = value;
    EXPECT_EQ(decode_end(json_body(json)).status().code(), Code::kCorrupt) << member << value;
  }
  auto many = valid;
  for (int i = 0; i < 65; ++i) many["durations"]["d" + std::to_string(i)] = 1;
  EXPECT_FALSE(decode_end(json_body(many)).ok());
}

TEST(Message, FirstTokensComeBackExactly) {
  TransferEnd end = end_of(5);
  end.first[0].logprob = -0.1F;
  // The most there can be, each number as long as it gets.
  FirstToken longest{std::numeric_limits<std::int32_t>::min(), -1.17549435e-38F, {}};
  for (std::size_t i = 0; i < kTopLogprobsMax; ++i) {
    longest.top.emplace_back(longest.token + static_cast<int>(i), -3.40282306e38F);
  }
  end.first.resize(kFirstTokensMax, longest);
  ASSERT_TRUE(check_first(end.first).ok());
  for (int i = 0; i < 64; ++i) {
    std::string name(64, '\x01');
    name[0] = static_cast<char>('!' + i);
    end.durations[name] = 1.0 / 3;
  }
  const Bytes bytes = encode_end(id_of(1), {0, end});
  const Result<Message> message = parse_message(bytes);
  ASSERT_TRUE(message.ok()) << message.status().message();
  const Result<NumberedEnd> back = decode_end(message->body);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->end.first, end.first);
}

TEST(Message, LogProbabilitiesThatAreNoneAreTheLowest) {
  constexpr float kLowest = std::numeric_limits<float>::lowest();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  TransferEnd end = end_of(5);
  end.first = {{1, -kInfinity, {{2, std::nanf("")}, {3, kInfinity}}}};
  const Bytes bytes = encode_end(id_of(1), {0, end});
  const Result<NumberedEnd> back = decode_end(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->end.first,
            (std::vector<FirstToken>{{1, kLowest, {{2, kLowest}, {3, -kLowest}}}}));
}

TEST(Message, FirstTokensHaveLimits) {
  EXPECT_EQ(check_first({}).code(), Code::kInvalidArgument);
  EXPECT_THAT(check_first(std::vector<FirstToken>(129)).message(), HasSubstr("129 first tokens"));
  FirstToken wide;
  wide.top.resize(21);
  EXPECT_THAT(check_first({{}, wide}).message(), HasSubstr("21 log probabilities"));
}

TEST(Message, DurationsThatAreNoneBecomeZeroOrStayOut) {
  Durations durations = {{"nan", std::nan("")}, {"negative", -1}, {"", 1}, {"good", 2}};
  durations[std::string(97, 'x')] = 3;
  const Bytes bytes = encode_done(id_of(1), durations);
  const Result<Durations> back = decode_done(message_body(bytes));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, (Durations{{"nan", 0}, {"negative", 0}, {"good", 2}}));
}

TEST(Message, MissingComesBackUpToItsLimit) {
  Missing missing{9, {}};
  for (std::uint32_t i = 0; i < kMissingSlabsMax; ++i) missing.slabs.push_back({i, ~i});
  const Bytes bytes = encode_missing(id_of(1), missing);
  const Result<Message> message = parse_message(bytes);
  ASSERT_TRUE(message.ok()) << message.status().message();
  const Result<Missing> back = decode_missing(message->body);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->round, 9U);
  EXPECT_EQ(back->slabs, missing.slabs);

  Bytes body(message_body(bytes).begin(), message_body(bytes).end());
  EXPECT_FALSE(decode_missing(ByteView(body).first(body.size() - 1)).ok());
  EXPECT_FALSE(decode_missing({}).ok());
  const std::uint32_t huge = 0xFFFFFFFFU;
  std::memcpy(body.data() + 4, &huge, sizeof huge);
  EXPECT_EQ(decode_missing(body).status().code(), Code::kCorrupt);
}

TEST(Message, ErrorsComeBackWithTheirCode) {
  const Status all[] = {invalid_argument("a"), not_found("b"), corrupt("c"),
                        unsupported("d"),      exhausted("e"), unavailable("f"),
                        timed_out("g"),        aborted("h"),   internal_error("i")};
  for (const Status& why : all) {
    Status reported;
    const Bytes bytes = encode_error(id_of(1), why);
    ASSERT_TRUE(decode_error(message_body(bytes), &reported).ok());
    EXPECT_EQ(reported.code(), why.code());
    EXPECT_EQ(reported.message(), why.message());
  }
}

TEST(Message, ErrorsFromFarAwayAreTamed) {
  Status reported;
  const Bytes unknown =
      json_body(nlohmann::json::parse(R"({"code": "gone_fishing", "message": "away"})"));
  ASSERT_TRUE(decode_error(unknown, &reported).ok());
  EXPECT_EQ(reported.code(), Code::kInternal);

  // Longer than allowed, cut inside a character, with bytes that are no text and need escaping.
  std::string sentence(5000, '\x01');
  sentence.replace(0, 2, "\xC3\xA9\xFF");
  const Bytes bytes = encode_error({}, corrupt(sentence));
  ASSERT_TRUE(parse_message(bytes).ok());
  ASSERT_TRUE(decode_error(message_body(bytes), &reported).ok());
  EXPECT_LE(reported.message().size(), 4096U);
}

TEST(Message, SplitNames) {
  EXPECT_EQ(split_names("none, splitzip"), (std::vector<std::string>{"none", "splitzip"}));
  EXPECT_EQ(split_names(" none ,,zstd "), (std::vector<std::string>{"none", "zstd"}));
  EXPECT_TRUE(split_names("").empty());
}

TEST(TransferIds, TextForm) {
  const TransferId id = random_transfer_id();
  EXPECT_NE(id, random_transfer_id());
  EXPECT_EQ(to_string(id).size(), 32U);
  const Result<TransferId> back = parse_transfer_id(to_string(id));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, id);
  for (const char* text :
       {"", "12", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdeg",
        "0123456789abcdef0123456789abcdef0"}) {
    EXPECT_EQ(parse_transfer_id(text).status().code(), Code::kInvalidArgument);
  }
}

TEST(Addresses, TextForm) {
  EXPECT_EQ(to_string(Address{"127.0.0.1", 80}), "127.0.0.1:80");
  EXPECT_EQ(to_string(Address{"::1", 80}), "[::1]:80");
}

}  // namespace
}  // namespace kvlane
