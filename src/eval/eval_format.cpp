// Names, and what they say.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_format.h"

#include "cache/sparse_layout.h"

namespace kvlane {

std::string EvalFormat::name() const {
  if (!eviction) return kv ? kv->name() : "bf16";
  return (kv ? kv->name() + "+" : "") + eviction->name();
}

Result<EvalFormat> make_eval_format(std::string_view text, const KvFormatContext& context) {
  const std::size_t plus = text.rfind('+');
  const std::string_view last = plus == std::string_view::npos ? text : text.substr(plus + 1);
  EvalFormat format;
  if (!names_eviction_rule(last)) {
    KVLANE_ASSIGN(format.kv, make_kv_format(text, context));
    return format;
  }
  KVLANE_ASSIGN(format.eviction, make_eviction_rule(last));
  if (plus != std::string_view::npos) {
    KVLANE_ASSIGN(format.kv, make_kv_format(text.substr(0, plus), context));
  }
  KVLANE_TRY(SparseLayout::create(context.shape, format.kv.get()).status());
  return format;
}

}  // namespace kvlane
