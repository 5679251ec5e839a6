// The formats by name.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "quant/cachegen.h"
#include "quant/format_text.h"
#include "quant/hack_format.h"
#include "quant/kv_format.h"
#include "quant/kvquant.h"
#include "quant/linear_format.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

using Made = Result<std::shared_ptr<const KvFormat>>;

Made make_rows(FormatText text, const KvFormatContext& /*context*/) {
  KVLANE_TRY(text.finish());
  return std::shared_ptr<const KvFormat>();
}

struct Maker {
  std::string_view name;
  Made (*make)(FormatText text, const KvFormatContext& context);
};

constexpr std::array kMakers = {
    Maker{"bf16", make_rows},
    Maker{"fp8_e4m3", make_linear_format},
    Maker{"fp8_e5m2", make_linear_format},
    Maker{"mxfp8_e4m3", make_linear_format},
    Maker{"mxfp8_e5m2", make_linear_format},
    Maker{"mxfp6_e2m3", make_linear_format},
    Maker{"mxfp6_e3m2", make_linear_format},
    Maker{"mxfp4", make_linear_format},
    Maker{"int8", make_linear_format},
    Maker{"int4", make_linear_format},
    Maker{"kivi", make_linear_format},
    Maker{"hack", make_hack_format},
    Maker{"cachegen", make_cachegen},
    Maker{"kvquant", make_kvquant},
    Maker{"zack", make_zack_format},
};

// A word instead of parameters, and what it stands for; more parameters may follow both.
struct Preset {
  std::string_view name, text;
};
constexpr std::array kPresets = {Preset{"hack:paper", "hack:p=64"}};

std::string without_preset(std::string_view text) {
  for (const Preset& preset : kPresets) {
    const std::string_view rest = text.substr(std::min(text.size(), preset.name.size()));
    if (text.starts_with(preset.name) &&
        (rest.empty() || rest.front() == ',' || rest.front() == '+')) {
      return std::string(preset.text) + std::string(rest);
    }
  }
  return std::string(text);
}

}  // namespace

Result<std::shared_ptr<const KvFormat>> make_kv_format(std::string_view text,
                                                       const KvFormatContext& context) {
  KVLANE_ASSIGN(FormatText parsed, FormatText::parse(without_preset(text)));
  for (const Maker& maker : kMakers) {
    if (maker.name == parsed.name()) return maker.make(std::move(parsed), context);
  }
  return invalid_argument("there is no KV format '" + parsed.name() + "'; known are " +
                          std::string(kv_format_names()));
}

std::string_view kv_format_names() {
  static const std::string names = [] {
    std::string text;
    for (const Maker& maker : kMakers) {
      if (!text.empty()) text += ", ";
      text += maker.name;
    }
    return text;
  }();
  return names;
}

}  // namespace kvlane
