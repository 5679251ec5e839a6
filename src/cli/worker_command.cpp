// From flags to a running worker.
// SPDX-License-Identifier: Apache-2.0
#include "cli/worker_command.h"

#include <algorithm>

#include "cli/loaded_model.h"
#include "cli/run_service.h"
#include "cli/signals.h"
#include "codec/codec.h"
#include "server/log.h"
#include "server/service.h"
#include "transfer/tcp.h"
#include "transfer/ucx.h"

namespace kvlane {

namespace {

// A peer that cannot be reached is noticed within `timeout`, as one is that does not answer.
Result<std::unique_ptr<Network>> start_network(const DataPlaneFlags& flags) {
  const Seconds timeout(flags.timeout);
  KVLANE_TRY(check_transport(flags.transport, flags.streams));
  if (flags.transport.name == "ucx") {
    UcxOptions ucx;
    ucx.devices = flags.transport.ucx_devices;
    ucx.connect_timeout = std::min(ucx.connect_timeout, timeout);
    ucx.silence_timeout = timeout;
    return make_ucx_network(ucx);
  }
  TcpOptions options;
  options.shared_memory = flags.shared_memory == "auto";
  options.streams = flags.streams;
  options.connect_timeout = std::min(options.connect_timeout, timeout);
  options.user_timeout = timeout;
  return make_tcp_network(options);
}

Result<std::unique_ptr<Endpoint>> start_endpoint(Network& network, const WorkerFlags& flags,
                                                 const Model& model, const EngineOptions& engine) {
  const KvFormat* const format = engine.kv_format.get();
  EndpointOptions options;
  options.bind = {flags.data_plane.bind, flags.data_plane.port};
  options.advertised_host = flags.data_plane.advertise_host;
  options.model = model.identity();
  options.format =
      format != nullptr ? format->name() : element_name(model.config().kv_shape().type);
  options.tables = format != nullptr ? format->tables() : 0;
  options.mark = engine.state.lossy_mark();
  options.codecs = codec_names();
  options.idle_timeout = Seconds(flags.data_plane.timeout);
  options.lease = Seconds(flags.data_plane.lease);
  options.outgoing_bytes_max = flags.push.memory;
  options.on_refused = [](const std::string& peer, const Status& why) {
    log_warning("turned " + peer + " away: " + why.message());
  };
  return Endpoint::start(network, std::move(options));
}

}  // namespace

Status run_worker(Role role, const WorkerFlags& flags) {
  if (flags.parent != 0) end_with_parent(flags.parent);
  KVLANE_TRY(set_log_level(flags.server.log_level));
  if (role != Role::kBoth) KVLANE_TRY(check_travels(flags.model));
  KVLANE_ASSIGN(const LoadedModel loaded, load_model(flags.model));

  // In this order, so that they end in the other: the engine before its endpoint, that before its
  // network.
  KVLANE_ASSIGN(EngineOptions engine_settings, engine_options(flags.model, loaded));
  std::unique_ptr<Network> network;
  std::unique_ptr<Endpoint> endpoint;
  WorkerServiceOptions options;
  if (role != Role::kBoth) {
    KVLANE_ASSIGN(network, start_network(flags.data_plane));
    KVLANE_ASSIGN(endpoint, start_endpoint(*network, flags, *loaded.model, engine_settings));
    options.data_plane = endpoint->address();
  }
  engine_settings.reservation_lease = Seconds(flags.data_plane.lease);
  engine_settings.push_whole = flags.push.granularity == "whole";
  KVLANE_ASSIGN(std::unique_ptr<Engine> engine,
                Engine::create(*loaded.model, *loaded.tokenizer, endpoint.get(), engine_settings));
  const ModelPrompter prompter = make_prompter(loaded, engine->context());
  if (engine->context() < loaded.model->context()) {
    log_warning("the KV memory of " + std::to_string(flags.model.kv_memory) + " bytes holds " +
                std::to_string(engine->context()) +
                " tokens: prompt and answer may have so many together, not the " +
                std::to_string(loaded.model->context()) +
                " of the model's context; --kv-memory makes room for more");
  }
  if (!loaded.chat_problem.ok()) {
    log_warning("chat requests will be refused: " + loaded.chat_problem.message());
  }
  options.service.bind = {flags.server.host, flags.server.port};
  options.service.api_key = flags.server.api_key;
  options.role = role;
  options.model_name = model_name(flags.model, flags.server);
  options.reservation_lease = Seconds(flags.data_plane.lease);
  ReadyLine ready;
  ready.role = role == Role::kBoth ? "serve" : role_name(role);
  ready.model = options.model_name;
  ready.data_plane = options.data_plane;
  KVLANE_ASSIGN(const std::unique_ptr<Service> service,
                Service::start_worker(std::move(engine), prompter, std::move(options)));
  ready.url = "http://" + to_string(service->address());
  if (loaded.ranks == nullptr) return run_until_signal(*service, ready, flags.server.json);
  KVLANE_TRY(run_until_signal(*service, ready, flags.server.json, loaded.ranks->descriptor()));
  return loaded.ranks->lost();
}

}  // namespace kvlane
