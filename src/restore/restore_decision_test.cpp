// How much comes back, and from what, held against every other choice.
// SPDX-License-Identifier: Apache-2.0
#include "restore/restore_decision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/random.h"
#include "format/shape.h"

namespace kvlane {
namespace {

constexpr int kProfileLayers = 4;

// A layer computes 1,000 tokens in a second and projects 10,000; hidden states of a block are half
// of its slabs, of which 100 are read in a second.
MachineProfile plain_profile() {
  MachineProfile profile;
  profile.layers = kProfileLayers;
  profile.prefill = {{1000, 1.0}};
  profile.project = {{1000, 0.1}};
  profile.forms = {{"hidden", RestoreSource::kHidden, 500, 1e-4},
                   {"kv", RestoreSource::kSlabs, 1000, 0}};
  profile.read_rate = 100 * 1000.0 * kBlockTokens;
  return profile;
}

StoredBlocks stored(int first, int hidden, int slabs) {
  StoredBlocks all{first, {}, {}};
  all.hidden.assign(kProfileLayers, {hidden, 500.0 * kBlockTokens, "hidden"});
  all.slabs.assign(kProfileLayers, {slabs, 1000.0 * kBlockTokens, "kv"});
  return all;
}

TEST(RestoreDecision, NothingComesOfNothing) {
  const MachineProfile profile = plain_profile();
  EXPECT_EQ(decide_restore(&profile, stored(0, 0, 0), 1000).blocks, 0);
  EXPECT_EQ(decide_restore(nullptr, stored(0, 0, 0), 1000).blocks, 0);
  // All that could come back is in the cache already.
  EXPECT_EQ(decide_restore(&profile, stored(15, 0, 9), 1000).blocks, 0);
}

TEST(RestoreDecision, OneTokenIsLeftToBeComputed) {
  const MachineProfile profile = plain_profile();
  EXPECT_EQ(decide_restore(&profile, stored(0, 0, 9), 4 * kBlockTokens).blocks, 3);
  EXPECT_EQ(decide_restore(&profile, stored(0, 0, 9), 4 * kBlockTokens + 1).blocks, 4);
  EXPECT_EQ(decide_restore(&profile, stored(2, 0, 9), 4 * kBlockTokens + 1).blocks, 2);
}

// Ranks of a pipeline behind the first one.
TEST(RestoreDecision, WithoutTheLayersBeforeNothingComesFromTokens) {
  MachineProfile profile = plain_profile();
  for (const double rate : {0.3, 1.0, 4.0}) {
    profile.read_rate = rate * plain_profile().read_rate;
    StoredBlocks there = stored(0, 9, 9);
    there.from_tokens = false;
    const RestoreDecision decision = decide_restore(&profile, there, 1000);
    EXPECT_EQ(decision.recomputed, 0);
    EXPECT_EQ(decision.expected.recompute, 0);
    ASSERT_EQ(decision.sources.size(), std::size_t{kProfileLayers});
    // Worth no less than hidden states alone, of which none are free.
    const double rows = 9.0 * kBlockTokens;
    const double hidden = kProfileLayers * rows * std::max(500 / profile.read_rate, 1e-4);
    EXPECT_EQ(decision.blocks, 9);
    EXPECT_LT(decision.seconds, 2 * hidden);
    there.hidden.front().blocks = 0;  // of one layer there are slabs alone
    there.slabs.back().blocks = 0;  // and of one hidden states alone, in an order that no plan has
    EXPECT_EQ(decide_restore(&profile, there, 1000).blocks, 0);
    there.from_tokens = true;
    EXPECT_EQ(decide_restore(&profile, there, 1000).blocks, 9);
  }
}

TEST(RestoreDecision, WithoutAProfileItReadsWhatItCan) {
  const RestoreDecision slabs = decide_restore(nullptr, stored(0, 7, 7), 1000);
  EXPECT_EQ(slabs.blocks, 7);
  EXPECT_EQ(slabs.seconds, 0);
  EXPECT_EQ(std::count(slabs.sources.begin() + slabs.recomputed, slabs.sources.end(),
                       RestoreSource::kSlabs),
            kProfileLayers - slabs.recomputed);
  StoredBlocks hidden = stored(0, 7, 0);
  hidden.hidden[0].blocks = 0;  // as they are stored
  const RestoreDecision projected = decide_restore(nullptr, hidden, 1000);
  EXPECT_EQ(projected.blocks, 7);
  EXPECT_EQ(projected.recomputed, 1);
}

TEST(RestoreDecision, ADiskThatIsSlowerThanComputingIsLeftAlone) {
  MachineProfile profile = plain_profile();
  profile.read_rate = 1000;
  EXPECT_EQ(decide_restore(&profile, stored(0, 9, 9), 1000).blocks, 0);
}

// Seconds until all tokens are computed when `blocks` come back by `plan`.
double seconds_until(const MachineProfile& profile, int first, int blocks, double plan_seconds,
                     int tokens) {
  const int end = (first + blocks) * kBlockTokens;
  return plan_seconds + kProfileLayers * (seconds_for(profile.prefill, tokens) -
                                          seconds_for(profile.prefill, end));
}

TEST(RestoreDecision, IsNeverSlowerThanAnyNumberOfBlocksFromOneSource) {
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    std::uint32_t drawn = 0;
    const auto draw = [&](int most) {
      return static_cast<int>(philox4x32(seed, {++drawn, 0, 0, 0})[0] %
                              static_cast<std::uint32_t>(most));
    };
    MachineProfile profile = plain_profile();
    profile.prefill = {{64, 0.01 + 0.01 * draw(9)}, {1024, 0.2 + 0.4 * draw(9)}};
    profile.read_rate *= 0.02 * (1 + draw(100));
    StoredBlocks there = stored(draw(4), 0, 0);
    for (int layer = 0; layer < kProfileLayers; ++layer) {
      there.hidden[layer].blocks = draw(3) == 0 ? draw(12) : 8;
      there.slabs[layer].blocks = draw(3) == 0 ? draw(12) : 8;
    }
    const int tokens = 300 + draw(900);
    const RestoreDecision decision = decide_restore(&profile, there, tokens);
    const double taken =
        seconds_until(profile, there.first, decision.blocks, decision.seconds, tokens);
    EXPECT_LE(taken, seconds_until(profile, there.first, 0, 0, tokens) + 1e-9) << seed;
    const int most = (tokens - 1) / kBlockTokens - there.first;
    for (const auto* layers : {&there.hidden, &there.slabs}) {
      int blocks = most;
      for (const StoredLayer& layer : *layers) blocks = std::min(blocks, layer.blocks);
      if (blocks <= 0) continue;
      const double reading = kProfileLayers * blocks * layers->front().bytes / profile.read_rate;
      const double computing =
          layers == &there.hidden ? kProfileLayers * blocks * kBlockTokens * 1e-4 : 0;
      EXPECT_LE(taken,
                seconds_until(profile, there.first, blocks, reading + computing, tokens) + 1e-9)
          << seed;
    }
    // What it says can be done: every layer behind the recomputed ones has that many blocks.
    for (int layer = decision.recomputed; decision.blocks > 0 && layer < kProfileLayers; ++layer) {
      const bool hidden = decision.sources[layer] == RestoreSource::kHidden;
      const int has = hidden ? there.hidden[layer].blocks : there.slabs[layer].blocks;
      EXPECT_GE(has, decision.blocks) << seed << " layer " << layer;
    }
  }
}

}  // namespace
}  // namespace kvlane
