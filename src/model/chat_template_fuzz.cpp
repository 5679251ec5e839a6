// Any bytes as a chat template: parsing and rendering end with a prompt or a clean error.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/chat_template.h"
#include "model/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed =
      kvlane::ChatTemplate::parse(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  if (!parsed.ok()) {
    if (parsed.status().code() == kvlane::Code::kInternal) std::abort();
    return 0;
  }
  const std::array<kvlane::ChatMessage, 3> messages = {{
      {"system", " S\xC3\xA9 \n"},
      {"user", "Hi, <t>you</t>"},
      {"assistant", "<think>a</think>b"},
  }};
  const auto prompt = parsed->render(messages, true);
  if (!prompt.ok() && prompt.status().code() == kvlane::Code::kInternal) std::abort();
  // Text in, text out: no operation may cut a character.
  if (prompt.ok() && kvlane::find_invalid_utf8(*prompt)) std::abort();
  return 0;
}
