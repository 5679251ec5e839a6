// Labels and names, each in one table.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_output.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/json_text.h"

namespace kvlane {

namespace {

using nlohmann::json;

constexpr std::size_t kWidth = 50;
constexpr std::size_t kLabelWidth = 40;

struct Latency {
  const char* name;   // in vLLM's fields
  const char* label;  // in vLLM's text
  const char* title;
  Summary ServeResult::*summary;
};

constexpr std::array<Latency, 4> kLatencies = {{
    {"ttft", "TTFT", "Time to First Token", &ServeResult::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &ServeResult::tpot},
    {"itl", "ITL", "Inter-token Latency", &ServeResult::itl},
    {"e2el", "E2EL", "End-to-end Latency", &ServeResult::e2el},
}};
constexpr Latency kClientQueue = {"client_queue_time", "Client Queue Time", "Client-side Queueing",
                                  &ServeResult::client_queue};

std::string fixed(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  return text.data();
}

// "99" for 99, "99.9" for 99.9.
std::string percent_word(double percent) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", percent);
  return text.data();
}

std::string centred(const std::string& text, char fill) {
  if (text.size() >= kWidth) return text + "\n";
  const std::size_t left = (kWidth - text.size()) / 2;
  return std::string(left, fill) + text + std::string(kWidth - text.size() - left, fill) + "\n";
}

std::string line(std::string label, const std::string& value) {
  label.resize(std::max(label.size(), kLabelWidth), ' ');
  return label + " " + value + "\n";
}

std::string line(std::string label, std::size_t value) {
  return line(std::move(label), std::to_string(value));
}

std::string latency_lines(const Latency& latency, const ServeResult& result) {
  const Summary& summary = result.*latency.summary;
  const std::string label = latency.label;
  std::string text = centred(latency.title, '-');
  text += line("Mean " + label + " (ms):", fixed(summary.mean));
  text += line("Median " + label + " (ms):", fixed(summary.median));
  for (const auto& [percent, value] : summary.percentiles) {
    text += line("P" + percent_word(percent) + " " + label + " (ms):", fixed(value));
  }
  return text;
}

std::string count_lines(const ServeSetting& setting, const ServeResult& result) {
  std::string text = line("Successful requests:", result.completed);
  text += line("Failed requests:", result.failed);
  for (const auto& [kind, count] : result.errors) text += line("  " + kind + ":", count);
  if (result.unfinished > 0) text += line("Unfinished requests:", result.unfinished);
  if (setting.shortened > 0) text += line("Shortened to fit the context:", setting.shortened);
  if (setting.max_concurrency > 0) {
    text += line("Maximum request concurrency:", setting.max_concurrency);
  }
  if (setting.request_rate > 0 && std::isfinite(setting.request_rate)) {
    text += line("Request rate configured (RPS):", fixed(setting.request_rate));
  }
  text += line("Benchmark duration (s):", fixed(result.duration));
  text += line("Total input tokens:", result.input_tokens);
  if (result.cached_tokens > 0) text += line("  found in a prefix cache:", result.cached_tokens);
  text += line("Total generated tokens:", result.output_tokens);
  return text;
}

std::string throughput_lines(const ServeResult& result) {
  std::string text = line("Request throughput (req/s):", fixed(result.request_throughput));
  if (result.request_goodput) {
    text += line("Request goodput (req/s):", fixed(*result.request_goodput));
  }
  text += line("Output token throughput (tok/s):", fixed(result.output_throughput));
  text += line("Peak output token throughput (tok/s):", fixed(result.max_output_tokens_per_s));
  text += line("Peak concurrent requests:", result.max_concurrent_requests);
  text += line("Total token throughput (tok/s):", fixed(result.total_token_throughput));
  return text;
}

void add_latency(const Latency& latency, const ServeResult& result, json& object) {
  const Summary& summary = result.*latency.summary;
  const std::string name = latency.name;
  object["mean_" + name + "_ms"] = summary.mean;
  object["median_" + name + "_ms"] = summary.median;
  object["std_" + name + "_ms"] = summary.stddev;
  for (const auto& [percent, value] : summary.percentiles) {
    object["p" + percent_word(percent) + "_" + name + "_ms"] = value;
  }
}

void add_details(const LoadOutcome& outcome, json& object) {
  for (const char* name :
       {"conversations", "rounds", "input_lens", "cached_lens", "output_lens", "ttfts", "itls",
        "latencies", "start_times", "queue_times", "generated_texts", "errors"}) {
    object[name] = json::array();
  }
  for (const RequestRecord& record : outcome.records) {
    const Answer& answer = record.answer;
    const bool completed = record.completed();
    const int input =
        answer.prompt_tokens >= 0 ? answer.prompt_tokens : record.planned_input_tokens;
    object["conversations"].push_back(record.conversation);
    object["rounds"].push_back(record.turn + 1);
    object["input_lens"].push_back(input);
    object["cached_lens"].push_back(std::max(answer.cached_tokens, 0));
    object["output_lens"].push_back(completed ? answer.output_tokens() : 0);
    object["ttfts"].push_back(completed ? ttft_of(record) : 0);
    object["itls"].push_back(itls_of(record));
    object["latencies"].push_back(completed ? e2el_of(record) : 0);
    object["start_times"].push_back(record.due);
    object["queue_times"].push_back(record.allowed - record.due);
    object["generated_texts"].push_back(answer.text);
    const std::string kind = record.unfinished ? "unfinished" : record.error;
    object["errors"].push_back(completed ? "" : kind + ": " + record.status.message());
  }
}

std::string now_as_text() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S", &parts);
  return text.data();
}

json setting_json(const ServeSetting& setting) {
  json object = {{"date", now_as_text()},
                 {"backend", "openai"},
                 {"base_url", setting.base_url},
                 {"endpoint", setting.endpoint},
                 {"model_id", setting.model},
                 {"dataset", setting.dataset},
                 {"num_prompts", setting.num_prompts},
                 {"shortened_prompts", setting.shortened},
                 {"burstiness", setting.burstiness},
                 {"seed", setting.seed}};
  object["request_rate"] = setting.request_rate;
  if (std::isinf(setting.request_rate)) object["request_rate"] = "inf";  // as vLLM says it
  if (setting.request_rate == 0) object["request_rate"] = nullptr;
  object["max_concurrency"] = nullptr;
  if (setting.max_concurrency > 0) object["max_concurrency"] = setting.max_concurrency;
  return object;
}

}  // namespace

std::string serve_text(const ServeSetting& setting, const ServeResult& result) {
  std::string text = centred(" Serving Benchmark Result ", '=');
  if (result.interrupted) text += "(interrupted: this is what there was until then)\n";
  text += count_lines(setting, result);
  text += throughput_lines(result);
  for (const Latency& latency : kLatencies) text += latency_lines(latency, result);
  if (setting.max_concurrency > 0) text += latency_lines(kClientQueue, result);
  if (!result.account_shares.empty()) {
    text += centred("Time Account (mean share, %)", '-');
    for (const auto& [name, share] : result.account_shares) {
      if (share > 0) text += line(name + ":", fixed(100 * share));
    }
  }
  text += centred("Load Generator", '-');
  text += line("Max lateness (ms):", fixed(result.max_lateness));
  text += line("Client CPU time (s):", fixed(result.client_cpu));
  return text + std::string(kWidth, '=') + "\n";
}

std::string serve_result_json(const ServeSetting& setting, const ServeResult& result,
                              const LoadOutcome* details) {
  json object = setting_json(setting);
  object["duration"] = result.duration;
  object["completed"] = result.completed;
  object["failed"] = result.failed;
  object["unfinished"] = result.unfinished;
  object["interrupted"] = result.interrupted;
  object["errors_by_kind"] = result.errors;
  object["total_input_tokens"] = result.input_tokens;
  object["total_cached_tokens"] = result.cached_tokens;
  object["total_output_tokens"] = result.output_tokens;
  object["request_throughput"] = result.request_throughput;
  object["request_goodput"] = nullptr;
  if (result.request_goodput) object["request_goodput"] = *result.request_goodput;
  object["output_throughput"] = result.output_throughput;
  object["total_token_throughput"] = result.total_token_throughput;
  object["max_output_tokens_per_s"] = result.max_output_tokens_per_s;
  object["max_concurrent_requests"] = result.max_concurrent_requests;
  for (const Latency& latency : kLatencies) add_latency(latency, result, object);
  if (setting.max_concurrency > 0) add_latency(kClientQueue, result, object);
  object["max_lateness_ms"] = result.max_lateness;
  object["client_cpu_s"] = result.client_cpu;
  object["account_shares"] = json::object();
  for (const auto& [name, share] : result.account_shares) object["account_shares"][name] = share;
  if (details != nullptr) add_details(*details, object);
  return to_text(object);
}

std::vector<Figure> serve_figures(const ServeResult& result) {
  std::vector<Figure> figures = {
      {"completed", static_cast<double>(result.completed), "requests"},
      {"failed", static_cast<double>(result.failed), "requests"},
      {"duration", result.duration, "s"},
      {"total_input_tokens", static_cast<double>(result.input_tokens), "tokens"},
      {"total_cached_tokens", static_cast<double>(result.cached_tokens), "tokens"},
      {"total_output_tokens", static_cast<double>(result.output_tokens), "tokens"},
      {"request_throughput", result.request_throughput, "requests/s"},
      {"output_throughput", result.output_throughput, "tokens/s"},
      {"total_token_throughput", result.total_token_throughput, "tokens/s"},
      {"max_output_tokens_per_s", result.max_output_tokens_per_s, "tokens/s"},
      {"max_concurrent_requests", static_cast<double>(result.max_concurrent_requests), "requests"},
  };
  if (result.request_goodput) {
    figures.push_back({"request_goodput", *result.request_goodput, "requests/s"});
  }
  for (const Latency& latency : kLatencies) {
    const Summary& summary = result.*latency.summary;
    const std::string name = latency.name;
    figures.push_back({"mean_" + name + "_ms", summary.mean, "ms"});
    figures.push_back({"median_" + name + "_ms", summary.median, "ms"});
    figures.push_back({"std_" + name + "_ms", summary.stddev, "ms"});
    for (const auto& [percent, value] : summary.percentiles) {
      figures.push_back({"p" + percent_word(percent) + "_" + name + "_ms", value, "ms"});
    }
  }
  for (const auto& [name, share] : result.account_shares) {
    figures.push_back({"account_share_" + name, share, "share"});
  }
  figures.push_back({"max_lateness_ms", result.max_lateness, "ms"});
  figures.push_back({"client_cpu_s", result.client_cpu, "s"});
  return figures;
}

}  // namespace kvlane
