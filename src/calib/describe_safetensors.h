// What is in this safetensors file? For `kvlane inspect FILE.safetensors`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/bytes.h"
#include "kvlane/status.h"

namespace kvlane {

// Describes a part of a checkpoint, or a file of KV tables, as a JSON object: "kind"
// ("safetensors" or "kv_tables"), "values" and "bytes" of all tensors together, and "tensors", each
// with "name", "dtype", "shape" and "bytes", by name. KV tables have "model_identity", "tokens" (of
// the text that they come from; null where the file has no such number) and "formats" before that.
// The header is checked completely; values
// are not looked at, but for those that say whose tables these are. Untrusted bytes: fails as
// parse_safetensors and parse_kv_tables do.
Result<std::string> describe_safetensors_json(ByteView file);

}  // namespace kvlane
