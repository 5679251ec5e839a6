// Commands from other threads to the engine's thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace kvlane {

// Thread-safe. Shared with callbacks that may outlive the engine: what they post then is dropped.
class Inbox {
 public:
  using Command = std::function<void()>;

  void post(Command command) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return;
      commands_.push_back(std::move(command));
      idle_ = false;
    }
    wake_.notify_one();
  }

  // Moves the commands that came into `commands` (empty on entry), after waiting up to `wait` for
  // the first. `idle`: the caller has nothing else to do, as wait_idle() wants to know.
  void take(std::vector<Command>& commands, Seconds wait, bool idle) {
    std::unique_lock lock(mutex_);
    idle_ = idle && commands_.empty();
    if (idle_) became_idle_.notify_all();
    wake_.wait_for(lock, wait, [this] { return stop_ || !commands_.empty(); });
    std::swap(commands, commands_);
  }

  void wait_idle() {
    std::unique_lock lock(mutex_);
    became_idle_.wait(lock, [this] { return idle_ || closed_; });
  }

  // Asks the engine's thread to end, and whether somebody did.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
  }
  bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stop_;
  }

  // Nothing is taken any more.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    commands_.clear();
    became_idle_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable became_idle_;
  std::vector<Command> commands_;
  bool idle_ = true;
  bool stop_ = false;
  bool closed_ = false;
};

}  // namespace kvlane
