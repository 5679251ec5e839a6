// Asks the format of all heads first: it knows whether there are slabs of less.
// SPDX-License-Identifier: Apache-2.0
#include "quant/heads_together.h"

namespace kvlane {

bool codes_heads_together(const KvFormat& format) {
  return dynamic_cast<const HeadsTogether*>(&format) != nullptr;
}

Result<std::shared_ptr<const KvFormat>> make_rank_format(std::string_view text,
                                                         const KvFormatContext& whole, int first,
                                                         int count) {
  KVLANE_ASSIGN(std::shared_ptr<const KvFormat> format, make_kv_format(text, whole));
  if (format == nullptr || count == whole.shape.kv_heads || codes_heads_together(*format)) {
    return format;
  }
  KvFormatContext part = whole;
  part.heads = {first, whole.shape.kv_heads};
  part.shape.kv_heads = count;
  return make_kv_format(text, part);
}

}  // namespace kvlane
