// Chat templates against Jinja, on fixtures made with it; what is refused; limits; where they are
// found.
// SPDX-License-Identifier: Apache-2.0
#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/test_paths.h"
#include "model/jinja_interpreter.h"
#include "model/jinja_lexer.h"
#include "model/jinja_parser.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr const char* kBosText = "<s>";
constexpr const char* kEos = "</s>";

std::string read_fixture(const std::string& name) {
  const auto path =
      std::filesystem::path(kSourceDir) / "tests" / "fixtures" / "chat_template" / name;
  Result<std::string> text = read_text_file(path, 1U << 20);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : std::string();
}

std::vector<ChatMessage> messages_of(const Json& pairs) {
  std::vector<ChatMessage> messages;
  for (const Json& pair : pairs) messages.push_back({pair.at(0), pair.at(1)});
  return messages;
}

Result<std::string> render(std::string_view source, const std::vector<ChatMessage>& messages = {},
                           bool add_generation_prompt = true) {
  KVLANE_ASSIGN(const ChatTemplate parsed,
                ChatTemplate::parse(source, {{"bos_token", kBosText}, {"eos_token", kEos}}));
  return parsed.render(messages, add_generation_prompt);
}

// What Jinja prints, or an error of the caller's or the template's making where Jinja raises one.
void expect_like_jinja(const Result<std::string>& output, const Json& item) {
  if (!item.at("output").is_null()) {
    ASSERT_TRUE(output.ok()) << output.status().message();
    EXPECT_EQ(*output, item.at("output").get<std::string>());
    return;
  }
  ASSERT_FALSE(output.ok()) << *output;
  EXPECT_TRUE(output.status().code() == Code::kInvalidArgument ||
              output.status().code() == Code::kCorrupt)
      << output.status().message();
  EXPECT_THAT(output.status().message(), HasSubstr("line "));
}

TEST(ChatTemplateTest, ConversationsRenderLikeJinja) {
  for (const Json& item : Json::parse(read_fixture("conversations.json"))) {
    SCOPED_TRACE(item.at("template").get<std::string>() + " " +
                 item.at("messages").dump(-1, ' ', true));
    const std::string source = read_fixture(item.at("template").get<std::string>() + ".jinja");
    expect_like_jinja(
        render(source, messages_of(item.at("messages")), item.at("add_generation_prompt")), item);
  }
}

TEST(ChatTemplateTest, SnippetsRenderLikeJinja) {
  const Json document = Json::parse(read_fixture("snippets.json"));
  const std::vector<ChatMessage> messages = messages_of(document.at("messages"));
  ASSERT_GT(document.at("snippets").size(), 80U);
  for (const Json& item : document.at("snippets")) {
    SCOPED_TRACE(item.at("source").dump(-1, ' ', true));
    expect_like_jinja(render(item.at("source").get<std::string>(), messages), item);
  }
}

struct TemplateRefusal {
  const char* source;
  const char* words;
};

// Valid Jinja that kvlane does not do: named, with its line.
TEST(ChatTemplateTest, NamesWhatItDoesNotDo) {
  const TemplateRefusal refusals[] = {
      {"a\n{% macro f(x) %}{% endmacro %}", "line 2: the tag 'macro'"},
      {"{% include 'x' %}", "the tag 'include'"},
      {"{% raw %}{{ x }}{% endraw %}", "the tag 'raw'"},
      {"{% generation %}x{% endgeneration %}", "the tag 'generation'"},
      {"{% set x %}a{% endset %}", "a 'set' around a block"},
      {"{% set x = 1, 2 %}", "several values without brackets"},
      {"{% for x in y recursive %}{% endfor %}", "a recursive 'for'"},
      {"\n\n{{ 1.5 }}", "line 3: a number other than a decimal whole number"},
      {"{{ 0x10 }}", "a number other than a decimal whole number"},
      {"{{ 4 / 2 }}", "the operator '/'"},
      {"{{ 2 ** 3 }}", "the operator '**'"},
      {"{{ f(*x) }}", "arguments with '*'"},
      {"{{ x.y()() }}", "a call of something that has no name"},
      {"{{ 'a\\N{DASH}' }}", "the escape '\\N'"},
      {"{{ '\\ud83d' }}", "a surrogate"},
      {"{{ 'a%s' % 1 }}", "formatting a string with '%'"},
      {"{{ [1] }}", "printing a list"},
      {"{{ messages }}", "printing a list"},
      {"{{ 'a'|escape }}", "the filter 'escape'"},
      {"{{ [1]|groupby('a') }}", "the filter 'groupby'"},
      {"{{ ['a']|map('escape')|list }}", "the filter 'escape'"},
      {"{{ [1]|select(test='odd')|list }}", "the filter 'select' with arguments"},
      {"{{ [{}]|selectattr('a', test='defined')|list }}", "the filter 'selectattr' with arguments"},
      {"{{ ['a']|map(filter='upper')|list }}", "the filter 'map' with arguments"},
      {"{{ ['a']|map('upper', default='x')|list }}", "the filter 'map' with arguments"},
      {"{{ ['a']|map('replace', 'a', 'b')|list }}", "the filter 'map' with arguments"},
      {"{{ [[1]]|map(attribute=0)|list }}", "a number as the attribute"},
      {"{% set x = messages|select %}", "without '| list' behind it"},
      {"{{ [1]|map('string') }}", "without '| list' behind it"},
      {"{{ ([1]|select)|length }}", "without '| list' behind it"},
      {"{{ ([1]|select)[0] }}", "without '| list' behind it"},
      {"{% if [1]|select %}{% endif %}", "without '| list' behind it"},
      {"{{ [[1]|select] }}", "without '| list' behind it"},
      {"{{ 1 is divisibleby 2 }}", "the test 'divisibleby'"},
      {"{{ 'a'.title() }}", "the string method 'title'"},
      {"{{ {}.pop('a') }}", "the dict method 'pop'"},
      {"{{ [].append(1) }}", "'append'"},
      {"{{ {'items': 1}.items }}", "the method 'items' without a call"},
      {"{{ cycler('a') }}", "the function 'cycler'"},
      {"{{ 'h\u00e9'|upper }}", "beyond ASCII"},
      {"{{ [] < [] }}", "'<' of a list"},
      {"{{ 9223372036854775807 + 1 }}", "beyond 64 bits"},
      {"{{ {1: 2} }}", "a number as the key of a dict"},
      {"{{ 1|tojson(sort_keys=true) }}", "other arguments than 'indent'"},
      {"{{ namespace({'a': 1}) }}", "arguments without names"},
      {"{{ strftime_now('%c') }}", "'strftime_now' with '%c'"},
  };
  for (const TemplateRefusal& refusal : refusals) {
    SCOPED_TRACE(refusal.source);
    const Result<std::string> output = render(refusal.source);
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.status().code(), Code::kUnsupported) << output.status().message();
    EXPECT_THAT(output.status().message(), HasSubstr(refusal.words));
    EXPECT_THAT(output.status().message(), HasSubstr("line "));
  }
}

TEST(ChatTemplateTest, ErrorsSayTheLine) {
  const TemplateRefusal errors[] = {
      {"a\nb\n{{ 'x' + 1 }}", "line 3: '+' does not work on a string and a number"},
      {"{% for m in messages %}\n{{ m.x.y }}{% endfor %}", "line 2: 'x' is undefined"},
      {"\n{{ messages[7].role }}", "line 2: an item that does not exist is used"},
      {"{% if true %}\n\n{% for %}", "line 3: expected the name of a variable, found '%}'"},
      {"{{ 'a'|trim(1, 2) }}", "takes at most 1 arguments, not 2"},
      {"{{ 'a'|trim(characters='x') }}", "has no argument 'characters'"},
      {"\n{{ 'open }}", "line 2: a string does not end"},
  };
  for (const TemplateRefusal& error : errors) {
    SCOPED_TRACE(error.source);
    const Result<std::string> output = render(error.source, {{"user", "Hi"}});
    ASSERT_FALSE(output.ok());
    EXPECT_THAT(output.status().message(), HasSubstr(error.words));
  }
}

TEST(ChatTemplateTest, RaisedExceptionsAreTheCallersFault) {
  const Result<std::string> output = render("\n{{ raise_exception('Roles must alternate!') }}");
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(output.status().message(),
            "chat template: line 2: the template refuses: Roles must alternate!");
}

TEST(ChatTemplateTest, TokensThatAModelLacksAreUndefined) {
  const Result<ChatTemplate> parsed =
      ChatTemplate::parse("{{ bos_token is defined }}{{ eos_token }}", {{"eos_token", "E"}});
  ASSERT_TRUE(parsed.ok());
  const Result<std::string> output = parsed->render({}, false);
  ASSERT_TRUE(output.ok());
  EXPECT_EQ(*output, "FalseE");
}

TEST(ChatTemplateTest, DatesComeFromTheClock) {
  const Result<jinja::Block> block = jinja::parse("{{ strftime_now('%d %b %Y, 100%%') }}");
  ASSERT_TRUE(block.ok());
  const jinja::Clock clock = [] {
    std::tm time{};
    time.tm_year = 124;
    time.tm_mon = 6;
    time.tm_mday = 4;
    return time;
  };
  const Result<std::string> output = jinja::render(*block, {}, clock);
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "04 Jul 2024, 100%");
}

TEST(ChatTemplateTest, RefusesMessagesThatAreNotUtf8) {
  const Result<std::string> output = render("x", {{"user", "ok"}, {"user", "a\xFF"}});
  ASSERT_FALSE(output.ok());
  EXPECT_EQ(output.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(output.status().message(), "message 1 is not valid UTF-8");
}

TEST(ChatTemplateTest, LargeMessagesAreNoProblem) {
  const std::string text(8U << 20, 'x');
  const Result<std::string> output =
      render(read_fixture("thinking.jinja"), {{"user", text}}, false);
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "<|im_start|>user\n" + text + "<|im_end|>\n");

  const std::vector<ChatMessage> many(5000, ChatMessage{"user", "Hi"});
  const Result<std::string> long_talk = render(read_fixture("thinking.jinja"), many, false);
  ASSERT_TRUE(long_talk.ok()) << long_talk.status().message();
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int time = 0; time < times; ++time) all += text;
  return all;
}

// Every way to nest, to run long or to grow ends in an error, not in a crash.
TEST(ChatTemplateTest, LimitsAreErrors) {
  const std::string sources[] = {
      "{{ " + repeated("(", 10000) + "1" + repeated(")", 10000) + " }}",
      "{{ " + repeated("[", 10000) + repeated("]", 10000) + " }}",
      "{{ " + repeated("{'a':", 10000) + "1" + repeated("}", 10000) + " }}",
      "{{ " + repeated("not ", 10000) + "1 }}",
      "{{ " + repeated("-", 10000) + "1 }}",
      "{{ " + repeated("1 if 1 else ", 10000) + "1 }}",
      "{{ " + repeated("a[", 10000) + "1" + repeated("]", 10000) + " }}",
      "{{ " + repeated("f(", 10000) + repeated(")", 10000) + " }}",
      repeated("{% if 1 %}", 10000) + repeated("{% endif %}", 10000),
      repeated("{% for x in [1] %}", 10000) + repeated("{% endfor %}", 10000),
      std::string(jinja::kTemplateBytesMax + 1, 'x'),
      "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}",
      "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}",
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{% for i in range(99999) %}" + std::string(1000, 'x') + "{% endfor %}",
      "{{ 'a' * 99999999999 }}",
      "{{ range(100001) }}",
      "{{ ('a' * 1000000).split('a')|length }}",
  };
  for (const std::string& source : sources) {
    SCOPED_TRACE(source.substr(0, 80));
    const Result<std::string> output = render(source);
    ASSERT_FALSE(output.ok());
    EXPECT_EQ(output.status().code(), Code::kExhausted) << output.status().message();
  }
}

TEST(ChatTemplateTest, LongChainsAreNotNesting) {
  const Result<std::string> sum = render("{{ 0" + repeated(" + 1", 10000) + " }}");
  ASSERT_TRUE(sum.ok()) << sum.status().message();
  EXPECT_EQ(*sum, "10000");
  const Result<std::string> filters = render("{{ 'a'" + repeated("|trim", 10000) + " }}");
  ASSERT_TRUE(filters.ok()) << filters.status().message();
  EXPECT_EQ(*filters, "a");
}

// Leak checkers see to it that this is freed.
TEST(ChatTemplateTest, NamespacesMayHoldEachOther) {
  const Result<std::string> output = render(
      "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = [b] %}{% set a.a = a %}"
      "{{ a.b[0].a.a is defined }}");
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "True");
}

TEST(ChatTemplateTest, EveryPrefixOfATemplateEndsCleanly) {
  const std::vector<ChatMessage> messages = {{"system", "s"}, {"user", "u"}, {"assistant", "a"}};
  for (const char* name : {"chatml.jinja", "headers.jinja", "thinking.jinja"}) {
    const std::string source = read_fixture(name);
    for (std::size_t bytes = 0; bytes < source.size(); ++bytes) {
      const Result<std::string> output = render(source.substr(0, bytes), messages);
      EXPECT_TRUE(output.ok() || output.status().code() != Code::kInternal);
    }
  }
}

// ---- load ----

class ChatTemplateLoadTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file(directory_ / name, as_byte_view(text)).ok());
  }
  Result<std::string> render_loaded() {
    KVLANE_ASSIGN(const ChatTemplate loaded, ChatTemplate::load(directory_));
    return loaded.render({}, false);
  }

  const std::filesystem::path directory_ =
      std::filesystem::path(testing::TempDir()) /
      (std::string("kvlane_chat_template_") +
       testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(ChatTemplateLoadTest, FromTheTokenizerConfig) {
  write("tokenizer_config.json",
        R"({"chat_template": "{{ bos_token }}-{{ eos_token }}", "bos_token": "B",
            "eos_token": {"content": "E", "special": true}})");
  const Result<std::string> output = render_loaded();
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "B-E");
}

// All that transformers gives to a template. Old checkpoints list theirs in another file, which
// counts where tokenizer_config.json lists no added tokens.
TEST_F(ChatTemplateLoadTest, SpecialTokensAreThoseOfTransformers) {
  const auto rendered = [this](const std::string& config) {
    write("tokenizer_config.json", config);
    const Result<std::string> output = render_loaded();
    return output.ok() ? *output : std::string("no template");
  };
  write("chat_template.jinja",
        "{{ unk_token }}{{ sep_token }}{{ pad_token }}{{ cls_token }}{{ mask_token }}"
        "{{ mask_token is defined }}{{ additional_special_tokens is defined }}");
  const std::string tokens =
      R"({"unk_token": "U", "sep_token": "S", "pad_token": {"content": "P"}, "cls_token": "C",
          "additional_special_tokens": ["A"])";
  EXPECT_EQ(rendered(tokens + "}"), "USPCFalseFalse");
  write("special_tokens_map.json", R"({"pad_token": "p", "mask_token": {"content": "m"}})");
  EXPECT_EQ(rendered(tokens + "}"), "USpCmTrueFalse");
  EXPECT_EQ(rendered(tokens + R"(, "added_tokens_decoder": {}})"), "USPCFalseFalse");
  write("special_tokens_map.json", R"({"pad_token": 7})");
  EXPECT_EQ(rendered(tokens + "}"), "no template");
}

TEST_F(ChatTemplateLoadTest, AFileOfItsOwnComesFirst) {
  write("tokenizer_config.json",
        R"({"chat_template": "config", "bos_token": null, "eos_token": "E"})");
  write("chat_template.jinja", "file{{ bos_token }}{{ eos_token }}");
  const Result<std::string> output = render_loaded();
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "fileE");
}

TEST_F(ChatTemplateLoadTest, AFileAloneIsEnough) {
  write("chat_template.jinja", "file");
  const Result<std::string> output = render_loaded();
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "file");
}

TEST_F(ChatTemplateLoadTest, OfSeveralTheDefault) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "rag", "template": "r"},
                                {"name": "default", "template": "d"}]})");
  const Result<std::string> output = render_loaded();
  ASSERT_TRUE(output.ok()) << output.status().message();
  EXPECT_EQ(*output, "d");
}

TEST_F(ChatTemplateLoadTest, NoneIsNotFound) {
  EXPECT_EQ(render_loaded().status().code(), Code::kNotFound);
  write("tokenizer_config.json", R"({"bos_token": "B"})");
  const Result<std::string> output = render_loaded();
  EXPECT_EQ(output.status().code(), Code::kNotFound);
  EXPECT_EQ(output.status().message(), "the model has no chat template");
}

TEST_F(ChatTemplateLoadTest, BadFilesAreCorrupt) {
  for (const char* text :
       {"", "[]", "{\"chat_template\": 5}", "{\"chat_template\": \"x\", \"bos_token\": 7}",
        "{\"chat_template\": \"{{\"}"}) {
    write("tokenizer_config.json", text);
    const Result<std::string> output = render_loaded();
    ASSERT_FALSE(output.ok()) << text;
    EXPECT_EQ(output.status().code(), Code::kCorrupt) << text << ": " << output.status().message();
  }
}

}  // namespace
}  // namespace kvlane
