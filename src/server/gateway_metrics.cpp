// A gateway's metrics. Only its own: what workers measure is at the workers.
// SPDX-License-Identifier: Apache-2.0
#include "server/gateway_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/metric_family.h>
#include <prometheus/registry.h>

#include <iterator>
#include <vector>

#include "server/metrics_text.h"

namespace kvlane {

namespace {

using prometheus::BuildCounter;
using prometheus::BuildHistogram;

// Of what a gateway itself takes: from 20 us on.
std::vector<double> own_time_buckets() {
  return {0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002,
          0.005,   0.01,    0.02,   0.05,   0.1,    0.5,   1};
}

}  // namespace

struct GatewayMetrics::Families {
  Families() {
    requests = &BuildCounter()
                    .Name("kvlane_gateway_requests_total")
                    .Help(
                        "Completion requests by the status of their answer; 'none': the client "
                        "left before.")
                    .Register(registry);
    requests->Add({{"status", "200"}});
  }
  prometheus::Histogram& histogram(const char* name, const char* help,
                                   const std::vector<double>& buckets) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }
  prometheus::Counter& counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }

  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>* requests;
  prometheus::Histogram& request =
      histogram("kvlane_gateway_request_seconds",
                "From a request's arrival to the end of its answer.", request_buckets());
  prometheus::Histogram& first_event = histogram(
      "kvlane_gateway_time_to_first_token_seconds",
      "From a request's arrival to its client having the first event.", first_token_buckets());
  prometheus::Histogram& dispatch =
      histogram("kvlane_gateway_dispatch_seconds",
                "From a request's arrival to the first word to a worker, without waiting in line.",
                own_time_buckets());
  prometheus::Histogram& relay = histogram(
      "kvlane_gateway_relay_seconds",
      "From having read a piece of a stream to the client's socket having it.", own_time_buckets());
  prometheus::Counter& retries =
      counter("kvlane_gateway_retries_total", "Attempts beyond the first of a request.");
  prometheus::Counter& cut_short =
      counter("kvlane_gateway_streams_cut_short_total", "Streams that failed after they began.");
};

namespace {

struct WorkerFamilies {
  std::vector<MetricValue> up;
  std::vector<MetricValue> in_flight;
  std::vector<MetricValue> queued_tokens;

  void add(const char* role, const WorkerPool& pool) {
    for (std::size_t i = 0; i < pool.size(); ++i) {
      const WorkerState& worker = pool.worker(i);
      const MetricLabels labels = {{"role", role}, {"worker", to_string(worker.url)}};
      up.push_back({labels, worker.health == WorkerState::Health::kWell ? 1.0 : 0.0});
      in_flight.push_back({labels, static_cast<double>(worker.in_flight)});
      queued_tokens.push_back(
          {labels, static_cast<double>(worker.queued_tokens + worker.assigned_tokens)});
    }
  }
};

}  // namespace

GatewayMetrics::GatewayMetrics() : families_(std::make_unique<Families>()) {}
GatewayMetrics::~GatewayMetrics() = default;

void GatewayMetrics::ended(int status, double seconds) {
  const std::string name = status == 0 ? "none" : std::to_string(status);
  families_->requests->Add({{"status", name}}).Increment();
  if (status == 200) families_->request.Observe(seconds);
}

void GatewayMetrics::first_event(double seconds) { families_->first_event.Observe(seconds); }
void GatewayMetrics::dispatched(double seconds) { families_->dispatch.Observe(seconds); }
void GatewayMetrics::relayed(double seconds) { families_->relay.Observe(seconds); }
void GatewayMetrics::retried() { families_->retries.Increment(); }
void GatewayMetrics::cut_short() { families_->cut_short.Increment(); }

HttpResponse GatewayMetrics::text(const WorkerPool& prefill, const WorkerPool& decode,
                                  std::size_t waiting) const {
  WorkerFamilies workers;
  workers.add("prefill", prefill);
  workers.add("decode", decode);
  std::vector<prometheus::MetricFamily> families = families_->registry.Collect();
  families.push_back(gauge_family("kvlane_gateway_info", "1; its label says what runs here.",
                                  {{{{"version", KVLANE_VERSION}}, 1}}));
  families.push_back(gauge_family("kvlane_gateway_requests_waiting",
                                  "Requests in line because all workers are full.",
                                  {{{}, static_cast<double>(waiting)}}));
  families.push_back(gauge_family("kvlane_gateway_worker_up",
                                  "Whether a worker's last /health was well.", workers.up));
  families.push_back(gauge_family("kvlane_gateway_worker_in_flight",
                                  "This gateway's requests at a worker.", workers.in_flight));
  families.push_back(gauge_family("kvlane_gateway_worker_queued_tokens",
                                  "Prompt tokens before a worker, as routing sees them.",
                                  workers.queued_tokens));
  return metrics_response(families);
}

}  // namespace kvlane
