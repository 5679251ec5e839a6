// Rotation of a GGUF file: four scalings, two of which are tensors.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/config_fields.h"
#include "model/gguf_config_writer.h"

namespace kvlane {
namespace {

constexpr const char* kScalingType = "rope.scaling.type";
constexpr const char* kFactor = "rope.scaling.factor";
constexpr const char* kOriginal = "rope.scaling.original_context_length";
constexpr const char* kAttention = "rope.scaling.attn_factor";
constexpr const char* kYarnAttention = "rope.scaling.yarn_attn_factor";
constexpr const char* kYarnShare = "rope.scaling.yarn_ext_factor";
constexpr const char* kYarnLog = "rope.scaling.yarn_log_multiplier";

}  // namespace

// As llama.cpp reads them: a factor without a type is linear, 0 is none, and it has an older name.
void GgufConfigWriter::rope() {
  copy_number("rope_theta", "rope.freq_base");
  const std::string_view type = text(kScalingType).value_or("linear");
  double factor = number(kFactor).value_or(number("rope.scale_linear").value_or(0));
  if (factor == 0) factor = 1;
  if (type != "yarn" && number(kYarnShare).value_or(0) > 0) {
    return fail(unsupported(quoted(kYarnShare) + " is above 0 without YaRN"));
  }
  if (has_tensor(kRopeDivisors) || has_tensor(kRopeLongFactors) || has_tensor(kRopeShortFactors)) {
    return rope_of_tensors(type, factor);
  }
  if (type == "yarn") return rope_yarn(factor);
  if (type == "longrope") {
    return fail(corrupt(quoted(kScalingType) + " is longrope, and it has no '" +
                        std::string(kRopeLongFactors) + "'"));
  }
  if (type != "none" && type != "linear") {
    return fail(unsupported(quoted(kScalingType) + " is " + in_quotes(std::string(type)) +
                            "; kvlane reads none, linear, yarn and longrope"));
  }
  if (number(kAttention).value_or(1) != 1) {
    return fail(unsupported(quoted(kAttention) + " is not 1, with neither YaRN nor LongRoPE"));
  }
  if (type == "none" || factor == 1) return;
  set_rope_scaling({{"rope_type", "linear"}, {"factor", factor}});
}

// Numbers that frequencies are divided by, one for each pair.
std::vector<float> GgufConfigWriter::divisors(std::string_view name) {
  const std::string quoted_name = "'" + std::string(name) + "'";
  const auto at = file_.tensors.find(name);
  if (at == file_.tensors.end()) {
    fail(corrupt("it has no " + quoted_name));
    return {};
  }
  const GgufTensor& tensor = at->second;
  const int pairs = head_length() / 2;
  if (tensor.type != GgufType::kF32 || tensor.shape.size() != 1 || tensor.shape[0] != pairs) {
    fail(corrupt(quoted_name + " is no list of " + std::to_string(pairs) + " F32"));
    return {};
  }
  std::vector<float> values(static_cast<std::size_t>(pairs));
  dequantise(tensor, 0, values.size(), values.data());
  if (!std::all_of(values.begin(), values.end(),
                   [](float value) { return std::isfinite(value) && value > 0; })) {
    fail(corrupt(quoted_name + " has a number that is not above zero"));
  }
  return values;
}

// LongRoPE's two lists; or one for all lengths, which is how llama.cpp writes the scaling of Llama
// 3.1 and later.
void GgufConfigWriter::rope_of_tensors(std::string_view type, double factor) {
  const bool one = has_tensor(kRopeDivisors);
  const std::string first(one ? kRopeDivisors : kRopeLongFactors);
  if (one && (has_tensor(kRopeLongFactors) || has_tensor(kRopeShortFactors))) {
    return fail(unsupported("it has '" + first + "' and factors of LongRoPE; kvlane reads one"));
  }
  const bool plain = type == "none" || type == "linear";
  if (factor != 1 || !(plain || (!one && type == "longrope"))) {
    return fail(unsupported("it has '" + first + "' and " + quoted(kScalingType) + " or " +
                            quoted(kFactor) + "; kvlane reads one of them"));
  }
  nlohmann::json scaling = {{"rope_type", "longrope"},
                            {"long_factor", divisors(first)},
                            {"short_factor", divisors(one ? kRopeDivisors : kRopeShortFactors)},
                            {"attention_factor", number(kAttention).value_or(1)}};
  if (one) scaling["factor"] = 1;
  if (number(kOriginal)) copy_integer("original_max_position_embeddings", kOriginal);
  set_rope_scaling(std::move(scaling));
}

// `yarn_attn_factor` is attention_factor of config.json; `attn_factor` is what llama.cpp multiplies
// YaRN's own by.
void GgufConfigWriter::rope_yarn(double factor) {
  nlohmann::json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
  if (number(kOriginal)) copy_integer("original_max_position_embeddings", kOriginal);
  if (const auto fast = number("rope.scaling.yarn_beta_fast")) scaling["beta_fast"] = *fast;
  if (const auto slow = number("rope.scaling.yarn_beta_slow")) scaling["beta_slow"] = *slow;
  const double share = number(kYarnShare).value_or(1);
  if (share >= 0 && share != 1) {  // below 0 it says nothing
    return fail(unsupported(quoted(kYarnShare) + " is not 1"));
  }
  if (number(kYarnLog).value_or(0) != 0) {
    return fail(unsupported(quoted(kYarnLog) + " is not 0"));
  }
  const std::optional<double> whole = number(kYarnAttention);
  const double multiple = number(kAttention).value_or(1);
  if (whole && multiple != 1) {
    return fail(unsupported("it has " + quoted(kAttention) + " and " + quoted(kYarnAttention) +
                            "; kvlane reads one of them"));
  }
  const double own = factor > 1 ? 0.1 * std::log(factor) + 1 : 1;
  if (whole || multiple != 1) scaling["attention_factor"] = whole.value_or(multiple * own);
  set_rope_scaling(std::move(scaling));
}

}  // namespace kvlane
