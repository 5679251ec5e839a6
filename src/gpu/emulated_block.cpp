// Fibers over ucontext, and the barriers between them.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulated_block.h"

#include <ucontext.h>

#include <cassert>
#include <random>
#include <stdexcept>
#include <vector>

#include "gpu/device_float.h"

// Sanitizers have to be told of every change of stacks.
#if defined(__SANITIZE_ADDRESS__)
#define KVLANE_ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVLANE_ASAN_FIBERS 1
#endif
#endif
#ifdef KVLANE_ASAN_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace kvlane::gpu {

namespace {
constexpr std::size_t kStackBytes = 256 * 1024;

#ifdef __SANITIZE_THREAD__
// What ThreadSanitizer knows of fibers. Making one takes it long, so they are used again by the
// blocks of a thread; but not for ever, as every use leaves functions on its stack that never
// return.
class KnownFibers {
 public:
  struct Known {
    void* fiber;
    int uses;
  };
  KnownFibers() = default;
  KnownFibers(const KnownFibers&) = delete;
  KnownFibers& operator=(const KnownFibers&) = delete;
  ~KnownFibers() {
    for (const Known& known : free_) __tsan_destroy_fiber(known.fiber);
  }
  Known take() {
    if (free_.empty()) return {__tsan_create_fiber(0), 0};
    const Known known = free_.back();
    free_.pop_back();
    return known;
  }
  void give(Known known) {
    if (++known.uses < kUsesMax) {
      free_.push_back(known);
    } else {
      __tsan_destroy_fiber(known.fiber);
    }
  }

 private:
  static constexpr int kUsesMax = 2000;
  std::vector<Known> free_;
};
thread_local KnownFibers known_fibers;
#endif
}  // namespace

class EmulatedBlock {
 public:
  using Kernel = std::function<void(EmulatedThread&)>;
  EmulatedBlock(int threads, std::uint64_t seed, const Kernel& kernel)
      : kernel_(kernel), random_(seed), fibers_(threads), warps_(threads / kWarpThreads) {
    assert(threads % kWarpThreads == 0);
  }

  void run() {
    for (int i = 0; i < threads(); ++i) prepare(i);
    while (!ready_.empty()) {
      const std::size_t pick = random_() % ready_.size();
      running_ = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      switch_to(fibers_[running_]);
    }
    if (done_ != static_cast<int>(fibers_.size())) {
      throw std::logic_error("some threads of the block wait for others that have ended");
    }
  }

  int threads() const { return static_cast<int>(fibers_.size()); }

  // The calling fiber waits until all of its warp (its block) have come here.
  void meet_warp(int index, const EmulatedThread::Words& words) {
    Group& warp = warps_[index / kWarpThreads];
    warp.brought[index % kWarpThreads] = words;
    meet(warp, kWarpThreads);
  }
  const std::array<EmulatedThread::Words, kWarpThreads>& brought(int index) const {
    return warps_[index / kWarpThreads].told;
  }
  void meet_block() { meet(whole_, threads()); }

 private:
  struct Fiber {
    ucontext_t context;
    std::unique_ptr<std::byte[]> stack;
#ifdef __SANITIZE_THREAD__
    KnownFibers::Known known = known_fibers.take();
    ~Fiber() { known_fibers.give(known); }
#endif
  };
  struct Group {
    std::vector<int> waiting;
    std::array<EmulatedThread::Words, kWarpThreads> brought{}, told{};
  };

  void prepare(int index) {
    Fiber& fiber = fibers_[index];
    fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&fiber.context, reinterpret_cast<void (*)()>(&EmulatedBlock::enter), 3,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self),
                static_cast<unsigned>(index));
    ready_.push_back(index);
  }

  static void enter(unsigned high, unsigned low, unsigned index) {
    auto* const block =
        reinterpret_cast<EmulatedBlock*>(static_cast<std::uintptr_t>(high) << 32 | low);
#ifdef KVLANE_ASAN_FIBERS
    __sanitizer_finish_switch_fiber(nullptr, &block->main_stack_, &block->main_stack_bytes_);
#endif
    {
      EmulatedThread thread(*block, static_cast<int>(index));
      block->kernel_(thread);
    }
    ++block->done_;
    block->switch_back(true);
  }

  void switch_to(Fiber& fiber) {
#ifdef KVLANE_ASAN_FIBERS
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
    swapcontext(&main_, &fiber.context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(fiber.known.fiber, 0);
#endif
    swapcontext(&main_, &fiber.context);
#endif
  }
  void switch_back([[maybe_unused]] bool for_good) {
    Fiber& fiber = fibers_[running_];
#ifdef KVLANE_ASAN_FIBERS
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(for_good ? nullptr : &fake, main_stack_, main_stack_bytes_);
    swapcontext(&fiber.context, &main_);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(main_known_, 0);
#endif
    swapcontext(&fiber.context, &main_);
#endif
  }

  void meet(Group& group, int size) {
    group.waiting.push_back(running_);
    if (static_cast<int>(group.waiting.size()) == size) {
      group.told = group.brought;
      ready_.insert(ready_.end(), group.waiting.begin(), group.waiting.end());
      group.waiting.clear();
    }
    switch_back(false);
  }

  const Kernel& kernel_;
  std::mt19937_64 random_;
  std::vector<Fiber> fibers_;
  std::vector<Group> warps_;
  Group whole_;
  std::vector<int> ready_;
  int running_ = 0;
  int done_ = 0;
  ucontext_t main_{};
#ifdef __SANITIZE_THREAD__
  void* const main_known_ = __tsan_get_current_fiber();
#endif
#ifdef KVLANE_ASAN_FIBERS
  const void* main_stack_ = nullptr;
  std::size_t main_stack_bytes_ = 0;
#endif
};

int EmulatedThread::threads() const { return block_.threads(); }
void EmulatedThread::sync_block() { block_.meet_block(); }

const EmulatedThread::Lanes& EmulatedThread::exchange(std::uint32_t x) {
  block_.meet_warp(index_, {x});
  const auto& all = block_.brought(index_);
  for (int i = 0; i < kWarpThreads; ++i) seen_[i] = all[i][0];
  return seen_;
}

std::uint32_t EmulatedThread::ballot(bool condition) {
  std::uint32_t votes = 0;
  const Lanes& all = exchange(condition ? 1 : 0);
  for (int i = 0; i < kWarpThreads; ++i) votes |= all[i] << i;
  return votes;
}

std::uint32_t EmulatedThread::sum(std::uint32_t x) {
  std::uint32_t total = 0;
  for (const std::uint32_t y : exchange(x)) total += y;
  return total;
}

template <int kBits, class Sum, class ValueA, class ValueB>
void EmulatedThread::multiply(Sum (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1, const ValueA& value_a, const ValueB& value_b) {
  constexpr int kValues = 32 / kBits;  // of a word
  constexpr int kPart = 4 * kValues;   // of a sum, that the first word of each lane has
  block_.meet_warp(index_, {a[0], a[1], a[2], a[3], b0, b1});
  const auto& all = block_.brought(index_);
  for (int i = 0; i < 4; ++i) {
    const int row = lane() / 4 + i / 2 * 8;
    const int column = lane() % 4 * 2 + i % 2;
    for (int k = 0; k < 2 * kPart; ++k) {
      const int part = k / kPart, owner = k % kPart / kValues, at = k % kValues;
      const Words& of_a = all[row % 8 * 4 + owner];
      const Words& of_b = all[column * 4 + owner];
      d[i] += value_a(of_a[2 * part + row / 8], at) * value_b(of_b[4 + part], at);
    }
  }
}

void EmulatedThread::mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  const auto half = [](std::uint32_t pair, int which) {
    return float_of(which == 0 ? pair << 16 : pair & 0xFFFF0000U);
  };
  multiply<16>(d, a, b0, b1, half, half);
}

void EmulatedThread::mma_fp16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  const auto half = [](std::uint32_t pair, int which) {
    return which == 0 ? low_fp16(pair) : high_fp16(pair);
  };
  multiply<16>(d, a, b0, b1, half, half);
}

namespace {
std::int32_t unsigned_byte(std::uint32_t word, int i) {
  return static_cast<std::uint8_t>(word >> 8 * i);
}
std::int32_t signed_byte(std::uint32_t word, int i) {
  return static_cast<std::int8_t>(word >> 8 * i);
}
}  // namespace

void EmulatedThread::mma_u8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  multiply<8>(d, a, b0, b1, unsigned_byte, signed_byte);
}

void EmulatedThread::mma_u8u8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  multiply<8>(d, a, b0, b1, unsigned_byte, unsigned_byte);
}

void EmulatedThread::mma_s8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1) {
  multiply<8>(d, a, b0, b1, signed_byte, signed_byte);
}

std::uint32_t EmulatedThread::transposed(std::uint32_t pair) {
  const Lanes& all = exchange(pair);
  std::uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const int row = lane() % 4 * 2 + half, column = lane() / 4;
    result |= (all[row * 4 + column / 2] >> 16 * (column % 2) & 0xFFFF) << 16 * half;
  }
  return result;
}

// A lane reads its own row before the warp meets.
void EmulatedThread::load_matrices(const Words4& own, std::uint32_t (&m)[4]) {
  block_.meet_warp(index_, {own.w[0], own.w[1], own.w[2], own.w[3]});
  const auto& all = block_.brought(index_);
  for (int i = 0; i < 4; ++i) m[i] = all[8 * i + lane() / 4][lane() % 4];
}

void EmulatedThread::load_transposed(const Words4& own, std::uint32_t (&m)[4]) {
  block_.meet_warp(index_, {own.w[0], own.w[1], own.w[2], own.w[3]});
  const auto& all = block_.brought(index_);
  const int column = lane() / 4;
  for (int i = 0; i < 4; ++i) {
    m[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t word = all[8 * i + lane() % 4 * 2 + half][column / 2];
      m[i] |= (word >> 16 * (column % 2) & 0xFFFF) << 16 * half;
    }
  }
}

void EmulatedThread::copy_async(Words4& to, const std::byte* from, bool wanted) {
  to = {{~0U, ~0U, ~0U, ~0U}};
  copies_.push_back({&to, from, wanted, groups_});
}

void EmulatedThread::complete_copies(int group) {
  std::size_t done = 0;
  for (; done < copies_.size() && copies_[done].group <= group; ++done) {
    const Copy& copy = copies_[done];
    if (copy.wanted) {
      std::memcpy(copy.to, copy.from, sizeof(Words4));
    } else {
      *copy.to = {};
    }
  }
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(done));
}

void run_block(int threads, std::uint64_t seed,
               const std::function<void(EmulatedThread&)>& kernel) {
  EmulatedBlock(threads, seed, kernel).run();
}

}  // namespace kvlane::gpu
