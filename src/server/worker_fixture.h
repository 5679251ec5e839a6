// For tests: workers over fake engines, and reading their streams.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "server/fake_engine.h"
#include "server/raw_http.h"
#include "server/service.h"

namespace kvlane {

// The JSON text of every event; the last event must be [DONE], or must not be with `done` false.
inline std::vector<std::string> events_of(const std::string& stream, bool done = true) {
  std::vector<std::string> events;
  std::size_t at = 0;
  bool seen_done = false;
  while (at < stream.size()) {
    const std::size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an unfinished event";
    if (end == std::string::npos) break;
    const std::string event = stream.substr(at, end - at);
    EXPECT_EQ(event.substr(0, 6), "data: ");
    EXPECT_FALSE(seen_done) << "something behind [DONE]";
    if (event == "data: [DONE]") {
      seen_done = true;
    } else {
      events.push_back(event.substr(6));
    }
    at = end + 2;
  }
  EXPECT_EQ(seen_done, done);
  return events;
}

class WorkerTest : public testing::Test {
 protected:
  struct Running {
    FakeEngine* engine = nullptr;
    std::unique_ptr<Service> service;
    std::uint16_t port = 0;
  };
  Running start(Role role = Role::kBoth, FakeEnginePlan plan = {}, std::string key = {}) {
    auto engine = std::make_unique<FakeEngine>(std::move(plan), &wire_);
    Running running;
    running.engine = engine.get();
    WorkerServiceOptions options;
    options.service.bind = {"127.0.0.1", 0};
    options.service.api_key = std::move(key);
    options.role = role;
    options.model_name = "tiny";
    if (role != Role::kBoth) options.data_plane = Address{"127.0.0.1", 4321};
    auto service = Service::start_worker(std::move(engine), prompter_, std::move(options));
    EXPECT_TRUE(service.ok()) << service.status().message();
    running.service = std::move(*service);
    running.port = running.service->address().port;
    return running;
  }
  static RawResponse complete(const Running& worker, const std::string& body) {
    return raw_exchange(worker.port, "POST", "/v1/completions", body);
  }
  static RawResponse chat(const Running& worker, const std::string& body) {
    return raw_exchange(worker.port, "POST", "/v1/chat/completions", body);
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    for (int i = 0; i < 1000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }

  FakeWire wire_;
  FakePrompter prompter_;
};

}  // namespace kvlane
