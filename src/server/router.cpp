// Dispatch and the API key.
// SPDX-License-Identifier: Apache-2.0
#include "server/router.h"

#include <boost/beast/core/string.hpp>

#include "server/api_error.h"
#include "server/coroutine.h"

namespace kvlane {

namespace {

bool has_key(const HttpRequest& request, std::string_view key) {
  constexpr std::string_view kScheme = "Bearer ";  // in upper or lower case: RFC 9110, 11.1
  const std::string_view header = request.headers.find("Authorization");
  return boost::beast::iequals(header.substr(0, kScheme.size()), kScheme) &&
         same_secret(header.substr(kScheme.size()), key);
}

}  // namespace

void Router::add(std::string method, std::string path, HttpHandler handler, bool open) {
  routes_[std::move(path)][std::move(method)] = {std::move(handler), open};
}

HttpHandler Router::handler() && {
  const auto routes = std::make_shared<const Routes>(std::move(routes_));
  return [routes, key = std::move(key_)](const HttpRequest& request,
                                         HttpReply& reply) -> asio::awaitable<void> {
    const auto path = routes->find(request.path);
    ApiError error;
    const Route* route = nullptr;
    if (path == routes->end()) {
      error = {404, "There is no route " + request.path + ".", "", "route_not_found"};
    } else {
      auto method = path->second.find(request.method);
      if (method == path->second.end() && request.method == "HEAD")
        method = path->second.find("GET");
      if (method == path->second.end()) {
        error = {405, request.path + " does not take " + request.method + ".", "",
                 "method_not_allowed"};
      } else {
        route = &method->second;
      }
    }
    if (route != nullptr && !route->open && !key.empty() && !has_key(request, key)) {
      error = {401, "A valid API key is needed: 'Authorization: Bearer KEY'.", "",
               "invalid_api_key"};
      route = nullptr;
    }
    if (route != nullptr) {
      co_await route->handler(request, reply);
      co_return;
    }
    HttpResponse response = to_response(error);
    if (error.status == 405) response.headers.add("Allow", path->second.begin()->first);
    const Status sent = co_await reply.send(response);
    if (!sent.ok()) reply.do_not_keep_alive();
  };
}

bool same_secret(std::string_view presented, std::string_view key) {
  // The loop runs over what was presented, so that the time says nothing about the key's length.
  unsigned difference = presented.size() == key.size() ? 0 : 1;
  for (std::size_t i = 0; i < presented.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned>(presented[i] ^ expected) & 0xffU;
  }
  return difference == 0;
}

}  // namespace kvlane
