// Names and lengths of rows in extents.
// SPDX-License-Identifier: Apache-2.0
#include "restore/hidden_extents.h"

#include <algorithm>

namespace kvlane {

void describe_hidden(const HiddenFormat& hidden, ExtentHead& head) {
  head.key.kind = ExtentKind::kHidden;
  head.format = hidden.extent_format();
  head.codec = "none";
  head.type = hidden.type();
  head.tokens = kBlockTokens;
  head.heads = 1;
  head.width = hidden.hidden();
  head.rope_applied = false;
  head.sealed = false;
  head.tables = 0;
}

std::optional<HiddenFormat> stored_hidden_format(const ExtentHead& head, const Model& model) {
  for (const auto values : {HiddenFormat::Values::kExact, HiddenFormat::Values::kInt8}) {
    const HiddenFormat format(values, hidden_type(model), model.config().hidden);
    ExtentHead wanted;
    describe_hidden(format, wanted);
    const std::size_t bytes = kBlockTokens * format.stored_bytes();
    const bool same =
        head.key.kind == wanted.key.kind && head.format == wanted.format &&
        head.codec == wanted.codec && head.type == wanted.type && head.tokens == wanted.tokens &&
        head.width == wanted.width && head.layer + head.layers() <= model.whole_config().layers &&
        std::all_of(head.parts.begin(), head.parts.end(), [&](const ExtentPart& part) {
          return part.k_bytes == bytes && part.v_bytes == 0;
        });
    if (same) return format;
  }
  return std::nullopt;
}

}  // namespace kvlane
