// The golden messages: read as the independent reader in spec/decoder reads them, or refused for
// the same reason; what was read is written and read again without a change.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_paths.h"
#include "crypto/sha256.h"
#include "format/describe.h"
#include "transfer/hex.h"
#include "transfer/message.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kGoldenMessages = fs::path(kSourceDir) / "tests/golden/message";

std::string read_text(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<fs::path> golden(const char* folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(kGoldenMessages / folder)) {
    if (entry.path().extension() == ".message") files.push_back(entry.path());
  }
  EXPECT_GT(files.size(), 5U) << folder;
  return files;
}

Json describe_first(const FirstToken& first) {
  Json json = {{"token", first.token}};
  if (first.logprob) json["logprob"] = *first.logprob;
  for (const auto& [token, logprob] : first.top) json["top"].push_back(Json({token, logprob}));
  return json;
}

Json describe_end(const NumberedEnd& numbered) {
  const TransferEnd& end = numbered.end;
  Json first = Json::array();
  for (const FirstToken& each : end.first) first.push_back(describe_first(each));
  return {{"round", numbered.round},
          {"first", first},
          {"seed", end.seed},
          {"raw_bytes", end.raw_bytes},
          {"shipped_bytes", end.shipped_bytes},
          {"since_begin", end.since_begin},
          {"durations", end.durations}};
}

Json describe_hello(const Hello& hello) {
  Json json = {{"engine", hello.engine},     {"host", hello.address.host},
               {"port", hello.address.port}, {"model", to_hex(hello.model)},
               {"format", hello.format},     {"codecs", hello.codecs}};
  if (hello.tables != 0) json["tables"] = hex_of_u64(hello.tables);
  return json;
}

Json describe_missing(const Missing& missing) {
  Json slabs = Json::array();
  for (const SlabName& slab : missing.slabs) slabs.push_back(Json({slab.layer, slab.block}));
  return {{"round", missing.round}, {"slabs", slabs}};
}

Json describe_slab(ByteView body) {
  const Result<Frame> frame = parse_frame(body);
  if (!frame.ok()) return {{"refused", std::string(code_name(frame.status().code()))}};
  Json header = Json::parse(*describe_frame_json(body))["frames"][0];
  for (const char* derived : {"offset", "raw_bytes", "frame_bytes", "ratio"}) header.erase(derived);
  return {{"frame", header}};
}

struct Read {
  Json body;
  Bytes again;  // written once more
};

Result<Read> read_body(const Message& message) {
  const TransferId& id = message.header.transfer;
  const ByteView body = message.body;
  switch (message.header.type) {
    case MessageType::kHello:
    case MessageType::kHelloAck: {
      KVLANE_ASSIGN(const Hello hello, decode_hello(body));
      return Read{describe_hello(hello), encode_hello(message.header.type, hello)};
    }
    case MessageType::kReject:
    case MessageType::kError: {
      Status why;
      KVLANE_TRY(decode_error(body, &why));
      const bool reject = message.header.type == MessageType::kReject;
      return Read{{{"code", std::string(code_name(why.code()))}, {"message", why.message()}},
                  reject ? encode_reject(why) : encode_error(id, why)};
    }
    case MessageType::kBegin: {
      KVLANE_ASSIGN(const TransferBegin begin, decode_begin(body));
      Json read = {{"tokens", begin.tokens},
                   {"layers", begin.layers},
                   {"format", begin.format},
                   {"codec", begin.codec}};
      if (begin.prompt) read["prompt"] = to_hex(*begin.prompt);
      return Read{read, encode_begin(id, begin)};
    }
    case MessageType::kSlab: return Read{describe_slab(body), encode_slab(id, body)};
    case MessageType::kEnd: {
      KVLANE_ASSIGN(const NumberedEnd end, decode_end(body));
      return Read{describe_end(end), encode_end(id, end)};
    }
    case MessageType::kMissing: {
      KVLANE_ASSIGN(const Missing missing, decode_missing(body));
      return Read{describe_missing(missing), encode_missing(id, missing)};
    }
    case MessageType::kDone: {
      KVLANE_ASSIGN(const Durations durations, decode_done(body));
      return Read{{{"durations", durations}}, encode_done(id, durations)};
    }
    case MessageType::kFetch: return Read{Json::object(), encode_fetch(id)};
    case MessageType::kWait: return Read{Json::object(), encode_wait(id)};
    case MessageType::kRank:
    case MessageType::kJoin:
    case MessageType::kFence: return unsupported("no message of a transfer");
  }
  return internal_error("no such type");
}

// All messages of a file, as their JSON form says.
Result<Json> read_messages(ByteView bytes) {
  Json list = Json::array();
  do {
    KVLANE_ASSIGN(const MessageHeader header,
                  parse_message_header(bytes.first(std::min(bytes.size(), kMessageHeaderBytes))));
    const std::size_t size = std::min(bytes.size(), kMessageHeaderBytes + header.body_bytes);
    KVLANE_ASSIGN(const Message message, parse_message(bytes.first(size)));
    KVLANE_ASSIGN(const Read read, read_body(message));
    list.push_back({{"type", std::string(message_name(header.type))},
                    {"transfer", to_string(header.transfer)},
                    {"body", read.body}});
    const Result<Message> again = parse_message(read.again);
    EXPECT_TRUE(again.ok()) << again.status().message();
    if (again.ok()) {
      EXPECT_EQ(read_body(*again)->body, read.body);
    }
    bytes = bytes.subspan(size);
  } while (!bytes.empty());
  return list;
}

TEST(GoldenMessages, ValidOnesAreReadAsTheSpecificationSays) {
  for (const fs::path& path : golden("valid")) {
    const std::string bytes = read_text(path);
    const Result<Json> read = read_messages(as_byte_view(bytes));
    ASSERT_TRUE(read.ok()) << path << ": " << read.status().message();
    fs::path expected = path;
    expected.replace_extension(".json");
    EXPECT_EQ(*read, Json::parse(read_text(expected))) << path;
  }
}

TEST(GoldenMessages, BadOnesAreRefusedForTheirReason) {
  for (const auto& [folder, code] :
       {std::pair("corrupt", Code::kCorrupt), std::pair("unsupported", Code::kUnsupported)}) {
    for (const fs::path& path : golden(folder)) {
      const std::string bytes = read_text(path);
      const Result<Json> read = read_messages(as_byte_view(bytes));
      ASSERT_FALSE(read.ok()) << path;
      EXPECT_EQ(read.status().code(), code) << path << ": " << read.status().message();
    }
  }
}

}  // namespace
}  // namespace kvlane
