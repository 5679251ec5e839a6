// Threads whose work can wait for what users wait for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace kvlane {

// The calling thread takes processors that nobody else wants from now on, and a little of the
// others: as much as the system grants the lowest priority. Where it refuses, nothing changes.
inline void work_in_background() {
  constexpr int kNicest = 19;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNicest);
}

}  // namespace kvlane
