// Progress of long work, on stderr, where a person is watching.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace kvlane {

// One line that is written over and over: "loading 45 %". Says nothing when stderr is no terminal.
// Removes its line in the destructor.
class Progress {
 public:
  explicit Progress(std::string what);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void show(std::string_view text);
  void hide();  // until the next time
  // For interfaces that tell how much is done and how much there is. Valid as long as this object.
  std::function<void(std::uint64_t, std::uint64_t)> counter();

 private:
  const std::string what_;
  const bool visible_;
  int percent_ = -1;
};

}  // namespace kvlane
