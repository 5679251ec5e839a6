// Names of the status codes.
// SPDX-License-Identifier: Apache-2.0
#include "kvlane/status.h"

namespace kvlane {

std::string_view code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kNotFound: return "not_found";
    case Code::kCorrupt: return "corrupt";
    case Code::kUnsupported: return "unsupported";
    case Code::kExhausted: return "exhausted";
    case Code::kUnavailable: return "unavailable";
    case Code::kTimeout: return "timeout";
    case Code::kAborted: return "aborted";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

}  // namespace kvlane
