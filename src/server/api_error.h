// Errors as OpenAI's API tells them: {"error": {message, type, param, code}} and an HTTP status.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "kvlane/status.h"
#include "server/http.h"

namespace kvlane {

struct ApiError {
  int status = 400;     // of the HTTP response
  std::string message;  // one sentence
  std::string param;    // the request's field that is wrong; empty: none
  std::string code;     // OpenAI's code where it has one ("model_not_found"); empty: none
};

// A value or the error to answer with.
template <class T>
using ApiResult = std::variant<T, ApiError>;

// The one mapping of status codes: kInvalidArgument and kUnsupported 400, kNotFound 404, kExhausted
// 429, kCorrupt 502, kUnavailable and kAborted 503, kTimeout 504, kInternal 500.
ApiError to_api_error(const Status& status);

// The JSON text of the error, for a body or an event.
std::string to_json_text(const ApiError& error);

// A whole response. 429 and 503 carry Retry-After, 401 WWW-Authenticate.
HttpResponse to_response(const ApiError& error);

}  // namespace kvlane
