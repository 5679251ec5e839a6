// Formats that code all KV heads of a layer together, for ranks that share heads out.
//
// What such a format has of a token (limits, outliers, scales) is over the channels of all heads,
// so there is no slab of some of them: every rank of a stage keeps whole slabs, and reads of them
// the pages of its own heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "quant/kv_format.h"

namespace kvlane {

// What such a format is besides a KvFormat.
class HeadsTogether {};

bool codes_heads_together(const KvFormat& format);

// The format that `text` says for a rank with `count` of the model's KV heads, from `first` on:
// slabs have these heads, or all where the format codes them together, as shape().kv_heads says.
// Null for "bf16". `whole`: of all heads. Errors are those of make_kv_format().
Result<std::shared_ptr<const KvFormat>> make_rank_format(std::string_view text,
                                                         const KvFormatContext& whole, int first,
                                                         int count);

}  // namespace kvlane
