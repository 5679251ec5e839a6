// Bodies of messages: JSON objects with checked members, and the list of missing slabs.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/message_body.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "crypto/sha256.h"
#include "transfer/hex.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kEngineBytesMax = 64;
constexpr std::size_t kHostBytesMax = 255;
constexpr std::size_t kCodecsMax = 32;
constexpr std::size_t kSentenceBytesMax = 4096;
constexpr std::size_t kDurationsMax = 64;
constexpr std::size_t kDurationNameBytesMax = 64;
// Escaping makes a byte six at most.
static_assert(6 * (kSentenceBytesMax + 64) < kControlBodyBytesMax);
constexpr std::size_t kDurationsBytesMax = kDurationsMax * (6 * kDurationNameBytesMax + 32) + 256;
static_assert(kDurationsBytesMax < kControlBodyBytesMax);
// A token has 11 characters at most, a logarithm 24, names and brackets fewer than 40.
static_assert(kFirstTokensMax * (kTopLogprobsMax + 1) * (11 + 24 + 40) + kDurationsBytesMax <
              kEndBodyBytesMax);

constexpr Code kCodes[] = {Code::kInvalidArgument, Code::kNotFound,  Code::kCorrupt,
                           Code::kUnsupported,     Code::kExhausted, Code::kUnavailable,
                           Code::kTimeout,         Code::kAborted,   Code::kInternal};

Bytes seal_json(MessageType type, const TransferId& id, const Json& body) {
  // Texts may come from anywhere: what is no UTF-8 is replaced instead of thrown about.
  const std::string text = body.dump(-1, ' ', false, Json::error_handler_t::replace);
  return seal_message(type, id, as_byte_view(text));
}

Result<Json> parse_object(ByteView body) {
  // The parser would pass over a byte order mark.
  const std::string_view text = as_text(body);
  if (text.starts_with("\xEF\xBB\xBF")) return corrupt("the body begins with a byte order mark");
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return corrupt("the body is no JSON object");
  return json;
}

Status wrong_member(const char* name, const std::string& wanted) {
  return corrupt("the member \"" + std::string(name) + "\" is missing or not " + wanted);
}

Result<std::uint64_t> read_unsigned(const Json& object, const char* name, std::uint64_t min,
                                    std::uint64_t max) {
  const auto member = object.find(name);
  // Only integers that are not negative are "unsigned" to the parser.
  if (member != object.end() && member->is_number_unsigned()) {
    if (const auto value = member->get<std::uint64_t>(); value >= min && value <= max) return value;
  }
  return wrong_member(name,
                      "an integer from " + std::to_string(min) + " to " + std::to_string(max));
}

Result<std::int32_t> read_token(const Json& number) {
  if (number.is_number_integer()) {
    const bool huge = number.is_number_unsigned() &&
                      number.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max();
    const auto value = huge ? std::numeric_limits<std::int64_t>::max() : number.get<std::int64_t>();
    if (std::in_range<std::int32_t>(value)) return static_cast<std::int32_t>(value);
  }
  return corrupt("a first token is not a 32-bit integer");
}

// Floats go through JSON as doubles, which hold them exactly.
Result<float> read_logprob(const Json& number) {
  if (number.is_number()) {
    const auto value = number.get<double>();
    if (std::abs(value) <= std::numeric_limits<float>::max()) return static_cast<float>(value);
  }
  return corrupt("a log probability of a first token is not a finite 32-bit float");
}

Result<FirstToken> read_first_token(const Json& object) {
  if (!object.is_object() || !object.contains("token")) {
    return corrupt("a first token is not an object with a \"token\"");
  }
  FirstToken first;
  KVLANE_ASSIGN(first.token, read_token(object["token"]));
  if (object.contains("logprob")) {
    KVLANE_ASSIGN(const float logprob, read_logprob(object["logprob"]));
    first.logprob = logprob;
  }
  const auto top = object.find("top");
  if (top == object.end()) return first;
  if (!top->is_array() || top->size() > kTopLogprobsMax) {
    return wrong_member("top", "an array of at most " + std::to_string(kTopLogprobsMax));
  }
  for (const Json& pair : *top) {
    if (!pair.is_array() || pair.size() != 2) return wrong_member("top", "an array of pairs");
    KVLANE_ASSIGN(const std::int32_t token, read_token(pair[0]));
    KVLANE_ASSIGN(const float logprob, read_logprob(pair[1]));
    first.top.emplace_back(token, logprob);
  }
  return first;
}

Result<std::vector<FirstToken>> read_first(const Json& object) {
  const auto member = object.find("first");
  if (member == object.end() || !member->is_array() || member->empty() ||
      member->size() > kFirstTokensMax) {
    return wrong_member("first", "an array of 1 to " + std::to_string(kFirstTokensMax));
  }
  std::vector<FirstToken> first;
  for (const Json& each : *member) {
    KVLANE_ASSIGN(FirstToken token, read_first_token(each));
    first.push_back(std::move(token));
  }
  return first;
}

// JSON has neither infinities nor NaN.
Json write_logprob(float logprob) {
  constexpr float kMax = std::numeric_limits<float>::max();
  return std::isnan(logprob) ? -kMax : std::clamp(logprob, -kMax, kMax);
}

Json write_first(const std::vector<FirstToken>& list) {
  Json array = Json::array();
  for (const FirstToken& first : list) {
    Json object = {{"token", first.token}};
    if (first.logprob) object["logprob"] = write_logprob(*first.logprob);
    for (const auto& [token, logprob] : first.top) {
      object["top"].push_back(Json::array({token, write_logprob(logprob)}));
    }
    array.push_back(std::move(object));
  }
  return array;
}

bool is_duration(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

Result<double> read_seconds(const Json& object, const char* name) {
  const auto member = object.find(name);
  if (member != object.end() && member->is_number()) {
    if (const auto value = member->get<double>(); is_duration(value)) return value;
  }
  return wrong_member(name, "a number of seconds");
}

Result<std::string> read_text(const Json& object, const char* name, std::size_t bytes_max) {
  const auto member = object.find(name);
  if (member != object.end() && member->is_string()) {
    if (const auto& text = member->get_ref<const std::string&>(); text.size() <= bytes_max) {
      return text;
    }
  }
  return wrong_member(name, "a text of at most " + std::to_string(bytes_max) + " bytes");
}

// As in frame headers: spec/frame.md section 3.
bool is_name(std::string_view text, std::size_t bytes_max) {
  constexpr std::string_view kCharacters = "abcdefghijklmnopqrstuvwxyz0123456789_:=,.+-";
  constexpr std::string_view kFirst = kCharacters.substr(0, 26);
  return !text.empty() && text.size() <= bytes_max &&
         kFirst.find(text[0]) != std::string_view::npos &&
         text.find_first_not_of(kCharacters) == std::string_view::npos;
}

Result<std::string> read_name(const Json& object, const char* name, std::size_t bytes_max) {
  KVLANE_ASSIGN(std::string text, read_text(object, name, bytes_max));
  if (!is_name(text, bytes_max)) return wrong_member(name, "a name");
  return text;
}

Json write_durations(const Durations& durations) {
  Json object = Json::object();
  for (const auto& [name, seconds] : durations) {
    if (name.empty() || name.size() > kDurationNameBytesMax) continue;
    if (object.size() == kDurationsMax) break;
    object[name] = is_duration(seconds) ? seconds : 0.0;
  }
  return object;
}

Result<Durations> read_durations(const Json& object) {
  const auto member = object.find("durations");
  if (member == object.end() || !member->is_object() || member->size() > kDurationsMax) {
    return wrong_member("durations", "an object of at most " + std::to_string(kDurationsMax));
  }
  Durations durations;
  for (const auto& [name, ignored] : member->items()) {
    if (name.empty() || name.size() > kDurationNameBytesMax) {
      return corrupt("a duration has a name of " + std::to_string(name.size()) + " bytes");
    }
    KVLANE_ASSIGN(durations[name], read_seconds(*member, name.c_str()));
  }
  return durations;
}

Bytes seal_status(MessageType type, const TransferId& id, const Status& why) {
  return seal_json(type, id,
                   {{"code", std::string(code_name(why.code()))},
                    {"message", why.message().substr(0, kSentenceBytesMax)}});
}

// What a link may do beyond version 1's least; an empty object as long as that is nothing.
Json write_capabilities(const Hello& hello) {
  Json capabilities = Json::object();
  if (hello.streams > 1) capabilities["streams"] = hello.streams;
  if (hello.join != TransferId{}) capabilities["join"] = to_string(hello.join);
  return capabilities;
}

Status read_capabilities(const Json& object, Hello& hello) {
  if (object.contains("streams")) {
    KVLANE_ASSIGN(const auto streams, read_unsigned(object, "streams", 1, UINT32_MAX));
    hello.streams = static_cast<std::uint32_t>(streams);
  }
  if (!object.contains("join")) return {};
  KVLANE_ASSIGN(const std::string join, read_text(object, "join", 2 * hello.join.bytes.size()));
  const Result<TransferId> id = parse_transfer_id(join);
  if (!id.ok()) return wrong_member("join", "32 hexadecimal digits");
  hello.join = *id;
  return {};
}

}  // namespace

Bytes encode_hello(MessageType type, const Hello& hello) {
  Json body = {{"engine", hello.engine},
               {"host", hello.address.host},
               {"port", hello.address.port},
               {"model", to_hex(hello.model)},
               {"format", hello.format},
               {"codecs", hello.codecs},
               {"capabilities", write_capabilities(hello)}};
  if (hello.tables != 0) body["tables"] = hex_of_u64(hello.tables);
  return seal_json(type, {}, body);
}

Bytes encode_reject(const Status& why) { return seal_status(MessageType::kReject, {}, why); }

Bytes encode_error(const TransferId& id, const Status& why) {
  return seal_status(MessageType::kError, id, why);
}

Bytes encode_begin(const TransferId& id, const TransferBegin& begin) {
  Json body = {{"tokens", begin.tokens},
               {"layers", begin.layers},
               {"format", begin.format},
               {"codec", begin.codec}};
  if (begin.prompt) body["prompt"] = to_hex(*begin.prompt);
  return seal_json(MessageType::kBegin, id, body);
}

Bytes encode_slab(const TransferId& id, ByteView frame) {
  return seal_message(MessageType::kSlab, id, frame);
}

Bytes encode_end(const TransferId& id, const NumberedEnd& numbered) {
  const TransferEnd& end = numbered.end;
  Json body = {{"round", numbered.round},
               {"first", write_first(end.first)},
               {"seed", end.seed},
               {"raw_bytes", end.raw_bytes},
               {"shipped_bytes", end.shipped_bytes},
               {"since_begin", is_duration(end.since_begin) ? end.since_begin : 0.0},
               {"durations", write_durations(end.durations)}};
  if (end.cached_tokens > 0) body["cached_tokens"] = end.cached_tokens;
  return seal_json(MessageType::kEnd, id, body);
}

Bytes encode_missing(const TransferId& id, const Missing& missing) {
  ByteWriter writer;
  writer.write(missing.round);
  writer.write(static_cast<std::uint32_t>(missing.slabs.size()));
  for (const SlabName& slab : missing.slabs) {
    writer.write(slab.layer);
    writer.write(slab.block);
  }
  return seal_message(MessageType::kMissing, id, writer.bytes());
}

Bytes encode_done(const TransferId& id, const Durations& durations) {
  return seal_json(MessageType::kDone, id, {{"durations", write_durations(durations)}});
}

Bytes encode_fetch(const TransferId& id) { return seal_message(MessageType::kFetch, id, {}); }

Bytes encode_wait(const TransferId& id) { return seal_message(MessageType::kWait, id, {}); }
Bytes encode_rank(const TransferId& group, ByteView piece) {
  return seal_message(MessageType::kRank, group, piece);
}

Bytes encode_stream_join(const StreamJoin& join) {
  ByteWriter writer;
  writer.write(join.stream);
  writer.write(std::uint32_t{0});
  return seal_message(MessageType::kJoin, join.link, writer.bytes());
}

Bytes encode_fence(const TransferId& link, const Fence& fence) {
  ByteWriter writer;
  for (const std::uint64_t messages : fence) writer.write(messages);
  return seal_message(MessageType::kFence, link, writer.bytes());
}

Result<Hello> decode_hello(ByteView body) {
  KVLANE_ASSIGN(const Json json, parse_object(body));
  Hello hello;
  KVLANE_ASSIGN(hello.engine, read_text(json, "engine", kEngineBytesMax));
  if (hello.engine.empty()) return wrong_member("engine", "a text of at least 1 byte");
  KVLANE_ASSIGN(hello.address.host, read_text(json, "host", kHostBytesMax));
  KVLANE_ASSIGN(const std::uint64_t port, read_unsigned(json, "port", 0, 65535));
  hello.address.port = static_cast<std::uint16_t>(port);
  KVLANE_ASSIGN(const std::string model, read_text(json, "model", 2 * hello.model.size()));
  if (!parse_hex(model, hello.model)) return wrong_member("model", "64 hexadecimal digits");
  KVLANE_ASSIGN(hello.format, read_name(json, "format", kCacheFormatBytesMax));
  const auto codecs = json.find("codecs");
  if (codecs == json.end() || !codecs->is_array() || codecs->empty() ||
      codecs->size() > kCodecsMax) {
    return wrong_member("codecs", "an array of 1 to " + std::to_string(kCodecsMax) + " names");
  }
  for (const Json& codec : *codecs) {
    if (!codec.is_string() || !is_name(codec.get_ref<const std::string&>(), kCodecNameBytesMax)) {
      return wrong_member("codecs", "an array of names");
    }
    hello.codecs.push_back(codec.get<std::string>());
  }
  if (json.contains("tables")) {
    KVLANE_ASSIGN(const std::string tables, read_text(json, "tables", 16));
    if (!parse_hex_u64(tables, hello.tables))
      return wrong_member("tables", "16 hexadecimal digits");
  }
  const auto capabilities = json.find("capabilities");
  if (capabilities == json.end() || !capabilities->is_object()) {
    return wrong_member("capabilities", "an object");
  }
  KVLANE_TRY(read_capabilities(*capabilities, hello));
  return hello;
}

Status decode_error(ByteView body, Status* reported) {
  KVLANE_ASSIGN(const Json json, parse_object(body));
  KVLANE_ASSIGN(const std::string code, read_text(json, "code", kEngineBytesMax));
  KVLANE_ASSIGN(std::string message, read_text(json, "message", kControlBodyBytesMax));
  if (message.size() > kSentenceBytesMax) message.resize(kSentenceBytesMax);
  Code known = Code::kInternal;
  for (const Code candidate : kCodes) {
    if (code_name(candidate) == code) known = candidate;
  }
  *reported = Status(known, std::move(message));
  return {};
}

Result<TransferBegin> decode_begin(ByteView body) {
  KVLANE_ASSIGN(const Json json, parse_object(body));
  TransferBegin begin;
  KVLANE_ASSIGN(const auto tokens, read_unsigned(json, "tokens", 1, kTransferTokensMax));
  KVLANE_ASSIGN(const auto layers, read_unsigned(json, "layers", 1, kTransferLayersMax));
  begin.tokens = static_cast<int>(tokens);
  begin.layers = static_cast<int>(layers);
  KVLANE_ASSIGN(begin.format, read_name(json, "format", kCacheFormatBytesMax));
  KVLANE_ASSIGN(begin.codec, read_name(json, "codec", kCodecNameBytesMax));
  if (json.contains("prompt")) {
    PromptDigest& digest = begin.prompt.emplace();
    KVLANE_ASSIGN(const std::string prompt, read_text(json, "prompt", 2 * digest.size()));
    if (!parse_hex(prompt, digest)) return wrong_member("prompt", "64 hexadecimal digits");
  }
  if (const Status valid = check_begin(begin); !valid.ok()) return corrupt(valid.message());
  return begin;
}

Result<NumberedEnd> decode_end(ByteView body) {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  KVLANE_ASSIGN(const Json json, parse_object(body));
  NumberedEnd numbered;
  TransferEnd& end = numbered.end;
  KVLANE_ASSIGN(const std::uint64_t round, read_unsigned(json, "round", 0, 0xFFFFFFFFU));
  numbered.round = static_cast<std::uint32_t>(round);
  KVLANE_ASSIGN(end.first, read_first(json));
  KVLANE_ASSIGN(end.seed, read_unsigned(json, "seed", 0, kAny));
  KVLANE_ASSIGN(end.raw_bytes, read_unsigned(json, "raw_bytes", 0, kAny));
  KVLANE_ASSIGN(end.shipped_bytes, read_unsigned(json, "shipped_bytes", 0, kAny));
  if (json.contains("cached_tokens")) {
    KVLANE_ASSIGN(const auto cached, read_unsigned(json, "cached_tokens", 0, kTransferTokensMax));
    end.cached_tokens = static_cast<int>(cached);
  }
  KVLANE_ASSIGN(end.since_begin, read_seconds(json, "since_begin"));
  KVLANE_ASSIGN(end.durations, read_durations(json));
  return numbered;
}

Result<Missing> decode_missing(ByteView body) {
  ByteReader reader(body);
  Missing missing;
  missing.round = reader.read<std::uint32_t>();
  const auto count = reader.read<std::uint32_t>();
  if (reader.failed() || count > kMissingSlabsMax ||
      reader.remaining() != std::size_t{count} * 2 * sizeof(std::uint32_t)) {
    return corrupt("a list of " + std::to_string(count) + " missing slabs in " +
                   std::to_string(body.size()) + " bytes");
  }
  missing.slabs.resize(count);
  for (SlabName& slab : missing.slabs) {
    slab.layer = reader.read<std::uint32_t>();
    slab.block = reader.read<std::uint32_t>();
  }
  return missing;
}

Result<Durations> decode_done(ByteView body) {
  KVLANE_ASSIGN(const Json json, parse_object(body));
  return read_durations(json);
}

Status check_begin(const TransferBegin& begin) {
  if (begin.tokens < 1 || begin.tokens > kTransferTokensMax) {
    return invalid_argument("a transfer of " + std::to_string(begin.tokens) + " tokens, 1 to " +
                            std::to_string(kTransferTokensMax) + " are possible");
  }
  if (begin.layers < 1 || begin.layers > kTransferLayersMax) {
    return invalid_argument("a transfer of " + std::to_string(begin.layers) + " layers, 1 to " +
                            std::to_string(kTransferLayersMax) + " are possible");
  }
  const auto slabs = std::uint64_t(begin.layers) * std::uint64_t(blocks_for(begin.tokens));
  if (slabs > kTransferSlabsMax) {
    return invalid_argument("a transfer of " + std::to_string(slabs) + " slabs, at most " +
                            std::to_string(kTransferSlabsMax) + " are possible");
  }
  if (!is_name(begin.format, kCacheFormatBytesMax)) {
    return invalid_argument("\"" + begin.format + "\" cannot be the name of a format");
  }
  if (!is_name(begin.codec, kCodecNameBytesMax)) {
    return invalid_argument("\"" + begin.codec + "\" cannot be the name of a codec");
  }
  return {};
}

Status check_first(const std::vector<FirstToken>& first) {
  if (first.empty() || first.size() > kFirstTokensMax) {
    return invalid_argument("a transfer with " + std::to_string(first.size()) +
                            " first tokens, 1 to " + std::to_string(kFirstTokensMax) +
                            " are possible");
  }
  for (const FirstToken& each : first) {
    if (each.top.size() <= kTopLogprobsMax) continue;
    return invalid_argument("a first token with " + std::to_string(each.top.size()) +
                            " log probabilities, at most " + std::to_string(kTopLogprobsMax) +
                            " are possible");
  }
  return {};
}

Result<StreamJoin> decode_stream_join(const Message& message) {
  ByteReader reader(message.body);
  StreamJoin join{message.header.transfer, reader.read<std::uint32_t>()};
  const auto reserved = reader.read<std::uint32_t>();
  if (reader.failed() || reader.remaining() != 0 || reserved != 0) {
    return corrupt("a JOIN is not a number and four zero bytes");
  }
  if (join.stream == 0 || join.stream >= kLinkStreamsMax) {
    return corrupt("a connection joins as number " + std::to_string(join.stream) + ", 1 to " +
                   std::to_string(kLinkStreamsMax - 1) + " are possible");
  }
  return join;
}

Result<Fence> decode_fence(ByteView body) {
  constexpr std::size_t kCount = sizeof(std::uint64_t);
  if (body.empty() || body.size() % kCount != 0 || body.size() / kCount > kLinkStreamsMax) {
    return corrupt("a FENCE of " + std::to_string(body.size()) + " bytes");
  }
  Fence fence(body.size() / kCount);
  ByteReader reader(body);
  for (std::uint64_t& messages : fence) messages = reader.read<std::uint64_t>();
  return fence;
}

std::vector<std::string> split_names(std::string_view names) {
  std::vector<std::string> list;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(names.size(), name.size() + 1));
    const std::size_t begin = name.find_first_not_of(' ');
    if (begin == std::string_view::npos) continue;
    list.emplace_back(name.substr(begin, name.find_last_not_of(' ') + 1 - begin));
  }
  return list;
}

}  // namespace kvlane
