// Families of values, and Prometheus' text form.
// SPDX-License-Identifier: Apache-2.0
#include "server/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

namespace kvlane {

namespace {

prometheus::MetricFamily family_of(std::string name, std::string help, prometheus::MetricType type,
                                   const std::vector<MetricValue>& values) {
  prometheus::MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  for (const MetricValue& value : values) {
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [label, text] : value.labels) metric.label.push_back({label, text});
    metric.gauge.value = value.value;  // the one that is of the family's type is told
    metric.counter.value = value.value;
  }
  return family;
}

}  // namespace

prometheus::MetricFamily gauge_family(std::string name, std::string help,
                                      const std::vector<MetricValue>& values) {
  return family_of(std::move(name), std::move(help), prometheus::MetricType::Gauge, values);
}

prometheus::MetricFamily counter_family(std::string name, std::string help,
                                        const std::vector<MetricValue>& values) {
  return family_of(std::move(name), std::move(help), prometheus::MetricType::Counter, values);
}

HttpResponse metrics_response(const std::vector<prometheus::MetricFamily>& families) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = prometheus::TextSerializer().Serialize(families);
  return response;
}

std::vector<double> first_token_buckets() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
}

std::vector<double> inter_token_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
          0.4,   0.5,    0.75,  1,    2.5,   5,    7.5,   10,  20,   40,  80};
}

std::vector<double> request_buckets() {
  return {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
}

std::vector<double> token_count_buckets() {
  std::vector<double> buckets;
  for (double decade = 1; decade <= 1e6; decade *= 10) {
    for (const double step : {1, 2, 5}) buckets.push_back(step * decade);
  }
  return buckets;
}

}  // namespace kvlane
