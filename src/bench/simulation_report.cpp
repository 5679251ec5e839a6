// What a simulation came to, in tables and in JSON.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/simulated_replicas.h"
#include "bench/simulation.h"

namespace kvlane {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What kernels of formats and codecs were measured on (docs/gpu.md).
constexpr std::string_view kMeasuredGpu = "H200-SXM";

template <class... Values>
std::string formatted_line(const char* format, Values... values) {
  char text[240];
  std::snprintf(text, sizeof(text), format, values...);
  return std::string(text) + "\n";
}

double p99(const Summary& summary) {
  return summary.percentiles.empty() ? 0 : summary.percentiles.back().second;
}

int name_width(std::span<const SimulationResult> results) {
  std::size_t width = 2;
  for (const SimulationResult& each : results) width = std::max(width, each.kv.costs.name.size());
  return static_cast<int>(width);
}

double last_arrival(const SimulationSetting& setting) {
  const std::vector<SimRequest>& requests = setting.requests.requests;
  return requests.empty() ? 0 : requests.back().arrival;
}

// The last column says what a format is worth beside the first one: less time at one rate, or more
// requests at rates of their own.
std::string worth(const SimulationSetting& setting, const SimulationResult& first,
                  const SimulationResult& each) {
  char text[40] = "-";
  if (setting.find_rate && first.rate > 0) {
    std::snprintf(text, sizeof(text), "%.2f x", each.rate / first.rate);
  } else if (!setting.find_rate && first.completion.mean > 0) {
    std::snprintf(text, sizeof(text), "%.1f %%",
                  100 * (1 - each.completion.mean / first.completion.mean));
  }
  return text;
}

std::string latencies(const SimulationSetting& setting, std::span<const SimulationResult> results) {
  const int width = name_width(results);
  std::string text =
      formatted_line("%-*s %10s %7s %19s %19s %19s %9s", width, "", "requests", "good",
                     "completion s", "TTFT s", "TPOT ms", setting.find_rate ? "of the" : "saved");
  text +=
      formatted_line("%-*s %10s %7s %9s %9s %9s %9s %9s %9s %9s", width, "KV", "a second", "%",
                     "mean", "p99", "mean", "p99", "mean", "p99", setting.find_rate ? "first" : "");
  for (const SimulationResult& each : results) {
    text +=
        formatted_line("%-*s %10.4g %7.1f %9.3f %9.3f %9.3f %9.3f %9.2f %9.2f %9s", width,
                       each.kv.costs.name.c_str(), each.rate, 100 * each.good, each.completion.mean,
                       p99(each.completion), each.ttft.mean, p99(each.ttft), 1e3 * each.tpot.mean,
                       1e3 * p99(each.tpot), worth(setting, results.front(), each).c_str());
  }
  return text;
}

std::string accounts(std::span<const SimulationResult> results) {
  const int width = name_width(results);
  std::string text = "share of completion, %\n";
  text += formatted_line("%-*s %7s %8s %7s %7s %9s %7s %7s   %s", width, "KV", "queue", "prefill",
                         "encode", "memory", "transfer", "codec", "decode",
                         "(attention, opening codes)");
  for (const SimulationResult& each : results) {
    const TimeAccount& account = each.account;
    const double all = account.total() > 0 ? account.total() / 100 : 1;
    text += formatted_line("%-*s %7.1f %8.1f %7.1f %7.1f %9.1f %7.1f %7.1f   (%.1f, %.1f)", width,
                           each.kv.costs.name.c_str(), account.queue / all, account.prefill / all,
                           account.encode / all, account.wait_for_memory / all,
                           account.transfer / all, account.decode_codec / all, account.decode / all,
                           (account.prefill_attention + account.decode_attention) / all,
                           (account.prefill_dequantise + account.decode_dequantise) / all);
  }
  return text;
}

std::string uses(std::span<const SimulationResult> results, bool disaggregated) {
  const int width = name_width(results);
  std::string text = "use of the cluster, %\n";
  text += formatted_line("%-*s %10s %10s %10s %14s %12s %7s %8s", width, "KV", "prefill", "link",
                         "decode", "its KV peak", "KV tokens", "found", "stopped");
  for (const SimulationResult& each : results) {
    const GroupUse& prefill = each.outcome.prefill;
    const GroupUse& decode = each.outcome.decode;
    const double link = disaggregated ? 100 * std::max(prefill.network, decode.network) : 0;
    text +=
        formatted_line("%-*s %10.1f %10.1f %10.1f %14.1f %12lld %7.1f %8lld", width,
                       each.kv.costs.name.c_str(), 100 * prefill.busy, link, 100 * decode.busy,
                       100 * decode.blocks_peak, static_cast<long long>(decode.tokens_in_memory),
                       100 * each.found, static_cast<long long>(prefill.stopped + decode.stopped));
  }
  return text;
}

// Whether a queue was left when the last request came, and not just that one's own time.
bool answers_late(const SimulationSetting& setting, const SimulationResult& each) {
  if (each.completed == 0) return false;
  const double last = setting.find_rate ? (each.rate > 0 ? double(each.completed) / each.rate : 0)
                                        : last_arrival(setting);
  const double late = each.outcome.seconds - last;
  return late > 4 * each.completion.percentiles.front().second || late > 0.5 * each.outcome.seconds;
}

// What a reader has to know before believing a row.
std::string remarks(const SimulationSetting& setting, std::span<const SimulationResult> results) {
  std::string text;
  if (setting.windowed) {
    text += "the model's sliding window is not simulated: KV of all tokens is kept and read\n";
  }
  if (setting.requests.shortened > 0) {
    text += std::to_string(setting.requests.shortened) +
            " requests were shortened to fit the model's context\n";
  }
  const auto other = [](const ReplicaGroup& group) {
    return group.count > 0 && group.gpu.name != kMeasuredGpu;
  };
  if (other(setting.cluster.prefill) || other(setting.cluster.decode)) {
    text += "speeds of formats and codecs are those of an " + std::string(kMeasuredGpu) +
            ", scaled by memory\n";
  }
  for (const SimulationResult& each : results) {
    const std::string& name = each.kv.costs.name;
    if (!each.kv.measured) {
      text += name + ": its speeds are assumed, not measured\n";
    }
    if (each.refused > 0) {
      text += name + ": " + std::to_string(each.refused) + " requests never fit in memory\n";
    }
    const bool late = answers_late(setting, each);
    if (setting.find_rate && each.rate == 0) {
      text += name + ": even requests that come alone miss the goals\n";
    } else if (each.unbounded) {
      text += name + ": all requests at once reach the goals: give more (--num-prompts)\n";
    } else if (setting.find_rate && late) {
      text += name + ": that is the rate of so short a burst; more requests may reach less\n";
    } else if (late) {
      text += formatted_line(
          "%s: the last answer came %.0f s behind the last request: more arrives than can "
          "be served",
          name.c_str(), each.outcome.seconds - last_arrival(setting));
    }
  }
  return text;
}

OrderedJson summary_json(const Summary& summary) {
  OrderedJson object = {{"mean", summary.mean}};
  for (const auto& [percent, value] : summary.percentiles) {
    object["p" + std::to_string(static_cast<int>(percent))] = value;
  }
  return object;
}

OrderedJson goals_json(const Goals& goals) {
  OrderedJson object = OrderedJson::object();
  // In seconds, as all of it.
  if (goals.ttft) object["ttft"] = *goals.ttft;
  if (goals.tpot) object["tpot"] = *goals.tpot;
  if (goals.e2el) object["e2el"] = *goals.e2el;
  return object;
}

OrderedJson use_json(const GroupUse& use) {
  return {{"busy", use.busy},
          {"network_busy", use.network},
          {"kv_memory_peak", use.blocks_peak},
          {"kv_tokens", use.tokens_in_memory},
          {"found_tokens", use.found},
          {"steps", use.steps},
          {"stopped", use.stopped}};
}

OrderedJson result_json(const SimulationResult& result) {
  OrderedJson account = OrderedJson::object();
  for (const AccountField& field : kAccountFields) {
    account[std::string(field.name)] = result.account.*field.seconds;
  }
  return {{"kv", result.kv.costs.name},
          {"speeds", result.kv.measured ? "measured" : "assumed"},
          {"resident_bytes", result.kv.costs.resident_bytes},
          {"wire_bytes", result.kv.costs.wire_bytes},
          {"request_rate", result.rate},
          {"unbounded", result.unbounded},
          {"good", result.good},
          {"prefix_hit_rate", result.found},
          {"completed", result.completed},
          {"refused", result.refused},
          {"seconds", result.outcome.seconds},
          {"answer_tokens_per_second", result.tokens},
          {"completion", summary_json(result.completion)},
          {"ttft", summary_json(result.ttft)},
          {"tpot", summary_json(result.tpot)},
          {"account", std::move(account)},
          {"wire_bytes_total", result.outcome.wire_bytes},
          {"prefill", use_json(result.outcome.prefill)},
          {"decode", use_json(result.outcome.decode)}};
}

}  // namespace

std::string simulation_text(const SimulationSetting& setting,
                            std::span<const SimulationResult> results) {
  const ClusterSetting& cluster = setting.cluster;
  const bool disaggregated = cluster.prefill.count > 0;
  std::string text = setting.model + ", " + std::to_string(setting.requests.requests.size()) +
                     " requests of " + setting.workload +
                     formatted_line(" in %.1f s", last_arrival(setting));
  if (disaggregated) text += "prefill: " + describe(cluster.prefill) + "\n";
  text += (disaggregated ? "decode: " : "serving: ") + describe(cluster.decode) + "\n\n";
  text +=
      latencies(setting, results) + "\n" + accounts(results) + "\n" + uses(results, disaggregated);
  const std::string notes = remarks(setting, results);
  return notes.empty() ? text : text + "\n" + notes;
}

std::string simulation_json(const SimulationSetting& setting,
                            std::span<const SimulationResult> results) {
  OrderedJson object = {{"command", setting.command},
                        {"model", setting.model},
                        {"window_ignored", setting.windowed},
                        {"workload", setting.workload},
                        {"requests", setting.requests.requests.size()},
                        {"shortened", setting.requests.shortened},
                        {"last_arrival", last_arrival(setting)},
                        {"goals", goals_json(setting.goals)}};
  if (setting.cluster.prefill.count > 0) object["prefill"] = describe(setting.cluster.prefill);
  object["decode"] = describe(setting.cluster.decode);
  object["results"] = OrderedJson::array();
  for (const SimulationResult& each : results) object["results"].push_back(result_json(each));
  return object.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace kvlane
