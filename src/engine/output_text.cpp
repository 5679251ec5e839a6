// Holds back what could still become a stop string.
// SPDX-License-Identifier: Apache-2.0
#include "engine/output_text.h"

#include <algorithm>
#include <utility>

namespace kvlane {
namespace {

// Length of the longest end of `text` that begins `stop`, without being all of it.
std::size_t overlap(const std::string& text, const std::string& stop) {
  for (std::size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (text.compare(text.size() - length, length, stop, 0, length) == 0) return length;
  }
  return 0;
}

}  // namespace

std::string OutputText::push(std::int32_t token, bool may_stop) {
  if (stopped_) return {};
  held_ += stream_.push(token);
  if (!may_stop) settled_ = held_.size();
  return release_certain();
}

std::string OutputText::finish() {
  if (stopped_) return {};
  held_ += stream_.finish();
  std::string text = release_certain();
  return stopped_ ? text : text + std::exchange(held_, {});
}

std::string OutputText::release_certain() {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stop_) {
    const std::size_t from = settled_ < stop.size() ? 0 : settled_ - stop.size() + 1;
    first = std::min(first, held_.find(stop, from));
  }
  if (first != std::string::npos) {
    stopped_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  std::size_t keep = 0;
  for (const std::string& stop : stop_) keep = std::max(keep, overlap(held_, stop));
  const std::size_t sure = held_.size() - keep;
  std::string certain = held_.substr(0, sure);
  held_.erase(0, sure);
  settled_ -= std::min(settled_, sure);
  return certain;
}

}  // namespace kvlane
