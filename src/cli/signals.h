// Ctrl-C and SIGTERM as something one can wait for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvlane/status.h"

namespace kvlane {

// From construction on, the first SIGINT, SIGTERM or SIGHUP makes descriptor() readable instead of
// ending the process; the second one ends it. One in a process; lives to its end.
class EndingSignals {
 public:
  static Result<EndingSignals> install();

  int descriptor() const { return descriptor_; }

 private:
  explicit EndingSignals(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

// Sends this process that signal, SIGTERM, when its parent dies, and at once when `parent` is no
// longer the parent.
void end_with_parent(int parent);
void end_with_parent(int parent, int signal);

}  // namespace kvlane
