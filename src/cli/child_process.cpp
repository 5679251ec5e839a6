// Starting, watching and ending children.
// SPDX-License-Identifier: Apache-2.0
#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

extern "C" {
#include <sys/pidfd.h>  // glibc 2.36 forgets to say that these are C functions
}

namespace kvlane {

namespace {

constexpr std::size_t kLineBytesMax = 64 << 10;

int milliseconds(Seconds seconds) { return static_cast<int>(seconds.count() * 1000); }

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status)) return "was killed by signal " + std::to_string(WTERMSIG(status));
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

}  // namespace

Result<ChildProcess> ChildProcess::start(std::string name, std::vector<std::string> arguments,
                                         const std::vector<std::string>& environment) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return exhausted("the system gives no pipe");
  arguments.insert(arguments.begin(), "kvlane");
  std::vector<std::string> variables = environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    variables.emplace_back(*variable);
  }
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  ChildProcess child;
  child.name_ = std::move(name);
  child.stdout_ = ends[0];
  const int error = ::posix_spawn(&child.pid_, "/proc/self/exe", &actions, nullptr,
                                  pointers(arguments).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    child.pid_ = -1;
    return exhausted("cannot start the " + child.name_ + ": " + std::strerror(error));
  }
  child.pidfd_ = ::pidfd_open(child.pid_, 0);
  if (child.pidfd_ < 0) return exhausted("cannot watch the " + child.name_);
  return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : name_(std::move(other.name_)),
      pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::exchange(other.pidfd_, -1)),
      stdout_(std::exchange(other.stdout_, -1)) {}

ChildProcess::~ChildProcess() {
  wait(Seconds(0));
  if (pidfd_ >= 0) ::close(pidfd_);
  if (stdout_ >= 0) ::close(stdout_);
}

Result<std::string> ChildProcess::read_line(int stop_descriptor, Seconds patience) {
  std::string line;
  const TimePoint start = SteadyClock::now();
  for (;;) {
    const Seconds left = patience - Seconds(seconds_since(start));
    if (left.count() <= 0) return timed_out("the " + name_ + " is not ready in time");
    std::array<pollfd, 2> entries = {{{stop_descriptor, POLLIN, 0}, {stdout_, POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), milliseconds(left)) < 0 && errno != EINTR) {
      return internal_error(std::string("poll: ") + std::strerror(errno));
    }
    if (entries[0].revents != 0) return aborted("stopped while starting");
    if (entries[1].revents == 0) continue;
    char byte = 0;  // one at a time, so that nothing behind the line is lost
    const ssize_t count = ::read(stdout_, &byte, 1);
    if (count <= 0 || line.size() > kLineBytesMax) {
      return unavailable("the " + name_ + " ended before it was ready");
    }
    if (byte == '\n') return line;
    line += byte;
  }
}

Result<std::string> ChildProcess::read_url(int stop_descriptor, Seconds patience) {
  KVLANE_ASSIGN(const std::string line, read_line(stop_descriptor, patience));
  const nlohmann::json ready = nlohmann::json::parse(line, nullptr, false);
  if (!ready.is_object() || !ready.contains("url") || !ready["url"].is_string()) {
    return internal_error("the " + name_ + " did not say where it listens");
  }
  return ready["url"].get<std::string>();
}

double ChildProcess::cpu_seconds() const {
  clockid_t clock{};
  timespec time{};
  if (pid_ <= 0 || ::clock_getcpuclockid(pid_, &clock) != 0) return 0;
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void ChildProcess::ask_to_stop() const {
  if (pid_ > 0) ::kill(pid_, SIGTERM);
}

std::string ChildProcess::wait(Seconds patience) {
  if (pid_ <= 0) return "has ended";
  pollfd entry{pidfd_, POLLIN, 0};
  if (::poll(&entry, 1, milliseconds(patience)) <= 0) ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return describe_end(status);
}

}  // namespace kvlane
