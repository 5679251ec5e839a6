// A worker's metrics under our names, and once more under vLLM's.
// SPDX-License-Identifier: Apache-2.0
#include "server/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>

#include "server/metrics_text.h"
#include "server/openai_response.h"

namespace kvlane {

namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;
using prometheus::MetricFamily;

// vLLM's name for one of our families. With `label`, only the metrics with this value of it,
// without the label; with `renamed`, the label under that name.
struct Alias {
  const char* ours;
  const char* vllm;
  const char* label = nullptr;
  const char* value = nullptr;
  const char* renamed = nullptr;
};
constexpr std::array<Alias, 18> kAliases = {{
    {"kvlane_requests_running", "vllm:num_requests_running"},
    {"kvlane_requests_waiting", "vllm:num_requests_waiting"},
    {"kvlane_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc"},
    {"kvlane_prefix_query_tokens_total", "vllm:prefix_cache_queries_total"},
    {"kvlane_prefix_hit_tokens_total", "vllm:prefix_cache_hits_total"},
    {"kvlane_preemptions_total", "vllm:num_preemptions_total"},
    {"kvlane_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"kvlane_generation_tokens_total", "vllm:generation_tokens_total"},
    {"kvlane_answers_finished_total", "vllm:request_success_total", "reason", nullptr,
     "finished_reason"},
    {"kvlane_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"kvlane_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"kvlane_request_seconds", "vllm:e2e_request_latency_seconds"},
    {"kvlane_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"kvlane_request_generation_tokens", "vllm:request_generation_tokens"},
    {"kvlane_request_account_seconds", "vllm:request_queue_time_seconds", "interval", "queue"},
    {"kvlane_request_account_seconds", "vllm:request_prefill_time_seconds", "interval", "prefill"},
    {"kvlane_request_account_seconds", "vllm:request_decode_time_seconds", "interval", "decode"},
    // Its older name.
    {"kvlane_inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
}};

MetricFamily aliased(const MetricFamily& ours, const Alias& alias) {
  MetricFamily family = ours;
  family.name = alias.vllm;
  family.help = "vLLM's name for " + ours.name + ".";
  if (alias.label == nullptr) return family;
  family.metric.clear();
  for (prometheus::ClientMetric metric : ours.metric) {
    const auto label = std::find_if(metric.label.begin(), metric.label.end(),
                                    [&](const auto& l) { return l.name == alias.label; });
    if (label == metric.label.end()) continue;
    if (alias.renamed != nullptr) {
      label->name = alias.renamed;
    } else if (label->value == alias.value) {
      metric.label.erase(label);
    } else {
      continue;
    }
    family.metric.push_back(std::move(metric));
  }
  return family;
}

void add_aliases(std::vector<MetricFamily>& families) {
  const std::size_t own = families.size();
  families.reserve(own + kAliases.size());
  for (const Alias& alias : kAliases) {
    for (std::size_t i = 0; i < own; ++i) {
      if (families[i].name == alias.ours) families.push_back(aliased(families[i], alias));
    }
  }
}

// OpenAI's code where there is one, else ours for the HTTP status: few different ones.
std::string reason_of(const ApiError& error) {
  if (!error.code.empty()) return error.code;
  return std::string(code_name(error.status == 404 ? Code::kNotFound : Code::kInvalidArgument));
}

// Makes families whose metrics carry the model's labels.
class OfModel {
 public:
  explicit OfModel(MetricLabels model) : model_(std::move(model)) {}

  MetricLabels with(const char* name, const char* value) const {
    MetricLabels all = model_;
    all.emplace_back(name, value);
    return all;
  }
  MetricFamily gauge(const char* name, const char* help, double value) const {
    return gauge_family(name, help, {{model_, value}});
  }
  template <typename Number>
  MetricFamily total(const char* name, const char* help, Number value) const {
    return counter_family(name, help, {{model_, static_cast<double>(value)}});
  }

 private:
  MetricLabels model_;
};

std::vector<MetricFamily> of_blocks(const OfModel& of, const EngineLoad& load) {
  const int used = load.blocks_total - load.blocks_free;
  return {
      of.gauge("kvlane_requests_running", "Requests being computed.", load.running),
      of.gauge("kvlane_requests_waiting", "Requests in the queue.", load.queued),
      of.gauge("kvlane_waiting_tokens", "Prompt tokens not computed yet.",
               static_cast<double>(load.queued_tokens)),
      of.gauge("kvlane_kv_cache_usage_ratio", "Part of the KV blocks that sequences hold, 0 to 1.",
               load.blocks_total > 0 ? static_cast<double>(used) / load.blocks_total : 0),
      gauge_family("kvlane_kv_blocks",
                   "KV blocks: held by sequences, free with a prefix for reuse, and empty.",
                   {{of.with("state", "used"), static_cast<double>(used)},
                    {of.with("state", "cached"), static_cast<double>(load.blocks_cached)},
                    {of.with("state", "empty"),
                     static_cast<double>(load.blocks_free - load.blocks_cached)}}),
      of.gauge("kvlane_host_blocks", "KV blocks in host memory.", load.host_blocks),
      gauge_family(
          "kvlane_links", "Links to other workers, by what carries them.",
          {{of.with("path", "tcp"), static_cast<double>(load.links.tcp)},
           {of.with("path", "shared_memory"), static_cast<double>(load.links.shared_memory)},
           {of.with("path", "ucx"), static_cast<double>(load.links.ucx)}}),
      of.gauge("kvlane_link_streams", "TCP connections of the links over TCP.",
               load.links.tcp_streams),
      of.total("kvlane_prefix_query_tokens_total", "Prompt tokens looked up in the prefix cache.",
               load.prefix_query_tokens),
      of.total("kvlane_prefix_hit_tokens_total", "Prompt tokens found in the prefix cache.",
               load.prefix_hit_tokens),
      of.total("kvlane_host_hit_tokens_total",
               "Of the tokens found: brought back from host memory.", load.host_hit_tokens),
  };
}

std::vector<MetricFamily> of_store(const OfModel& of, const EngineLoad& load) {
  return {
      of.total("kvlane_store_hit_tokens_total",
               "Of the tokens found: brought back from the state store.", load.store_hit_tokens),
      of.total("kvlane_restores_total", "Sequences that came back from the state store.",
               load.restores),
      of.total("kvlane_restores_failed_total",
               "Of these: not all of what the store has could be read or computed.",
               load.restores_failed),
      of.total("kvlane_restore_bytes_total", "Bytes read for them.", load.restore_bytes),
      of.total("kvlane_restore_seconds_total", "Time from their first read until they were back.",
               load.restore_seconds),
      of.total("kvlane_restore_expected_seconds_total",
               "The same, as the profile of this machine had it.", load.restore_seconds_expected),
      of.total("kvlane_store_save_failures_total", "KV blocks that the state store did not take.",
               load.save_failures),
      of.total("kvlane_store_hidden_tokens_lost_total",
               "Tokens of complete blocks whose hidden states could not be saved.",
               load.hidden_tokens_lost),
      of.gauge("kvlane_store_bytes", "What the state store takes on its disks.",
               static_cast<double>(load.store.bytes)),
      of.gauge("kvlane_store_memory_bytes", "What it keeps in memory of this.",
               static_cast<double>(load.store.memory_bytes)),
      of.total("kvlane_store_saved_bytes_total", "Bytes written to it.", load.store.saved_bytes),
      counter_family(
          "kvlane_store_reads_total", "Extents read from it, by the way they came.",
          {{of.with("from", "disk"),
            static_cast<double>(load.store.reads - load.store.memory_reads -
                                load.store.device_reads)},
           {of.with("from", "disk_directly"), static_cast<double>(load.store.device_reads)},
           {of.with("from", "memory"), static_cast<double>(load.store.memory_reads)}}),
      of.total("kvlane_store_evicted_total", "Extents that it gave up for others.",
               load.store.evicted),
      of.total("kvlane_store_damaged_total", "Extents that it found wrong, and forgot.",
               load.store.damaged),
  };
}

std::vector<MetricFamily> of_steps(const OfModel& of, const EngineLoad& load) {
  return {
      of.total("kvlane_preemptions_total", "Sequences that gave up their blocks while running.",
               load.preemptions),
      of.total("kvlane_recomputed_tokens_total", "Tokens computed again because of preemptions.",
               load.recomputed_tokens),
      of.total("kvlane_codebooks_counted_total",
               "Planes of KV whose codebook was made from them and not from others.",
               load.codebooks_counted),
      of.total("kvlane_codebooks_replaced_total",
               "Of these: because the codebook of the planes before did not fit any more.",
               load.codebooks_replaced),
      of.total("kvlane_steps_total", "Steps of the engine.", load.steps),
      of.total("kvlane_step_seconds_total", "Time in steps.", load.step_seconds),
      of.total("kvlane_schedule_seconds_total",
               "Of this: neither forward pass nor sampling nor restores.", load.schedule_seconds),
  };
}

}  // namespace

struct WorkerMetrics::Families {
  Families(Role worker_role, const std::string& model_name);
  void failed(const std::string& reason) { failures->Add({{"reason", reason}}).Increment(); }
  std::vector<MetricFamily> of_load(const EngineLoad& load) const;

  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const std::vector<double>& buckets) {
    return BuildHistogram().Name(name).Help(help).Labels(labels).Register(registry).Add({},
                                                                                        buckets);
  }
  prometheus::Counter& counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Labels(labels).Register(registry).Add({});
  }

  std::map<std::string, std::string> labels;
  Role role;
  prometheus::Registry registry;
  prometheus::Histogram& first_token =
      histogram("kvlane_time_to_first_token_seconds",
                "From a request's arrival to its first token.", first_token_buckets());
  prometheus::Histogram& inter_token =
      histogram("kvlane_inter_token_latency_seconds", "Between two tokens of an answer.",
                inter_token_buckets());
  prometheus::Histogram& request = histogram(
      "kvlane_request_seconds", "From a request's arrival to its end.", request_buckets());
  prometheus::Histogram& request_prompt_tokens = histogram(
      "kvlane_request_prompt_tokens", "Tokens of a request's prompt.", token_count_buckets());
  prometheus::Histogram& request_generation_tokens =
      histogram("kvlane_request_generation_tokens", "Tokens of all of a request's answers.",
                token_count_buckets());
  prometheus::Counter& prompt_tokens =
      counter("kvlane_prompt_tokens_total", "Tokens of prompts that were taken up.");
  prometheus::Counter& generation_tokens =
      counter("kvlane_generation_tokens_total", "Tokens generated.");
  prometheus::Counter& transfer_raw = counter("kvlane_transfer_raw_bytes_total",
                                              "KV that crossed between workers, before the codec.");
  prometheus::Counter& transfer_shipped = counter(
      "kvlane_transfer_shipped_bytes_total", "KV that crossed between workers, as it was shipped.");
  prometheus::Family<prometheus::Counter>* transfers;
  prometheus::Family<prometheus::Counter>* failures;
  prometheus::Counter* stopped;
  prometheus::Counter* at_length;
  std::vector<prometheus::Histogram*> account;  // as kAccountFields
};

WorkerMetrics::Families::Families(Role worker_role, const std::string& model_name)
    : labels{{"model_name", model_name}}, role(worker_role) {
  transfers = &BuildCounter()
                   .Name("kvlane_transfers_total")
                   .Help("Requests whose KV crossed between workers, by the codec it had.")
                   .Labels(labels)
                   .Register(registry);
  failures = &BuildCounter()
                  .Name("kvlane_request_failures_total")
                  .Help("Requests refused, failed or given up, by the error's code.")
                  .Labels(labels)
                  .Register(registry);
  // Series that exist from the start have a rate from the first event on.
  for (int code = static_cast<int>(Code::kOk) + 1; code <= static_cast<int>(Code::kInternal);
       ++code) {
    failures->Add({{"reason", std::string(code_name(static_cast<Code>(code)))}});
  }
  auto& finished = BuildCounter()
                       .Name("kvlane_answers_finished_total")
                       .Help("Answers that were completed, by what ended them.")
                       .Labels(labels)
                       .Register(registry);
  stopped = &finished.Add({{"reason", "stop"}});
  at_length = &finished.Add({{"reason", "length"}});
  auto& intervals = BuildHistogram()
                        .Name("kvlane_request_account_seconds")
                        .Help("A completed request's time account, interval by interval.")
                        .Labels(labels)
                        .Register(registry);
  for (const AccountField& field : kAccountFields) {
    account.push_back(
        &intervals.Add({{"interval", std::string(field.name)}}, first_token_buckets()));
  }
}

std::vector<MetricFamily> WorkerMetrics::Families::of_load(const EngineLoad& load) const {
  const MetricLabels model(labels.begin(), labels.end());
  MetricLabels build = model;
  build.emplace_back("role", std::string(role_name(role)));
  build.emplace_back("version", KVLANE_VERSION);
  std::vector<MetricFamily> families = {
      gauge_family("kvlane_worker_info", "1; its labels say what runs here.", {{build, 1}})};
  const OfModel of(model);
  for (const auto part : {of_blocks, of_store, of_steps}) {
    std::vector<MetricFamily> more = part(of, load);
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  return families;
}

WorkerMetrics::WorkerMetrics(Role role, const std::string& model_name)
    : families_(std::make_unique<Families>(role, model_name)) {}
WorkerMetrics::~WorkerMetrics() = default;

void WorkerMetrics::refused(const ApiError& error) { families_->failed(reason_of(error)); }

HttpResponse WorkerMetrics::text(const EngineLoad& load) const {
  std::vector<MetricFamily> families = families_->registry.Collect();
  std::vector<MetricFamily> now = families_->of_load(load);
  families.insert(families.end(), std::make_move_iterator(now.begin()),
                  std::make_move_iterator(now.end()));
  add_aliases(families);
  return metrics_response(families);
}

RequestMeter::RequestMeter(std::shared_ptr<WorkerMetrics> metrics, TimePoint received,
                           int prompt_tokens, int n)
    : metrics_(std::move(metrics)),
      received_(received),
      prompt_tokens_(prompt_tokens),
      last_token_(n) {}

void RequestMeter::begin(TimePoint now) {
  if (began_) return;
  began_ = true;
  metrics_->families_->first_token.Observe(seconds_between(received_, now));
  metrics_->families_->prompt_tokens.Increment(prompt_tokens_);
}

void RequestMeter::tokens(const Update& update, TimePoint now) {
  WorkerMetrics::Families& families = *metrics_->families_;
  const auto count = static_cast<double>(update.tokens.size());
  families.generation_tokens.Increment(count);
  std::optional<TimePoint>& last = last_token_[update.choice];
  if (last) {
    // Tokens that come together share the time since the last one.
    const double each = seconds_between(*last, now) / count;
    for (std::size_t i = 0; i < update.tokens.size(); ++i) families.inter_token.Observe(each);
  }
  last = now;
}

void RequestMeter::update(const Update& update, TimePoint now) {
  // An answer that ends at once has a first token too, though nobody sees it.
  if (!update.tokens.empty() || update.ended) begin(now);
  if (!update.tokens.empty()) tokens(update, now);
  WorkerMetrics::Families& families = *metrics_->families_;
  if (update.ended == FinishReason::kStop) families.stopped->Increment();
  if (update.ended == FinishReason::kLength) families.at_length->Increment();
  if (!update.finish) return;
  ended(*update.finish, now);
  if (update.finish->error.ok()) {
    families.request_generation_tokens.Observe(update.finish->completion_tokens);
  }
}

void RequestMeter::prefilled(const PrefillOutcome& outcome, TimePoint now) {
  if (outcome.finish.error.ok()) metrics_->families_->prompt_tokens.Increment(prompt_tokens_);
  ended(outcome.finish, now);
}

void RequestMeter::ended(const Finish& finish, TimePoint now) {
  WorkerMetrics::Families& families = *metrics_->families_;
  families.transfer_raw.Increment(static_cast<double>(finish.kv.raw));
  families.transfer_shipped.Increment(static_cast<double>(finish.kv.shipped));
  if (!finish.error.ok()) {
    families.failed(std::string(code_name(finish.error.code())));
    return;
  }
  if (!finish.kv.codec.empty()) families.transfers->Add({{"codec", finish.kv.codec}}).Increment();
  const double seconds = seconds_between(received_, now);
  families.request.Observe(seconds);
  families.request_prompt_tokens.Observe(prompt_tokens_);
  TimeAccount account = finish.account;
  close_account(account, seconds);
  for (std::size_t i = 0; i < kAccountFields.size(); ++i) {
    families.account[i]->Observe(account.*kAccountFields[i].seconds);
  }
}

}  // namespace kvlane
