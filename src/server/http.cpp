// Headers, URLs and reason phrases.
// SPDX-License-Identifier: Apache-2.0
#include "server/http.h"

#include <algorithm>
#include <charconv>
#include <random>

namespace kvlane {

namespace {

// A request id longer than this is replaced: it is copied into every log line.
constexpr std::size_t kHeaderValueBytesMax = 128;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

Result<std::uint16_t> parse_port(std::string_view text) {
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  if (text.empty() || error != std::errc() || stop != end || port == 0) {
    return invalid_argument("'" + std::string(text) + "' is not a port (1 to 65535)");
  }
  return port;
}

// Splits "host[:port]"; `port` stays empty when there is none.
Status split_host(std::string_view text, std::string_view& host, std::string_view& port) {
  const Status malformed =
      invalid_argument("'" + std::string(text) + "' is not of the form host:port");
  std::size_t host_end = 0;
  if (text.starts_with('[')) {
    host_end = text.find(']');
    if (host_end == std::string_view::npos) return malformed;
    host = text.substr(1, host_end - 1);
    ++host_end;
  } else {
    host_end = std::min(text.find(':'), text.size());
    host = text.substr(0, host_end);
  }
  const bool printable =
      std::all_of(host.begin(), host.end(), [](char c) { return c > ' ' && c < 0x7f && c != '@'; });
  if (host.empty() || host.size() > kHostBytesMax || !printable) return malformed;
  if (host_end == text.size()) return {};
  if (text[host_end] != ':' || host_end + 1 == text.size()) return malformed;
  port = text.substr(host_end + 1);
  return {};
}

}  // namespace

std::string_view HttpHeaders::find(std::string_view name) const {
  const auto same_name = [name](const Field& field) {
    return std::equal(name.begin(), name.end(), field.name.begin(), field.name.end(),
                      [](char a, char b) { return lower(a) == lower(b); });
  };
  const auto found = std::find_if(fields_.begin(), fields_.end(), same_name);
  return found == fields_.end() ? std::string_view() : found->value;
}

Result<Url> parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) {
    return invalid_argument("'" + std::string(text) + "' is not a URL that starts with http://");
  }
  const std::string_view rest = text.substr(kScheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view host;
  std::string_view port;
  KVLANE_TRY(split_host(rest.substr(0, slash), host, port).with_context(std::string(text)));
  Url url;
  url.address = {std::string(host), 80};
  if (!port.empty()) {
    KVLANE_ASSIGN(url.address.port, parse_port(port));
  }
  url.prefix = rest.substr(slash);
  while (url.prefix.ends_with('/')) url.prefix.pop_back();
  if (!is_safe_header_value(url.prefix) || url.prefix.find_first_of("?# ") != std::string::npos) {
    return invalid_argument("'" + std::string(text) + "' has a path that cannot be used");
  }
  return url;
}

std::string to_string(const Url& url) { return "http://" + to_string(url.address) + url.prefix; }

Result<Address> parse_address(std::string_view text) {
  std::string_view host;
  std::string_view port;
  KVLANE_TRY(split_host(text, host, port));
  if (port.empty()) return invalid_argument("'" + std::string(text) + "' has no port");
  Address address;
  address.host = host;
  KVLANE_ASSIGN(address.port, parse_port(port));
  return address;
}

HttpResponse json_response(std::string text) {
  HttpResponse response;
  response.body = std::move(text);
  return response;
}

std::string_view http_reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Unknown";
  }
}

std::string new_request_id() {
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seeds{device(), device(), device(), device()};
    return std::mt19937_64(seeds);
  }();
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string id;
  for (int word = 0; word < 2; ++word) {
    std::uint64_t bits = random();
    for (int digit = 0; digit < 16; ++digit, bits >>= 4) id += kDigits[bits & 15];
  }
  return id;
}

bool is_safe_header_value(std::string_view value) {
  return value.size() <= kHeaderValueBytesMax &&
         std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

}  // namespace kvlane
