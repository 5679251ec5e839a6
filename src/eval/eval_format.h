// One row of an evaluation: how the KV cache keeps values, and which tokens it keeps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "cache/eviction.h"
#include "kvlane/status.h"
#include "quant/kv_format.h"

namespace kvlane {

struct EvalFormat {
  EvalFormat() = default;
  EvalFormat(std::nullptr_t /*rows*/) {}
  template <class Format>
  EvalFormat(std::shared_ptr<Format> format) : kv(std::move(format)) {}

  // "bf16", "zack:keep=0.5", "h2o:keep=0.5,recent=0.5", "zack:keep=0.5+h2o:keep=0.5,recent=0.5".
  std::string name() const;
  // Whether this is the cache that others are compared with.
  bool is_reference() const { return !kv && !eviction; }

  std::shared_ptr<const KvFormat> kv;    // null: rows of 16 bits
  std::optional<EvictionRule> eviction;  // at the end of a prompt
};

// The row that `text` says: a KV format, and behind "+" or alone a rule of eviction.
Result<EvalFormat> make_eval_format(std::string_view text, const KvFormatContext& context);

}  // namespace kvlane
