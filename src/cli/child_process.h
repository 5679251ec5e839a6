// A copy of this program as a child process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "kvlane/status.h"

namespace kvlane {

// How long services have to end: longer than the grace they give their requests.
inline constexpr Seconds kServiceStopPatience{6};

// Movable. Destroying it kills the process if it is still there.
class ChildProcess {
 public:
  // Runs this program with `arguments`; its stderr is ours, its stdout is read here.
  // `environment` entries ("NAME=value") are added to ours.
  static Result<ChildProcess> start(std::string name, std::vector<std::string> arguments,
                                    const std::vector<std::string>& environment);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&&) = delete;
  ~ChildProcess();

  const std::string& name() const { return name_; }
  // Becomes readable when the process has ended.
  int descriptor() const { return pidfd_; }

  // The first line of its stdout. kUnavailable when it ends before, kAborted when `stop_descriptor`
  // becomes readable, kTimeout after `patience`.
  Result<std::string> read_line(int stop_descriptor, Seconds patience);

  // Where it listens, as the "url" of that line says, which is an object of JSON. Waits likewise.
  Result<std::string> read_url(int stop_descriptor, Seconds patience);

  // Processor time it has used so far; 0 when it is gone.
  double cpu_seconds() const;

  void ask_to_stop() const;  // SIGTERM
  // Waits for its end, with SIGKILL after `patience`. Returns how it ended, in words.
  std::string wait(Seconds patience);

 private:
  ChildProcess() = default;
  std::string name_;
  int pid_ = -1;
  int pidfd_ = -1;
  int stdout_ = -1;
};

}  // namespace kvlane
