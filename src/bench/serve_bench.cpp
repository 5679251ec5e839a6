// What the server tells about its model, then plan, run, summary.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_bench.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/arrivals.h"
#include "server/coroutine.h"
#include "server/event_loop.h"
#include "server/http_client.h"
#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;

constexpr std::size_t kModelsBytesMax = 1 << 20;
constexpr Seconds kModelsTimeout{10};
// When neither --num-prompts nor a rate and a duration say how many.
constexpr std::size_t kRequestsDefault = 1000;  // as vLLM has it
// More than a generator sends in a day; each plan entry costs some 200 bytes.
constexpr double kRequestsMax = 1e7;

// What /v1/models tells about the model that is asked.
struct ServedModel {
  std::string name;
  std::optional<int> context;
  std::optional<int> vocabulary;
};

std::optional<int> number_in(const json& object, const char* name) {
  if (!object.is_object()) return std::nullopt;
  const auto found = object.find(name);
  const bool usable = found != object.end() && found->is_number_unsigned() && *found > 0 &&
                      *found <= kTraceTokensMax;
  return usable ? std::optional<int>(found->get<int>()) : std::nullopt;
}

ServedModel read_model(const json& entry) {
  ServedModel model;
  const auto name = entry.find("id");
  if (name != entry.end() && name->is_string()) model.name = name->get<std::string>();
  model.context = number_in(entry, "max_model_len");
  model.vocabulary = number_in(entry, "vocab_size");
  // llama.cpp's names.
  const json meta = entry.value("meta", json::object());
  if (!model.context) model.context = number_in(meta, "n_ctx_train");
  if (!model.vocabulary) model.vocabulary = number_in(meta, "n_vocab");
  return model;
}

// The model with this name, or the first; nothing when the answer is none.
std::optional<ServedModel> find_model(const json& answer, const std::string& wanted) {
  if (!answer.is_object() || !answer.contains("data") || !answer["data"].is_array()) return {};
  for (const json& entry : answer["data"]) {
    if (!entry.is_object()) continue;
    ServedModel model = read_model(entry);
    if (wanted.empty() || model.name == wanted) return model;
  }
  return {};
}

asio::awaitable<void> fetch_models(asio::any_io_executor executor, const LoadOptions& load,
                                   Result<HttpResponse>& response) {
  HttpCallRequest request;
  request.path = "/v1/models";
  if (!load.api_key.empty()) request.headers.add("Authorization", "Bearer " + load.api_key);
  HttpCallLimits limits;
  limits.connect_timeout = limits.head_timeout = limits.read_timeout = kModelsTimeout;
  response = co_await http_fetch(executor, load.server, request, limits, kModelsBytesMax);
}

// A server without /v1/models may do without it when the flags say what it would have told.
Result<ServedModel> ask_server(const LoadOptions& load) {
  const EventLoop loop;
  Result<HttpResponse> response = internal_error("the server was not asked");
  loop.run_coroutine(
      [&loop, &load, &response] { return fetch_models(loop.executor(), load, response); });
  if (!response.ok()) return response.status();
  ServedModel unknown;
  unknown.name = load.request.model;
  if (response->status == 401 || response->status == 403) {
    return invalid_argument(to_string(load.server) + " does not accept this API key");
  }
  const Result<json> answer = parse_json(response->body);
  if (response->status != 200 || !answer.ok()) return unknown;
  return find_model(*answer, load.request.model).value_or(unknown);
}

std::size_t requests_wanted(const ServeBenchOptions& options) {
  if (options.num_prompts) return *options.num_prompts;
  const std::optional<double>& rate = options.arrival.request_rate;
  if (rate && std::isfinite(*rate) && options.load.duration) {
    return static_cast<std::size_t>(std::clamp(*rate * *options.load.duration, 1.0, kRequestsMax));
  }
  // A duration alone ends a closed loop: then there are more than it can take.
  if (options.load.duration && options.arrival.closed_loop) return kRequestsDefault * 100;
  return options.dataset.name == "trace" ? 0 : kRequestsDefault;
}

Result<DrawnWorkload> drawn_workload(const DatasetOptions& dataset) {
  DrawnWorkload drawn;
  drawn.prefix_tokens = dataset.prefix_tokens;
  drawn.prefixes = dataset.prefixes;
  drawn.prefix_zipf = dataset.prefix_zipf;
  if (dataset.name == "random") {
    drawn.input = around(dataset.input_tokens, dataset.range_ratio);
    drawn.output = around(dataset.output_tokens, dataset.range_ratio);
  } else {
    KVLANE_ASSIGN(const PaperWorkload paper, find_paper_workload(dataset.name));
    drawn.input = paper.input;
    drawn.output = paper.output;
    drawn.prefix_tokens += paper.context;
    drawn.rounds = paper.rounds;
    drawn.think_time = paper.think_time;
  }
  drawn.rounds = dataset.rounds.value_or(drawn.rounds);
  drawn.think_time = dataset.think_time.value_or(drawn.think_time);
  return drawn;
}

Status check(const ServeBenchOptions& options) {
  if (options.num_prompts && *options.num_prompts == 0) {
    return invalid_argument("--num-prompts must be at least 1");
  }
  if (options.dataset.name == "trace" && options.dataset.path.empty()) {
    return invalid_argument("the data set 'trace' needs the path of a trace");
  }
  if (options.arrival.closed_loop && options.arrival.request_rate) {
    return invalid_argument("requests come at a rate or from clients that wait, not both");
  }
  return {};
}

}  // namespace

Result<Workload> plan_workload(const ServeBenchOptions& options, std::optional<int> context) {
  KVLANE_TRY(check(options));
  const DatasetOptions& dataset = options.dataset;
  const ArrivalOptions& arrival = options.arrival;
  const WorkloadLimits limits{requests_wanted(options), context};
  Workload workload;
  bool has_times = false;
  if (dataset.name == "trace") {
    KVLANE_ASSIGN(const Trace trace, read_trace(dataset.path));
    KVLANE_ASSIGN(workload, replay_trace(trace, dataset.time_scale, dataset.length_scale, limits,
                                         options.seed));
    has_times = trace.has_times;
    if (!has_times && !arrival.request_rate && !arrival.closed_loop) {
      return invalid_argument(dataset.path.string() +
                              " has no times: give a request rate or a number of clients");
    }
  } else {
    KVLANE_ASSIGN(const DrawnWorkload drawn, drawn_workload(dataset));
    KVLANE_ASSIGN(workload, draw_workload(drawn, limits, options.seed));
  }
  if (arrival.closed_loop || (has_times && !arrival.request_rate)) return workload;
  const double rate = arrival.request_rate.value_or(std::numeric_limits<double>::infinity());
  // The rate is of requests; conversations begin as much more seldom as they have turns.
  const double turns =
      static_cast<double>(workload.requests) / static_cast<double>(workload.conversations.size());
  const std::vector<double> due = open_loop_arrivals(workload.conversations.size(), rate / turns,
                                                     arrival.burstiness, options.seed);
  for (std::size_t i = 0; i < due.size(); ++i) workload.conversations[i].due = due[i];
  return workload;
}

Result<ServeBenchRun> bench_serve(const ServeBenchOptions& options) {
  KVLANE_ASSIGN(const ServedModel model, ask_server(options.load));
  LoadOptions load = options.load;
  load.request.model = model.name;
  load.open_loop = !options.arrival.closed_loop;
  load.concurrency = options.arrival.concurrency;
  const bool as_text = load.request.text || load.request.api == Api::kChat;
  const std::optional<int> vocabulary = options.vocabulary ? options.vocabulary : model.vocabulary;
  if (!vocabulary && !as_text) {
    return invalid_argument(to_string(load.server) +
                            " does not tell its vocabulary: give --vocab-size, or send text");
  }
  load.vocabulary = vocabulary.value_or(1 << 15);  // of made-up text: any number of ids will do
  KVLANE_ASSIGN(const Workload workload,
                plan_workload(options, options.context ? options.context : model.context));

  ServeBenchRun run;
  run.setting.base_url = to_string(load.server);
  run.setting.endpoint = api_path(load.request.api);
  run.setting.model = model.name;
  run.setting.dataset = options.dataset.name;
  if (options.dataset.name == "trace") run.setting.dataset = options.dataset.path.filename();
  const bool at_once = load.open_loop && options.dataset.name != "trace";
  run.setting.request_rate = options.arrival.request_rate.value_or(
      at_once ? std::numeric_limits<double>::infinity() : 0.0);
  run.setting.burstiness = options.arrival.burstiness;
  run.setting.max_concurrency = load.concurrency;
  run.setting.num_prompts = workload.requests;
  run.setting.shortened = workload.shortened;
  run.setting.seed = options.seed;
  KVLANE_ASSIGN(run.outcome, run_load(workload, load));
  run.result = summarise_load(run.outcome, options.goals, options.percents);
  return run;
}

}  // namespace kvlane
