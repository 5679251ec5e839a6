// A function on a stack of its own that lets others go on when it says so: what emulated threads
// are. Like ucontext's, but no change asks the kernel to save a mask of signals, which is most of
// what short turns cost.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace kvlane::gpu {

// Of one thread: made, resumed and destroyed there. For x86-64 and AArch64.
class Fiber {
 public:
  // `body` begins at the first resume(), must not throw, and has 256 KiB of stack.
  explicit Fiber(std::function<void()> body);
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  // What is on the stack of a body that has not ended is dropped, not destroyed.
  ~Fiber();

  // Runs the body until it suspends itself or ends. Not once it has ended.
  void resume();
  // By the body: goes back to who resumed it, until somebody does so again.
  void suspend();
  bool ended() const { return ended_; }

 private:
  static void enter();
  void leave();

  std::function<void()> body_;
  std::unique_ptr<std::byte[]> stack_;
  void* own_;                // where its stack ends while it does not run
  void* resumer_ = nullptr;  // that of who resumed it, while it does
  bool ended_ = false;
  // Told by AddressSanitizer, where it is.
  const void* resumer_stack_ = nullptr;
  std::size_t resumer_stack_bytes_ = 0;
};

}  // namespace kvlane::gpu
