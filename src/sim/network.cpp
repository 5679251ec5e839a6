// Progressive filling, and what it carries.
// SPDX-License-Identifier: Apache-2.0
#include "sim/network.h"

#include <algorithm>
#include <functional>

namespace kvlane {
namespace {

// Times are rounded up to a nanosecond, so this much less than a byte can be left by rounding.
constexpr double kDryBytes = 1e-3;

}  // namespace

std::vector<double> fair_rates(std::span<const double> ports, std::span<const FlowRoute> flows) {
  // A port is two things that fill up: what leaves and what arrives.
  const std::size_t count = ports.size();
  std::vector<double> left(2 * count);
  std::vector<int> growing(2 * count, 0);
  for (std::size_t i = 0; i < count; ++i) left[i] = left[count + i] = ports[i];
  const auto ends = [&](const FlowRoute& flow) {
    return std::pair(static_cast<std::size_t>(flow.from),
                     count + static_cast<std::size_t>(flow.to));
  };
  for (const FlowRoute& flow : flows) {
    ++growing[ends(flow).first];
    ++growing[ends(flow).second];
  }
  std::vector<double> rates(flows.size(), -1);
  const auto settle = [&](std::size_t index, double rate) {
    rates[index] = rate;
    for (const std::size_t end : {ends(flows[index]).first, ends(flows[index]).second}) {
      left[end] = std::max(0.0, left[end] - rate);
      --growing[end];
    }
  };
  for (std::size_t settled = 0; settled < flows.size();) {
    double rate = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < left.size(); ++i) {
      if (growing[i] > 0) rate = std::min(rate, left[i] / growing[i]);
    }
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] < 0) rate = std::min(rate, flows[i].rate_max);
    }
    // Who is full at this rate, judged before anybody takes it.
    std::vector<char> full(left.size());
    for (std::size_t i = 0; i < left.size(); ++i) {
      full[i] = growing[i] > 0 && left[i] / growing[i] <= rate;
    }
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] >= 0) continue;
      const auto [out, in] = ends(flows[i]);
      if (flows[i].rate_max > rate && !full[out] && !full[in]) continue;
      settle(i, rate);
      ++settled;
    }
  }
  return rates;
}

int Network::add_port(double rate) {
  ports_.push_back({.rate = rate});
  return static_cast<int>(ports_.size()) - 1;
}

int Network::open(const FlowRoute& route) {
  const Flow flow{.route = route, .open = true};
  if (closed_.empty()) {
    flows_.push_back(flow);
    return static_cast<int>(flows_.size()) - 1;
  }
  // The lowest number: which one it is must not depend on the order in which others were closed.
  std::pop_heap(closed_.begin(), closed_.end(), std::greater<>());
  const int number = closed_.back();
  closed_.pop_back();
  flows_[number] = flow;
  return number;
}

void Network::close(int flow) {
  flows_[flow].open = false;
  closed_.push_back(flow);
  std::push_heap(closed_.begin(), closed_.end(), std::greater<>());
}

void Network::add_bytes(SimTime now, int flow, double bytes) {
  carry(now);
  Flow& added = flows_[flow];
  const bool was_dry = added.bytes <= kDryBytes;
  added.bytes += bytes;
  added.waited_for = true;
  changed_ = changed_ || was_dry;
}

std::optional<SimTime> Network::next_dry() {
  share_if_changed();
  std::optional<SimTime> first;
  for (const Flow& flow : flows_) {
    if (!flow.waited_for) continue;
    const SimTime time =
        flow.rate == 0 ? now_ : now_ + std::max<SimTime>(1, to_sim_time(flow.bytes / flow.rate));
    if (!first || time < *first) first = time;
  }
  return first;
}

std::vector<int> Network::advance(SimTime now) {
  carry(now);
  std::vector<int> dry;
  for (std::size_t i = 0; i < flows_.size(); ++i) {
    Flow& flow = flows_[i];
    if (!flow.waited_for || flow.bytes > kDryBytes) continue;
    flow.bytes = 0;
    flow.waited_for = false;
    dry.push_back(static_cast<int>(i));
  }
  changed_ = changed_ || !dry.empty();
  return dry;
}

void Network::carry(SimTime now) {
  const double seconds = to_seconds(now - now_);
  now_ = now;
  if (seconds == 0) return;
  share_if_changed();
  std::vector<char> used(ports_.size());
  for (Flow& flow : flows_) {
    if (flow.rate == 0) continue;
    const double bytes = std::min(flow.bytes, flow.rate * seconds);
    flow.bytes -= bytes;
    ports_[flow.route.from].sent += bytes;
    used[flow.route.from] = used[flow.route.to] = 1;
  }
  for (std::size_t i = 0; i < ports_.size(); ++i) {
    if (used[i]) ports_[i].busy += seconds;
  }
}

void Network::share_if_changed() {
  if (changed_) share();
  changed_ = false;
}

void Network::share() {
  std::vector<double> rates_of_ports;
  for (const Port& port : ports_) rates_of_ports.push_back(port.rate);
  std::vector<FlowRoute> routes;
  std::vector<Flow*> carrying;
  for (Flow& flow : flows_) {
    flow.rate = 0;
    if (!flow.open || flow.bytes <= kDryBytes) continue;
    carrying.push_back(&flow);
    routes.push_back(flow.route);
  }
  const std::vector<double> rates = fair_rates(rates_of_ports, routes);
  for (std::size_t i = 0; i < carrying.size(); ++i) carrying[i]->rate = rates[i];
}

}  // namespace kvlane
