// Fibers that take turns, and the barriers between them. Without sanitizers (cmake/kvlane.cmake),
// for whole models run through here: what kernels read and write is touched in their own code.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/emulated_block.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <stdexcept>
#include <vector>

#include "gpu/device_float.h"
#include "gpu/fiber.h"

namespace kvlane::gpu {

class EmulatedBlock {
 public:
  using Kernel = std::function<void(EmulatedThread&)>;
  EmulatedBlock(int threads, std::uint64_t seed, const Kernel& kernel)
      : kernel_(kernel),
        random_((2 * seed + 1) * 0x9E3779B97F4A7C15U),
        warps_(threads / kWarpThreads),
        warpgroups_((threads + kWarpgroupThreads - 1) / kWarpgroupThreads),
        slow_(static_cast<int>(below(warps_.size() + 1))) {
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
      const std::size_t pick = this->pick();
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

  // The calling fiber waits until all of its warp (its block) have come here: what they have
  // brought, until it comes again.
  const EmulatedThread::WarpWords& meet_warp(int index, const EmulatedThread::Words& words) {
    Group& warp = warps_[index / kWarpThreads];
    EmulatedThread::WarpWords& brought = warp.words[warp.meetings % 2];
    brought[index % kWarpThreads] = words;
    meet(warp, kWarpThreads);
    return brought;
  }
  void meet_warpgroup(int index) {
    meet(warpgroups_[index / kWarpgroupThreads], kWarpgroupThreads);
  }
  void meet_block() { meet(whole_, threads()); }

  // Arrivals are known by their address. Without a count nobody comes through.
  void init_arrivals(const void* arrivals, int count) { arrivals_[arrivals] = {count}; }
  void arrive(const void* arrivals) {
    Phases& phases = arrivals_[arrivals];
    ++phases.arrived;
    end_phase(phases);
    // What the others do by now is what they may do.
    ready_.push_back(running_);
    fibers_[running_].suspend();
  }
  void expect_bytes(const void* arrivals, std::int64_t bytes) {
    arrivals_[arrivals].expected += bytes;
    arrive(arrivals);
  }
  // Comes when somebody waits for it.
  void copy_bulk(void* to, const void* from, std::int64_t bytes, const void* arrivals) {
    std::memset(to, 0xFF, bytes);
    Phases& phases = arrivals_[arrivals];
    phases.copies.push_back({to, from, bytes});
    wake(phases);
  }
  void wait_arrivals(const void* arrivals, unsigned parity) {
    Phases& phases = arrivals_[arrivals];
    while (phases.ended % 2 == parity) {
      for (const BulkCopy& copy : phases.copies) {
        std::memcpy(copy.to, copy.from, copy.bytes);
        phases.expected -= copy.bytes;
      }
      phases.copies.clear();
      if (end_phase(phases)) continue;
      phases.waiting.push_back(running_);
      fibers_[running_].suspend();
    }
  }
  bool toss() { return below(2) == 0; }

 private:
  struct Group {
    std::vector<int> waiting;
    unsigned meetings = 0;
    // Some may bring theirs to the next meeting while others still look at those of the last.
    std::array<EmulatedThread::WarpWords, 2> words{};
  };

  // A random number below `count`, by xorshift (Marsaglia, 2003): there is one at every turn of a
  // thread, and those of <random> take as long as what threads do in it.
  std::size_t below(std::size_t count) {
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return (random_ >> 32) * count >> 32;
  }

  // Of the ready ones. Seldom one of the slow warp, so that all others are as far as they may be.
  std::size_t pick() {
    constexpr int kTries = 8;
    std::size_t pick = 0;
    for (int i = 0; i < kTries; ++i) {
      pick = below(ready_.size());
      if (ready_[pick] / kWarpThreads != slow_) break;
    }
    return pick;
  }

  struct BulkCopy {
    void* to;
    const void* from;
    std::int64_t bytes;
  };
  struct Phases {
    int count = 0, arrived = 0;
    unsigned ended = 0;
    std::int64_t expected = 0;  // bytes
    std::vector<BulkCopy> copies{};
    std::vector<int> waiting{};
  };
  // If it is over: whether.
  bool end_phase(Phases& phases) {
    if (phases.arrived != phases.count || phases.expected != 0) return false;
    phases.arrived = 0;
    ++phases.ended;
    wake(phases);
    return true;
  }
  void wake(Phases& phases) {
    ready_.insert(ready_.end(), phases.waiting.begin(), phases.waiting.end());
    phases.waiting.clear();
  }

  void meet(Group& group, int size) {
    group.waiting.push_back(running_);
    if (static_cast<int>(group.waiting.size()) == size) {
      ++group.meetings;
      ready_.insert(ready_.end(), group.waiting.begin(), group.waiting.end());
      group.waiting.clear();
    }
    fibers_[running_].suspend();
  }

  const Kernel& kernel_;
  std::uint64_t random_;
  std::deque<Fiber> fibers_;  // which stay where they are
  std::vector<Group> warps_, warpgroups_;
  const int slow_;  // the number of a warp, or of none
  Group whole_;
  std::map<const void*, Phases> arrivals_;
  std::vector<int> ready_;
  int running_ = 0;
};

int EmulatedThread::threads() const { return block_.threads(); }
void EmulatedThread::sync_block() { block_.meet_block(); }
void EmulatedThread::meet_warpgroup() { block_.meet_warpgroup(index_); }
void EmulatedThread::sync_warpgroup(int which) {
  assert(which == warpgroup());
  meet_warpgroup();
}
bool EmulatedThread::toss() { return block_.toss(); }
void EmulatedThread::init_arrivals(Arrivals& arrivals, int count) {
  block_.init_arrivals(&arrivals, count);
}
void EmulatedThread::arrive(Arrivals& arrivals) { block_.arrive(&arrivals); }
void EmulatedThread::expect_bytes(Arrivals& arrivals, unsigned bytes) {
  block_.expect_bytes(&arrivals, bytes);
}
void EmulatedThread::copy_bulk(Words4& to, const std::byte* from, unsigned bytes,
                               Arrivals& arrivals) {
  block_.copy_bulk(&to, from, bytes, &arrivals);
}
void EmulatedThread::wait_arrivals(Arrivals& arrivals, unsigned parity) {
  block_.wait_arrivals(&arrivals, parity);
}

const EmulatedThread::WarpWords& EmulatedThread::exchange(const Words& words) {
  return block_.meet_warp(index_, words);
}

std::uint32_t EmulatedThread::ballot(bool condition) {
  std::uint32_t votes = 0;
  const Lanes all = exchange(condition ? 1U : 0U);
  for (int i = 0; i < kWarpThreads; ++i) votes |= all[i] << i;
  return votes;
}

std::uint32_t EmulatedThread::sum(std::uint32_t x) {
  std::uint32_t total = 0;
  const Lanes all = exchange(x);
  for (int i = 0; i < kWarpThreads; ++i) total += all[i];
  return total;
}

template <int kBits, class Sum, class ValueA, class ValueB>
void EmulatedThread::multiply(Sum (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                              std::uint32_t b1, const ValueA& value_a, const ValueB& value_b) {
  constexpr int kValues = 32 / kBits;  // of a word
  constexpr int kPart = 4 * kValues;   // of a sum, that the first word of each lane has
  const WarpWords& all = exchange({a[0], a[1], a[2], a[3], b0, b1});
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
  const Lanes all = exchange(pair);
  std::uint32_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const int row = lane() % 4 * 2 + half, column = lane() / 4;
    result |= (all[row * 4 + column / 2] >> 16 * (column % 2) & 0xFFFF) << 16 * half;
  }
  return result;
}

void EmulatedThread::exchange_matrices(Words4 own, std::uint32_t (&m)[4]) {
  const WarpWords& all = exchange({own.w[0], own.w[1], own.w[2], own.w[3]});
  for (int i = 0; i < 4; ++i) m[i] = all[8 * i + lane() / 4][lane() % 4];
}

void EmulatedThread::exchange_transposed(Words4 own, std::uint32_t (&m)[4]) {
  const WarpWords& all = exchange({own.w[0], own.w[1], own.w[2], own.w[3]});
  const int column = lane() / 4;
  for (int i = 0; i < 4; ++i) {
    m[i] = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t word = all[8 * i + lane() % 4 * 2 + half][column / 2];
      m[i] |= (word >> 16 * (column % 2) & 0xFFFF) << 16 * half;
    }
  }
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
