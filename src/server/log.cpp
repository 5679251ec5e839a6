// The one file that knows spdlog.
// SPDX-License-Identifier: Apache-2.0
#include "server/log.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <array>
#include <string>
#include <utility>

namespace kvlane {

namespace {

constexpr std::size_t kLineBytesMax = 2000;  // longer texts are cut: paths and errors quote clients

constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 5> kLevels = {{
    {"debug", spdlog::level::debug},
    {"info", spdlog::level::info},
    {"warning", spdlog::level::warn},
    {"error", spdlog::level::err},
    {"off", spdlog::level::off},
}};

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto made = spdlog::stderr_logger_mt("kvlane");
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e %P %l: %v");
    made->set_level(spdlog::level::warn);
    return made;
  }();
  return *instance;
}

// A line break in a request's path must not look like a line of ours.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kLineBytesMax)) {
    if (c >= ' ' && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

void log(spdlog::level::level_enum level, std::string_view text) {
  if (logger().should_log(level)) logger().log(level, "{}", printable(text));
}

}  // namespace

Status set_log_level(std::string_view level) {
  for (const auto& [name, value] : kLevels) {
    if (name != level) continue;
    logger().set_level(value);
    return {};
  }
  return invalid_argument("'" + std::string(level) +
                          "' is not a log level; known: debug, info, warning, error, off");
}

void log_debug(std::string_view text) { log(spdlog::level::debug, text); }
void log_info(std::string_view text) { log(spdlog::level::info, text); }
void log_warning(std::string_view text) { log(spdlog::level::warn, text); }

void log_request(std::string_view method, std::string_view path, int status, std::string_view id,
                 double seconds) {
  if (!logger().should_log(spdlog::level::info)) return;
  const std::string outcome = status == 0 ? "client left" : std::to_string(status);
  log_info(fmt::format("{} {} {} {:.3f} s {}", method, path, outcome, seconds, id));
}

}  // namespace kvlane
