// Choosing forms: as users say, or as a plan for the longest context says.
// SPDX-License-Identifier: Apache-2.0
#include "restore/state_forms.h"

#include <algorithm>
#include <charconv>

#include "model/model.h"
#include "plan/machine_profile.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

// Layers that longer sequences, too, are quicker to recompute than to bring back are not stored:
// attention makes recomputing them dearer, so shorter ones want no more layers than this plan.
StateForms planned(const MachineProfile& profile, int layers, int tokens) {
  RestoreCosts costs = restore_costs(profile, tokens, profile.read_rate);
  // Of the forms those that lose nothing and no codec changes: it is chosen apart.
  std::erase_if(costs.forms, [](const RestoreForm& form) {
    return form.name == "hidden:int8" || form.name.find('+') != std::string::npos;
  });
  const RestorePlan plan = plan_restore(costs).best;
  StateForms forms{.hidden_first = plan.recomputed,
                   .hidden_last = plan.recomputed,
                   .slabs_first = plan.recomputed};
  for (const RestoreRun& run : plan.runs) {
    if (costs.forms[run.form].source != RestoreSource::kHidden) continue;
    forms.hidden_last += run.layers;
    forms.slabs_first += run.layers;
  }
  // Where nothing is worth reading, a faster disk or a longer context may find it so.
  return plan.recomputed == layers ? StateForms() : forms;
}

}  // namespace

Result<StateForms> make_state_forms(std::string_view text, int layers,
                                    const MachineProfile* profile, int tokens) {
  using Values = HiddenFormat::Values;
  if (text == "kv") return StateForms();
  if (text == "hidden" || text == "hidden:int8") {
    const Values values = text == "hidden" ? Values::kExact : Values::kInt8;
    return StateForms{values, std::min(1, layers), layers, layers};
  }
  if (text == kAutoForm) {
    if (profile != nullptr) return planned(*profile, layers, tokens);
    return invalid_argument("form auto needs a profile of this machine");
  }
  constexpr std::string_view kSome = "hidden=";
  if (text.starts_with(kSome)) {
    const std::string_view number = text.substr(kSome.size());
    int some = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), some);
    if (error == std::errc() && end == number.data() + number.size() && some >= 1 &&
        some <= layers) {
      return StateForms{Values::kExact, 1, some, some};
    }
    return invalid_argument("hidden=N wants N from 1 to " + std::to_string(layers) +
                            ", the number of layers, not '" + std::string(number) + "'");
  }
  return invalid_argument("unknown form of stored state '" + std::string(text) +
                          "'; known: " + kStateFormNames);
}

StateForms smaller_forms(const Model& model, const KvFormat* format) {
  const KvShape shape = model.config().kv_shape();
  const HiddenFormat hidden(HiddenFormat::Values::kExact, hidden_type(model),
                            model.config().hidden);
  const std::size_t rows = std::size_t(shape.layers) * kBlockTokens * hidden.stored_bytes();
  const std::size_t slabs =
      format != nullptr ? format->slab_sizes().block_bytes() : shape.block_bytes();
  if (rows >= slabs) return {};
  return {HiddenFormat::Values::kExact, std::min(1, shape.layers), shape.layers, shape.layers};
}

}  // namespace kvlane
