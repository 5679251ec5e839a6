// The one place that reads and sets environment variables, and the limit of open files.
// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>

namespace kvlane {

void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  ::execv("/proc/self/exe", argv);
}

void allow_many_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if it is refused, connections beyond it wait
}

}  // namespace kvlane
