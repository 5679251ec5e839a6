// Chat templates as transformers renders them: where they are found, and what they are given.
// SPDX-License-Identifier: Apache-2.0
#include "model/chat_template.h"

#include <array>
#include <ctime>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "model/gguf.h"
#include "model/gguf_file.h"
#include "model/gguf_tokenizer.h"
#include "model/jinja_interpreter.h"
#include "model/jinja_lexer.h"
#include "model/jinja_parser.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using jinja::Value;

// tokenizer_config.json lists every added token: some 100 KB for known models.
constexpr std::size_t kTokenizerConfigBytesMax = 16U << 20;

// What transformers gives to templates.
constexpr std::array kTemplateTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

static_assert(jinja::kRenderedBytesMax <= kTextBytesMax, "a prompt can be encoded");

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

// The text of a special token: "..." or {"content": "..."}; empty when the model has none.
Result<std::string> special_token(const Json& config, const char* name) {
  const auto at = config.find(name);
  if (at == config.end() || at->is_null()) return std::string();
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && (*at)["content"].is_string()) {
    return (*at)["content"].get<std::string>();
  }
  return corrupt(std::string("'") + name + "' is not the text of a token");
}

// Those that `config` has, beside what is in `tokens` already.
Status read_special_tokens(const Json& config, SpecialTokens& tokens) {
  for (const char* const name : kTemplateTokens) {
    KVLANE_ASSIGN(std::string text, special_token(config, name));
    if (!text.empty()) tokens.emplace(name, std::move(text));
  }
  return {};
}

// "chat_template": one template, or several with names, of which "default" is taken.
Result<std::string> template_of(const Json& config) {
  const auto at = config.find("chat_template");
  if (at != config.end() && at->is_string()) return at->get<std::string>();
  if (at == config.end() || at->is_null()) return not_found("the model has no chat template");
  if (!at->is_array()) return corrupt("'chat_template' is neither a template nor a list of them");
  for (const Json& item : *at) {
    if (item.is_object() && item.value("name", Json()) == "default" &&
        item.value("template", Json()).is_string()) {
      return item["template"].get<std::string>();
    }
  }
  return not_found("none of the model's chat templates has the name 'default'");
}

Result<Json> read_tokenizer_config(const std::filesystem::path& path) {
  KVLANE_ASSIGN(const std::string text, read_text_file(path, kTokenizerConfigBytesMax));
  Json config = Json::parse(text, nullptr, false);
  if (!config.is_object()) return corrupt(path.string() + " is not a JSON object");
  return config;
}

// What is wrong with tokens matters where there is a template alone.
struct TemplateParts {
  Result<std::string> source = not_found("the model has no chat template");
  std::filesystem::path source_path;
  Result<SpecialTokens> tokens = SpecialTokens();
};

Result<TemplateParts> parts_of_gguf(const std::filesystem::path& path) {
  KVLANE_ASSIGN(const MappedFile mapped, MappedFile::open(path));
  KVLANE_ASSIGN(const GgufFile file, parse_gguf(mapped.bytes()));
  KVLANE_ASSIGN(GgufChat chat, gguf_chat(file));
  TemplateParts parts{.source_path = path};
  if (!chat.source.empty()) parts.source = std::move(chat.source);
  parts.tokens = std::move(chat.tokens);
  return parts;
}

// As transformers finds them.
Result<SpecialTokens> tokens_of(const Json& config, const std::filesystem::path& path) {
  SpecialTokens tokens;
  if (!config.contains("added_tokens_decoder")) {
    const std::filesystem::path old = path.parent_path() / "special_tokens_map.json";
    const Result<Json> map = read_tokenizer_config(old);
    if (!map.ok() && map.status().code() != Code::kNotFound) return map.status();
    if (map.ok()) {
      const Status status = read_special_tokens(*map, tokens);
      if (!status.ok()) return status.with_context(old.string());
    }
  }
  const Status status = read_special_tokens(config, tokens);
  if (!status.ok()) return status.with_context(path.string());
  return tokens;
}

// What tokenizer_config.json says, or without one the model's GGUF file.
Result<TemplateParts> parts_beside(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  const Result<Json> config = read_tokenizer_config(path);
  if (!config.ok() && config.status().code() != Code::kNotFound) return config.status();
  if (config.ok()) {
    return TemplateParts{
        .source = template_of(*config), .source_path = path, .tokens = tokens_of(*config, path)};
  }
  KVLANE_ASSIGN(const std::vector<std::filesystem::path> gguf, find_gguf(directory));
  if (gguf.empty()) return TemplateParts();
  Result<TemplateParts> parts = parts_of_gguf(gguf.front());
  if (!parts.ok()) return parts.status().with_context(gguf.front().string());
  return parts;
}

Value list_of(std::span<const ChatMessage> messages) {
  std::vector<Value> items;
  items.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    items.push_back(Value::dict(
        {{"role", Value::text(message.role)}, {"content", Value::text(message.content)}}));
  }
  return Value::list(std::move(items));
}

}  // namespace

struct ChatTemplate::Impl {
  jinja::Block block;
  SpecialTokens tokens;
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& directory) {
  KVLANE_ASSIGN(TemplateParts parts, parts_beside(directory));
  const std::filesystem::path path = directory / "chat_template.jinja";
  Result<std::string> source = read_text_file(path, jinja::kTemplateBytesMax);
  if (source.ok()) {
    parts.source = std::move(*source);
    parts.source_path = path;
  } else if (source.status().code() != Code::kNotFound) {
    return source.status();
  }
  if (!parts.source.ok()) return parts.source.status();
  KVLANE_ASSIGN(SpecialTokens tokens, std::move(parts.tokens));
  Result<ChatTemplate> parsed = parse(*parts.source, std::move(tokens));
  if (!parsed.ok()) return parsed.status().with_context(parts.source_path.string());
  return parsed;
}

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, SpecialTokens tokens) {
  KVLANE_ASSIGN(jinja::Block block, jinja::parse(source));
  return ChatTemplate(std::make_unique<const Impl>(Impl{std::move(block), std::move(tokens)}));
}

Result<std::string> ChatTemplate::render(std::span<const ChatMessage> messages,
                                         bool add_generation_prompt) const {
  std::size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    if (find_invalid_utf8(message.role) || find_invalid_utf8(message.content)) {
      return invalid_argument("message " + std::to_string(&message - messages.data()) +
                              " is not valid UTF-8");
    }
    bytes += message.role.size() + message.content.size();
  }
  if (bytes > jinja::kRenderedBytesMax) {
    return invalid_argument("the messages have " + std::to_string(bytes) +
                            " bytes; kvlane takes up to " +
                            std::to_string(jinja::kRenderedBytesMax));
  }
  jinja::Variables variables = {
      {"messages", list_of(messages)},
      {"add_generation_prompt", Value::boolean(add_generation_prompt)},
      // transformers passes these always, and None where there is nothing.
      {"tools", Value::none()},
      {"documents", Value::none()}};
  // Tokens that a model does not have are undefined.
  for (const auto& [name, text] : impl_->tokens) variables.emplace_back(name, Value::text(text));
  try {
    Result<std::string> prompt = jinja::render(impl_->block, std::move(variables), local_time);
    if (!prompt.ok()) return prompt.status().with_context("chat template");
    return prompt;
  } catch (const std::bad_alloc&) {
    return exhausted("not enough memory to render the chat template");
  }
}

}  // namespace kvlane
