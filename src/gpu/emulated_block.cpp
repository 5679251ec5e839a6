// Fibers that take turns, and the barriers between them.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulated_block.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <stdexcept>
#include <vector>

#include "gpu/device_float.h"
#include "gpu/fiber.h"

namespace kvlane::gpu {

class EmulatedBlock {
 public:
  using Kernel = std::function<void(EmulatedThread&)>;
  EmulatedBlock(int threads, std::uint64_t seed, const Kernel& kernel)
      : kernel_(kernel), random_(seed), warps_(threads / kWarpThreads) {
    assert(threads % kWarpThreads == 0);
    for (int i = 0; i < threads; ++i) {
      fibers_.emplace_back([this, i] {
        EmulatedThread thread(*this, i);
        kernel_(thread);
      });
      ready_.push_back(i);
    }
  }

  void run() {
    while (!ready_.empty()) {
      const std::size_t pick = random_() % ready_.size();
      running_ = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      fibers_[running_].resume();
    }
    if (!std::all_of(fibers_.begin(), fibers_.end(), std::mem_fn(&Fiber::ended))) {
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
  struct Group {
    std::vector<int> waiting;
    std::array<EmulatedThread::Words, kWarpThreads> brought{}, told{};
  };

  void meet(Group& group, int size) {
    group.waiting.push_back(running_);
    if (static_cast<int>(group.waiting.size()) == size) {
      group.told = group.brought;
      ready_.insert(ready_.end(), group.waiting.begin(), group.waiting.end());
      group.waiting.clear();
    }
    fibers_[running_].suspend();
  }

  const Kernel& kernel_;
  std::mt19937_64 random_;
  std::deque<Fiber> fibers_;  // which stay where they are
  std::vector<Group> warps_;
  Group whole_;
  std::vector<int> ready_;
  int running_ = 0;
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
