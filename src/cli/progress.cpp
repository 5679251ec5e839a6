// The progress line.
// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <unistd.h>

#include <iostream>
#include <utility>

namespace kvlane {

Progress::Progress(std::string what)
    : what_(std::move(what)), visible_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { hide(); }

void Progress::hide() {
  if (visible_) std::cerr << "\r\033[K" << std::flush;
}

void Progress::show(std::string_view text) {
  if (visible_) std::cerr << "\r\033[K" << what_ << ": " << text << std::flush;
}

std::function<void(std::uint64_t, std::uint64_t)> Progress::counter() {
  return [this](std::uint64_t done, std::uint64_t total) {
    const int percent =
        total == 0
            ? 100
            : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == std::exchange(percent_, percent)) return;
    show(std::to_string(percent) + " %");
  };
}

}  // namespace kvlane
