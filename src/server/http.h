// HTTP messages as handlers and callers see them: plain values, no parser, no sockets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "kvlane/status.h"
#include "transfer/link.h"

namespace kvlane {

// Header fields in the order they came. Names compare without regard to case.
class HttpHeaders {
 public:
  void add(std::string name, std::string value) {
    fields_.push_back({std::move(name), std::move(value)});
  }
  // The value of the first field with this name; empty when there is none.
  std::string_view find(std::string_view name) const;

  struct Field {
    std::string name;
    std::string value;
  };
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  HttpHeaders headers;
  std::string body;
  std::string id;      // X-Request-Id of the client, or one made here
  TimePoint received;  // of the first byte
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // further ones
  std::string body;
};

inline constexpr std::size_t kHostBytesMax = 255;  // DNS allows no more

// 200 with a body that is JSON text already.
HttpResponse json_response(std::string text);

// Where another server is: "http://host:port", with an optional path in front of every route.
struct Url {
  Address address;
  std::string prefix;  // "" or "/path", without a slash at the end

  friend bool operator==(const Url&, const Url&) = default;
};

// kInvalidArgument names what is wrong; only http:// is known. The port defaults to 80.
Result<Url> parse_url(std::string_view text);
std::string to_string(const Url& url);

// "Bad Request" for 400, and so on; "Unknown" for a code this server does not use.
std::string_view http_reason(int status);

// Whether `value`, a header's value from outside, may be sent back: short and printable ASCII.
bool is_safe_header_value(std::string_view value);

// A random name for a request that came without one. Not a secret.
std::string new_request_id();

// "host:port", "[::1]:port" for IPv6. The port must be there and not 0.
Result<Address> parse_address(std::string_view text);

}  // namespace kvlane
