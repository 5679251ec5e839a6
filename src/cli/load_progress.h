// How a load run goes, on stderr: one line written over and over on a terminal, a line every few
// seconds elsewhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bench/serve_load.h"

namespace kvlane {

// One line, without its end: "12 s: 34 of 100 answered, 8 running, 0 failed, 567 tokens/s".
std::string progress_text(const LoadProgress& progress);

// To be used from one thread at a time. Removes its line from a terminal in the destructor.
class LoadProgressPrinter {
 public:
  LoadProgressPrinter();
  ~LoadProgressPrinter();
  LoadProgressPrinter(const LoadProgressPrinter&) = delete;
  LoadProgressPrinter& operator=(const LoadProgressPrinter&) = delete;

  void show(const LoadProgress& progress);

 private:
  const bool terminal_;
  double printed_at_ = 0;  // seconds of the run
};

}  // namespace kvlane
