// What the metrics of workers and gateways have in common: their text, and buckets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/http.h"

namespace prometheus {
struct MetricFamily;
}

namespace kvlane {

// Name and value of each label, in any order.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

struct MetricValue {
  MetricLabels labels;
  double value = 0;
};

// What is read at the moment of asking, as opposed to counted on the way.
prometheus::MetricFamily gauge_family(std::string name, std::string help,
                                      const std::vector<MetricValue>& values);
// The same for a total that never falls; its name ends in "_total".
prometheus::MetricFamily counter_family(std::string name, std::string help,
                                        const std::vector<MetricValue>& values);

// 200 with all families in Prometheus' text form.
HttpResponse metrics_response(const std::vector<prometheus::MetricFamily>& families);

// Upper bounds of histograms, vLLM's or finer, so that dashboards made for it work: of what happens
// once a request, between tokens, of whole requests, and of numbers of tokens.
std::vector<double> first_token_buckets();
std::vector<double> inter_token_buckets();
std::vector<double> request_buckets();
std::vector<double> token_count_buckets();

}  // namespace kvlane
