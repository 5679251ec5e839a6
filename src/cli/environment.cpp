// The one place that reads and sets environment variables, and the limit of open files.
// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>

namespace kvlane {

namespace {

// Turns of an empty loop: 25 us on an EPYC of Zen 4.
constexpr const char* kSpins = "500";

bool shares_its_machine(const char* command) {
  constexpr std::string_view kWorkers[] = {"up", "prefill", "decode", "rank"};
  return command != nullptr &&
         std::find(std::begin(kWorkers), std::end(kWorkers), command) != std::end(kWorkers);
}

}  // namespace

void choose_how_to_wait(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  const bool sleeps = argv[0] != nullptr && shares_its_machine(argv[1]);
  // "active", or threads would not spin at all where another thread of the process had loops, too.
  if (::setenv("OMP_WAIT_POLICY", sleeps ? "passive" : "active", 1) != 0) return;
  if (::setenv("GOMP_SPINCOUNT", sleeps ? "0" : kSpins, 1) != 0) return;
  ::execv("/proc/self/exe", argv);
}

void allow_many_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if it is refused, connections beyond it wait
}

}  // namespace kvlane
