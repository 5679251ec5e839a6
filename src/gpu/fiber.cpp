// Stacks, changed by hand.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/fiber.h"

#include <algorithm>
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

// kvlane_switch_stacks(void** from, void* to): leaves what a called function has to preserve on the
// stack, writes where that ends to *from, and takes the same from the stack at `to`. (System V ABI,
// AMD64 supplement, section 3.2.1; procedure call standard of AArch64, section 6.1; control words
// of floats are the same in all fibers.)
#if defined(__x86_64__)
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
// Words on a stack that is left, the address to return to among them, and one above it: a function
// is entered with the stack half a step of alignment below the top.
constexpr int kSavedWords = 8;
constexpr int kReturnWord = 6;
#elif defined(__aarch64__)
asm(R"(
.pushsection .text
.type kvlane_switch_stacks, @function
kvlane_switch_stacks:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size kvlane_switch_stacks, . - kvlane_switch_stacks
.popsection
)");
constexpr int kSavedWords = 20;
constexpr int kReturnWord = 11;  // x30
#else
#error "fibers, which tests of device code run on, do not know the stacks of this processor"
#endif
extern "C" void kvlane_switch_stacks(void** from, void* to);

// ThreadSanitizer takes fibers for the one thread they are: it sees every access, and of calls only
// how many have not returned, which must not grow, so functions that never return are kept from it.
// Telling it of fibers makes it compare the clocks of hundreds of threads at every turn.
#define KVLANE_UNSEEN_CALL __attribute__((no_sanitize("thread")))

namespace kvlane::gpu {
namespace {

// What a body may use, and what is left free above it: bodies that stand at the same line of code
// touch other cache sets then, not all the same.
constexpr std::size_t kBodyBytes = 256 * 1024;
constexpr std::size_t kShiftBytes = 16 * 1024;
constexpr std::size_t kShiftStep = 5 * 64;
constexpr std::size_t kStackBytes = kBodyBytes + kShiftBytes;
constexpr std::size_t kCallersBytes = 4096;  // of enter() and what it calls to leave

thread_local Fiber* entering = nullptr;
thread_local std::size_t shift = 0;  // of the next body's stack, in bytes

// Those that were used before, for the next ones: the system takes its time to map memory.
thread_local std::vector<std::unique_ptr<std::byte[]>> free_stacks;

std::unique_ptr<std::byte[]> take_stack() {
  if (free_stacks.empty()) return std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  std::unique_ptr<std::byte[]> stack = std::move(free_stacks.back());
  free_stacks.pop_back();
  return stack;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)), stack_(take_stack()) {
  // As if enter() had been left before its first instruction: no frame above, and none to go back
  // to.
  shift = (shift + kShiftStep) % kShiftBytes;
  const auto end =
      (reinterpret_cast<std::uintptr_t>(stack_.get()) + kStackBytes - shift) & ~std::uintptr_t{15};
  void** const saved = reinterpret_cast<void**>(end) - kSavedWords;
  std::fill_n(saved, kSavedWords, nullptr);
  saved[kReturnWord] = reinterpret_cast<void*>(&Fiber::enter);
  own_ = saved;
}

Fiber::~Fiber() {
#ifdef KVLANE_ASAN_FIBERS
  // Functions that never returned have left their red zones: all that run, or where a body ended
  // only those that called it.
  const std::size_t bytes = ended_ ? kShiftBytes + kCallersBytes : kStackBytes;
  __asan_unpoison_memory_region(stack_.get() + (kStackBytes - bytes), bytes);
#endif
  free_stacks.push_back(std::move(stack_));
}

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
