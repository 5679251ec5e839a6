// Turns of fibers, and what survives them.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/fiber.h"

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <stdexcept>
#include <string>

#include "gpu/emulated_block.h"

namespace kvlane::gpu {
namespace {

TEST(Fiber, TakesTurns) {
  std::string turns;
  std::deque<Fiber> fibers;
  for (int i = 0; i < 3; ++i) {
    fibers.emplace_back([&turns, &fibers, i] {
      for (const char part : {'a', 'b'}) {
        turns += std::to_string(i) + part + ' ';
        fibers[i].suspend();
      }
      turns += std::to_string(i) + "end ";
    });
  }
  for (int round = 0; round < 3; ++round) {
    for (Fiber& fiber : fibers) {
      EXPECT_FALSE(fiber.ended());
      fiber.resume();
    }
  }
  EXPECT_EQ(turns, "0a 1a 2a 0b 1b 2b 0end 1end 2end ");
  for (const Fiber& fiber : fibers) EXPECT_TRUE(fiber.ended());
}

// Frames down to most of a stack, with values in registers and in memory.
double sum_of_frames(Fiber& fiber, int depth) {
  std::array<volatile double, 64> values;
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = double(i) + depth;
  if (depth == 150 || depth % 50 == 7) fiber.suspend();
  double sum = depth < 150 ? sum_of_frames(fiber, depth + 1) : 0;
  for (const volatile double& value : values) sum += value;
  return sum;
}

TEST(Fiber, FramesSurviveTurnsAndStacksAreUsedAgain) {
  double expected = 0;
  for (int depth = 0; depth <= 150; ++depth) expected += 64 * depth + 63 * 64 / 2;
  for (int round = 0; round < 20; ++round) {
    std::deque<Fiber> fibers;
    std::array<double, 4> sums{};
    for (int i = 0; i < 4; ++i) {
      fibers.emplace_back([&, i] { sums[i] = sum_of_frames(fibers[i], 0); });
    }
    int turns = 0;
    for (; !fibers.back().ended(); ++turns) {
      for (Fiber& fiber : fibers) fiber.resume();
    }
    EXPECT_EQ(turns, 5);
    for (const double sum : sums) EXPECT_EQ(sum, expected);
  }
}

TEST(Fiber, MayBeDroppedBeforeItEnds) {
  int begun = 0;
  for (int i = 0; i < 10; ++i) {
    std::deque<Fiber> fibers;
    fibers.emplace_back([&] {
      ++begun;
      fibers.front().suspend();
      ++begun;
    });
    if (i % 2 == 0) fibers.front().resume();
  }
  EXPECT_EQ(begun, 5);
}

TEST(EmulatedBlock, ThreadsMeetAtBarriers) {
  constexpr int kThreads = 96;
  for (const std::uint64_t seed : {1, 2, 3}) {
    int before = 0, wrong = 0;
    run_block(kThreads, seed, [&](EmulatedThread& thread) {
      ++before;
      thread.sync_block();
      wrong += before != kThreads;
      wrong += thread.sum(1) != kWarpThreads;
    });
    EXPECT_EQ(wrong, 0);
  }
}

TEST(EmulatedBlock, BarriersThatNotAllReachAreErrors) {
  EXPECT_THROW(run_block(64, 1,
                         [](EmulatedThread& thread) {
                           if (thread.index() != 40) thread.sync_block();
                         }),
               std::logic_error);
  // The next one has nothing of it.
  int done = 0;
  run_block(64, 1, [&](EmulatedThread& thread) {
    thread.sync_block();
    ++done;
  });
  EXPECT_EQ(done, 64);
}

}  // namespace
}  // namespace kvlane::gpu
