// Matching through PCRE2's just-in-time compiler, with every way it can fail made an error.
// SPDX-License-Identifier: Apache-2.0
#include "model/split_rule.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <limits>
#include <string>

#include "model/pattern_dialect.h"

namespace kvlane {
namespace {

// Steps of one match: room for trying every byte of the text a few times, as the known rules do on
// long runs of white space, but not for patterns that explode. The constant is PCRE2's own default.
constexpr std::uint64_t kMatchStepsBase = 10'000'000;
constexpr std::uint64_t kMatchStepsPerByte = 16;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

PCRE2_SPTR code_units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct SplitRule::Impl {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

SplitRule::SplitRule(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
SplitRule::SplitRule(SplitRule&&) noexcept = default;
SplitRule& SplitRule::operator=(SplitRule&&) noexcept = default;
SplitRule::~SplitRule() = default;

Result<SplitRule> SplitRule::compile(std::string_view pattern) {
  KVLANE_ASSIGN(const std::string translated, to_pcre2_pattern(pattern));
  const std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(
      pcre2_compile_context_create(nullptr));
  if (context == nullptr) return exhausted("not enough memory to compile a split rule");
  // What '.' leaves out must not depend on how the library was built.
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(code_units(translated), translated.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset,
                                 context.get()));
  if (impl->code == nullptr) {
    return unsupported("the split rule does not compile: " + error_text(error));
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(impl->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) return unsupported("the split rule matches the empty text");
  // Where no executable memory may be had, pcre2_match interprets: slower, with the same result.
  static_cast<void>(pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE));
  return SplitRule(std::move(impl));
}

Result<SplitRule> SplitRule::of_literal(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80 && std::isalnum(byte) == 0) pattern += '\\';
    pattern += c;
  }
  return compile(pattern);
}

Status SplitRule::split(std::string_view text, const PieceSink& sink) const {
  return scan(text, [&](std::string_view piece, bool /*is_match*/) { return sink(piece); });
}

Status SplitRule::scan(std::string_view text, const SpanSink& sink) const {
  const std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(
      pcre2_match_context_create(nullptr));
  if (data == nullptr || context == nullptr) return exhausted("not enough memory to split a text");
  const std::uint64_t steps = kMatchStepsBase + kMatchStepsPerByte * text.size();
  pcre2_set_match_limit(context.get(), static_cast<std::uint32_t>(std::min<std::uint64_t>(
                                           steps, std::numeric_limits<std::uint32_t>::max())));

  std::size_t done = 0;
  while (done < text.size()) {
    // The text was validated once; validating it for each match would make this quadratic.
    const int rc = pcre2_match(impl_->code.get(), code_units(text), text.size(), done,
                               PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, data.get(), context.get());
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) return exhausted("a split rule failed on this text: " + error_text(rc));
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data.get());
    if (match[0] > done) KVLANE_TRY(sink(text.substr(done, match[0] - done), false));
    KVLANE_TRY(sink(text.substr(match[0], match[1] - match[0]), true));
    done = match[1];
  }
  return done < text.size() ? sink(text.substr(done), false) : Status();
}

}  // namespace kvlane
