// The line, and how often.
// SPDX-License-Identifier: Apache-2.0
#include "cli/load_progress.h"

#include <unistd.h>

#include <cmath>
#include <iostream>

namespace kvlane {

namespace {

// Between two lines of a log.
constexpr double kLogSeconds = 5;

std::string rounded(double value) { return std::to_string(std::lround(value)); }

}  // namespace

std::string progress_text(const LoadProgress& progress) {
  std::string text = progress.warming_up ? "warming up, " : "";
  text += rounded(progress.seconds) + " s: " + std::to_string(progress.completed) + " of " +
          std::to_string(progress.planned) + " answered, " + std::to_string(progress.running) +
          " running, " + std::to_string(progress.failed) + " failed";
  if (progress.seconds > 0 && !progress.warming_up) {
    text += ", " + rounded(static_cast<double>(progress.output_tokens) / progress.seconds) +
            " tokens/s";
  }
  return text;
}

LoadProgressPrinter::LoadProgressPrinter() : terminal_(::isatty(STDERR_FILENO) == 1) {}

LoadProgressPrinter::~LoadProgressPrinter() {
  if (terminal_) std::cerr << "\r\033[K" << std::flush;
}

void LoadProgressPrinter::show(const LoadProgress& progress) {
  if (terminal_) {
    std::cerr << "\r\033[K" << progress_text(progress) << std::flush;
    return;
  }
  if (progress.seconds < printed_at_) printed_at_ = 0;  // the clock starts after the warm-up
  if (progress.seconds < printed_at_ + kLogSeconds) return;
  printed_at_ = progress.seconds;
  std::cerr << progress_text(progress) << '\n';
}

}  // namespace kvlane
