// What a gateway tells about its workers, and what it lets one of them tell.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/gateway.h"
#include "server/json_text.h"

namespace kvlane {

using nlohmann::json;

namespace {

// The tokens of the longest prompt that /tokenize takes, with their texts.
constexpr std::size_t kInfoBytesMax = 64 << 20;

// A worker takes so long for none of these; one that says nothing is passed over.
constexpr Seconds kInfoTime{15};

}  // namespace

asio::awaitable<void> Gateway::health(const HttpRequest&, HttpReply& reply) {
  const bool well = prefill_.any_well() && decode_.any_well();
  const json body = {{"status", well ? "ok" : "unavailable"},
                     {"role", "gateway"},
                     {"prefill", prefill_.describe()},
                     {"decode", decode_.describe()}};
  HttpResponse response;
  response.status = well ? 200 : 503;
  response.body = to_text(body);
  co_await reply.send(response);
}

asio::awaitable<void> Gateway::metrics(const HttpRequest&, HttpReply& reply) {
  const HttpResponse response = metrics_.text(prefill_, decode_, line_.size());
  co_await reply.send(response);
}

// Questions about the model: what one decode worker says, all would.
asio::awaitable<void> Gateway::pass_on(const HttpRequest& http, HttpReply& reply) {
  std::set<std::size_t> tried;
  HttpResponse response =
      to_response(to_api_error(unavailable("No decode worker answers about its model.")));
  HttpCallLimits limits = options_.calls;
  limits.head_timeout = std::min(limits.head_timeout, kInfoTime);
  while (const std::optional<std::size_t> index = decode_.pick(tried)) {
    tried.insert(*index);
    const Url url = decode_.worker(*index).url;
    HttpCallRequest request = call(http.path, http.id, http.body);
    request.method = http.method == "POST" ? "POST" : "GET";
    const Result<HttpResponse> answer =
        co_await http_fetch(executor_, url, request, limits, kInfoBytesMax);
    // 401: the worker does not know this gateway's key, which is not the client's business.
    const bool usable = answer.ok() && answer->status < 500 && answer->status != 401;
    if (!usable) continue;
    response = relayed(*answer);
    break;
  }
  co_await reply.send(response);
}

}  // namespace kvlane
