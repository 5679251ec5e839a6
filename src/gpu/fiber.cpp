// Stacks, changed by hand.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/fiber.h"

#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

// AddressSanitizer has to be told of every change of stacks.
#if defined(__SANITIZE_ADDRESS__)
#define KVLANE_ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVLANE_ASAN_FIBERS 1
#endif
#endif
#ifdef KVLANE_ASAN_FIBERS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#ifndef __x86_64__
#error "fibers, which tests of device code run on, know the stacks of x86-64 alone"
#endif

// kvlane_switch_stacks(void** from, void* to): leaves what a called function has to preserve on the
// stack, writes where that ends to *from, and takes the same from the stack at `to`. (System V ABI,
// AMD64 supplement, section 3.2.1; control words of floats are the same in all fibers.)
asm(R"(
.pushsection .text
.type kvlane_switch_stacks, @function
kvlane_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size kvlane_switch_stacks, . - kvlane_switch_stacks
.popsection
)");
extern "C" void kvlane_switch_stacks(void** from, void* to);

// ThreadSanitizer takes fibers for the one thread they are: it sees every access, and of calls only
// how many have not returned, which must not grow, so functions that never return are kept from it.
// Telling it of fibers makes it compare the clocks of hundreds of threads at every turn.
#define KVLANE_UNSEEN_CALL __attribute__((no_sanitize("thread")))

namespace kvlane::gpu {
namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr int kSavedRegisters = 6;

thread_local Fiber* entering = nullptr;

// Those that were used before, for the next ones: the system takes its time to map memory.
thread_local std::vector<std::unique_ptr<std::byte[]>> free_stacks;

std::unique_ptr<std::byte[]> take_stack() {
  if (free_stacks.empty()) return std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  std::unique_ptr<std::byte[]> stack = std::move(free_stacks.back());
  free_stacks.pop_back();
#ifdef KVLANE_ASAN_FIBERS
  // Functions that never returned have left their red zones.
  __asan_unpoison_memory_region(stack.get(), kStackBytes);
#endif
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  // As enter() finds it when it is called: no frame above, an address to return to, which is none.
  const auto end =
      (reinterpret_cast<std::uintptr_t>(stack_.get()) + kStackBytes) & ~std::uintptr_t{15};
  void** top = reinterpret_cast<void**>(end);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  own_ = top;
}

Fiber::~Fiber() { free_stacks.push_back(std::move(stack_)); }

KVLANE_UNSEEN_CALL void Fiber::resume() {
  assert(!ended_);
  entering = this;
#ifdef KVLANE_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stack_.get(), kStackBytes);
#endif
  kvlane_switch_stacks(&resumer_, own_);
#ifdef KVLANE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

KVLANE_UNSEEN_CALL void Fiber::enter() {
  Fiber& self = *entering;
#ifdef KVLANE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &self.resumer_stack_, &self.resumer_stack_bytes_);
#endif
  self.body_();
  self.ended_ = true;
  self.leave();
}

KVLANE_UNSEEN_CALL void Fiber::suspend() {
  assert(!ended_);
  leave();
}

KVLANE_UNSEEN_CALL void Fiber::leave() {
#ifdef KVLANE_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(ended_ ? nullptr : &fake, resumer_stack_, resumer_stack_bytes_);
#endif
  kvlane_switch_stacks(&own_, resumer_);
#ifdef KVLANE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

}  // namespace kvlane::gpu
