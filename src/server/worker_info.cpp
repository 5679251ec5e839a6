// What a worker tells about itself and its model.
// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "server/coroutine.h"
#include "server/json_text.h"
#include "server/worker.h"

namespace kvlane {

using nlohmann::json;

asio::awaitable<void> Worker::health(const HttpRequest&, HttpReply& reply) {
  const EngineLoad load = engine_.load();
  json body = {{"status", "ok"},
               {"role", role_name(options_.role)},
               {"model", options_.model_name},
               {"load",
                {{"running", load.running},
                 {"queued", load.queued},
                 {"queued_tokens", load.queued_tokens},
                 {"blocks_free", load.blocks_free},
                 {"blocks_total", load.blocks_total}}}};
  if (options_.data_plane) {
    body["data_plane"] = to_string(*options_.data_plane);
    body["links"] = {{"tcp", load.links.tcp},
                     {"shared_memory", load.links.shared_memory},
                     {"ucx", load.links.ucx},
                     {"tcp_streams", load.links.tcp_streams}};
  }
  const HttpResponse response = json_response(to_text(body));
  co_await reply.send(response);
}

asio::awaitable<void> Worker::metrics(const HttpRequest&, HttpReply& reply) {
  const HttpResponse response = metrics_->text(engine_.load());
  co_await reply.send(response);
}

asio::awaitable<void> Worker::convert(Conversion* conversion, const HttpRequest& http,
                                      HttpReply& reply) {
  const std::function<ApiResult<std::string>()> read = [this, conversion, body = http.body] {
    return conversion(body, prompter_, options_.model_name);
  };
  const ApiResult<std::string> converted =
      co_await reader_.read<ApiResult<std::string>>(read, http.body.size());
  const ApiError* const error = std::get_if<ApiError>(&converted);
  const HttpResponse response =
      error != nullptr ? to_response(*error) : json_response(std::get<std::string>(converted));
  co_await reply.send(response);
}

asio::awaitable<void> Worker::models(const HttpRequest&, HttpReply& reply) {
  const json model = {{"id", options_.model_name},
                      {"object", "model"},
                      {"created", started_},
                      {"owned_by", "kvlane"},
                      {"max_model_len", prompter_.context()},
                      {"vocab_size", prompter_.vocabulary()}};
  const json body = {{"object", "list"}, {"data", json::array({model})}};
  const HttpResponse response = json_response(to_text(body));
  co_await reply.send(response);
}

}  // namespace kvlane
