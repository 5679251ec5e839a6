// Values as JSON, in the form of Python's json.dumps.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "kvlane/status.h"
#include "model/jinja_value.h"

namespace kvlane::jinja {

// With ensure_ascii=False; a negative `indent` means one line with ", " and ": ". Python's errors
// are kInvalidArgument (undefined and functions are no JSON); kExhausted beyond kRenderedBytesMax.
Result<std::string> to_json(const Value& value, std::int64_t indent);

}  // namespace kvlane::jinja
