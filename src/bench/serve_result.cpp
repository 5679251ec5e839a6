// Sums, summaries, goodput, peaks, shares.
// SPDX-License-Identifier: Apache-2.0
#include "bench/serve_result.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

namespace kvlane {

namespace {

constexpr double kMillisecond = 1e-3;

std::vector<double> milliseconds(std::vector<double> seconds) {
  for (double& value : seconds) value /= kMillisecond;
  return seconds;
}

// An answer of one token has no time per token, and so misses no goal for it.
bool is_good(const RequestRecord& record, const Goals& goals) {
  return (!goals.ttft || ttft_of(record) <= *goals.ttft) &&
         (!goals.tpot || tpot_of(record).value_or(0) <= *goals.tpot) &&
         (!goals.e2el || e2el_of(record) <= *goals.e2el);
}

using Completed = std::vector<const RequestRecord*>;

// Tokens of the second, counted from the start, in which most came.
double peak_tokens(const Completed& completed) {
  std::map<long, double> seconds;
  for (const RequestRecord* record : completed) {
    const Answer& answer = record->answer;
    for (std::size_t i = 0; i < answer.times.size(); ++i) {
      seconds[std::lround(std::floor(answer.times[i]))] += answer.counts[i];
    }
  }
  double peak = 0;
  for (const auto& [second, tokens] : seconds) peak = std::max(peak, tokens);
  return peak;
}

// Most requests that were under way at one time.
std::size_t peak_requests(const Completed& completed) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord* record : completed) {
    changes.emplace_back(record->sent, 1);
    changes.emplace_back(record->ended, -1);
  }
  std::sort(changes.begin(), changes.end());  // at one time, ends come first
  int running = 0;
  int peak = 0;
  for (const auto& [time, change] : changes) peak = std::max(peak, running += change);
  return static_cast<std::size_t>(peak);
}

std::vector<std::pair<std::string, double>> account_shares(const Completed& completed) {
  std::vector<std::pair<std::string, double>> shares;
  double accounts = 0;
  for (const AccountField& field : kAccountFields) shares.emplace_back(field.name, 0.0);
  for (const RequestRecord* record : completed) {
    const std::optional<TimeAccount>& account = record->answer.account;
    if (!account || account->total() <= 0) continue;
    ++accounts;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      shares[i].second += (*account).*kAccountFields[i].seconds / account->total();
    }
  }
  if (accounts == 0) return {};
  for (auto& [name, share] : shares) share /= accounts;
  return shares;
}

void add_latencies(const Completed& completed, const std::vector<double>& percents,
                   ServeResult& result) {
  std::vector<double> ttfts, tpots, itls, e2els, queues;
  for (const RequestRecord* record : completed) {
    ttfts.push_back(ttft_of(*record));
    e2els.push_back(e2el_of(*record));
    queues.push_back(record->allowed - record->due);
    if (const std::optional<double> tpot = tpot_of(*record)) tpots.push_back(*tpot);
    const std::vector<double> gaps = itls_of(*record);
    itls.insert(itls.end(), gaps.begin(), gaps.end());
  }
  result.ttft = summarise(milliseconds(std::move(ttfts)), percents);
  result.tpot = summarise(milliseconds(std::move(tpots)), percents);
  result.itl = summarise(milliseconds(std::move(itls)), percents);
  result.e2el = summarise(milliseconds(std::move(e2els)), percents);
  result.client_queue = summarise(milliseconds(std::move(queues)), percents);
}

}  // namespace

Result<Goals> parse_goals(const std::vector<std::string>& texts) {
  Goals goals;
  for (const std::string& text : texts) {
    const std::size_t colon = std::min(text.find(':'), text.size());
    const std::string_view name(text.data(), colon);
    const std::string_view number = std::string_view(text).substr(std::min(colon + 1, text.size()));
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    const bool usable = error == std::errc() && end == number.data() + number.size() && value > 0 &&
                        std::isfinite(value);
    std::optional<double>* const goal = name == "ttft"   ? &goals.ttft
                                        : name == "tpot" ? &goals.tpot
                                        : name == "e2el" ? &goals.e2el
                                                         : nullptr;
    if (goal == nullptr || !usable) {
      return invalid_argument(
          "a goal is ttft, tpot or e2el with milliseconds, like ttft:200, not '" +
          text.substr(0, 40) + "'");
    }
    *goal = value * kMillisecond;
  }
  return goals;
}

double ttft_of(const RequestRecord& record) { return record.answer.times.front() - record.due; }

double e2el_of(const RequestRecord& record) { return record.answer.times.back() - record.due; }

std::optional<double> tpot_of(const RequestRecord& record) {
  const int tokens = record.answer.output_tokens();
  if (tokens < 2) return std::nullopt;
  return (e2el_of(record) - ttft_of(record)) / (tokens - 1);
}

std::vector<double> itls_of(const RequestRecord& record) {
  const std::vector<double>& times = record.answer.times;
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  return gaps;
}

ServeResult summarise_load(const LoadOutcome& outcome, const Goals& goals,
                           const std::vector<double>& percents) {
  ServeResult result;
  Completed completed;
  std::size_t good = 0;
  for (const RequestRecord& record : outcome.records) {
    result.max_lateness =
        std::max(result.max_lateness, (record.sent - record.allowed) / kMillisecond);
    if (record.unfinished) ++result.unfinished;
    if (!record.error.empty()) ++result.errors[record.error];
    if (!record.completed()) continue;
    completed.push_back(&record);
    const Answer& answer = record.answer;
    const int input =
        answer.prompt_tokens >= 0 ? answer.prompt_tokens : record.planned_input_tokens;
    result.input_tokens += static_cast<std::size_t>(input);
    result.output_tokens += static_cast<std::size_t>(answer.output_tokens());
    result.cached_tokens += static_cast<std::size_t>(std::max(answer.cached_tokens, 0));
    if (is_good(record, goals)) ++good;
  }
  result.completed = completed.size();
  result.failed = outcome.records.size() - result.completed - result.unfinished;
  result.duration = outcome.duration;
  result.client_cpu = outcome.client_cpu;
  result.interrupted = outcome.interrupted;
  const auto per_second = [&result](std::size_t count) {
    return result.duration > 0 ? static_cast<double>(count) / result.duration : 0.0;
  };
  result.request_throughput = per_second(result.completed);
  if (goals.any()) result.request_goodput = per_second(good);
  result.output_throughput = per_second(result.output_tokens);
  result.total_token_throughput = per_second(result.input_tokens + result.output_tokens);
  result.max_output_tokens_per_s = peak_tokens(completed);
  result.max_concurrent_requests = peak_requests(completed);
  add_latencies(completed, percents, result);
  result.account_shares = account_shares(completed);
  return result;
}

}  // namespace kvlane
