// The one place that reads and sets environment variables.
// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <unistd.h>

#include <cstdlib>

namespace kvlane {

void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  if (::setenv("OMP_WAIT_POLICY", "passive", 1) != 0) return;
  ::execv("/proc/self/exe", argv);
}

}  // namespace kvlane
