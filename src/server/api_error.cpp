// Status codes to HTTP, and the JSON form of an error.
// SPDX-License-Identifier: Apache-2.0
#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace kvlane {

namespace {

using nlohmann::json;

int http_status(Code code) {
  switch (code) {
    case Code::kOk: return 200;
    case Code::kInvalidArgument: return 400;
    case Code::kUnsupported: return 400;
    case Code::kNotFound: return 404;
    case Code::kExhausted: return 429;
    case Code::kInternal: return 500;
    case Code::kCorrupt: return 502;
    case Code::kUnavailable: return 503;
    case Code::kAborted: return 503;
    case Code::kTimeout: return 504;
  }
  return 500;
}

const char* error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }

}  // namespace

ApiError to_api_error(const Status& status) {
  ApiError error;
  error.status = http_status(status.code());
  error.message = status.message();
  // Where the HTTP status says less than ours does, the code says it.
  if (error.status >= 429) error.code = code_name(status.code());
  return error;
}

std::string to_json_text(const ApiError& error) {
  const json body = {{"error",
                      {{"message", error.message},
                       {"type", error_type(error.status)},
                       {"param", text_or_null(error.param)},
                       {"code", text_or_null(error.code)}}}};
  // Messages quote what clients sent, which need not be UTF-8.
  return body.dump(-1, ' ', false, json::error_handler_t::replace);
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = to_json_text(error);
  if (error.status == 401) response.headers.add("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503) response.headers.add("Retry-After", "1");
  return response;
}

}  // namespace kvlane
