// A pipe that the signal handler writes to.
// SPDX-License-Identifier: Apache-2.0
#include "cli/signals.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace kvlane {

namespace {

int handler_pipe = -1;  // written once, before any handler is installed

void on_signal(int) {
  const int saved = errno;
  const char byte = 0;
  // A full pipe has told already.
  [[maybe_unused]] const ssize_t written = ::write(handler_pipe, &byte, 1);
  errno = saved;
}

}  // namespace

Result<EndingSignals> EndingSignals::install() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return exhausted("the system gives no pipe for signals");
  }
  handler_pipe = ends[1];
  struct sigaction action {};
  action.sa_handler = on_signal;
  // The second signal finds the default action: for those who cannot wait.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
  return EndingSignals(ends[0]);
}

void end_with_parent(int parent) { end_with_parent(parent, SIGTERM); }

void end_with_parent(int parent, int signal) {
  ::prctl(PR_SET_PDEATHSIG, signal);
  if (::getppid() != parent) ::raise(signal);
}

}  // namespace kvlane
