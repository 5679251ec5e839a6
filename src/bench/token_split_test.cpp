// Splits by tokens against plans by layers, whose times they must have where they are the same.
// SPDX-License-Identifier: Apache-2.0
#include "bench/token_split.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

constexpr int kTokens = 1024;

// Hidden states are half as large as K and V.
MachineProfile profile(double prefill, double project, double read_rate) {
  MachineProfile profile;
  profile.layers = 8;
  profile.prefill = {{1, prefill}};
  profile.project = {{1, project}};
  profile.forms = {{"hidden", RestoreSource::kHidden, 1000, project},
                   {"kv", RestoreSource::kSlabs, 2000, 0}};
  profile.read_rate = read_rate;
  return profile;
}

RestoreChoice by_layers(const MachineProfile& profile) {
  return plan_restore(restore_costs(profile, kTokens, profile.read_rate));
}

// Only the ends of the split: all from hidden states, and all from tokens or slabs.
TEST(TokenSplit, WholeSequencesTakeWhatPlansOfOneSourceTake) {
  // Computing takes for ever: hidden states or slabs.
  for (const double rate : {1e6, 1e9}) {
    const MachineProfile machine = profile(1, 1e-5, rate);
    const auto [tokens, forms] =
        std::pair(by_layers(machine).from_tokens, by_layers(machine).from_forms);
    const TokenSplit split = best_token_split(machine, kTokens, kTokens);
    EXPECT_NEAR(split.seconds, std::min({tokens.seconds, forms[0].seconds, forms[1].seconds}),
                1e-9);
  }
  // The disk gives nothing.
  const MachineProfile machine = profile(1e-5, 1e-6, 1);
  const TokenSplit split = best_token_split(machine, kTokens, kTokens);
  EXPECT_TRUE(split.recomputes);
  EXPECT_EQ(split.tokens, kTokens);
  EXPECT_EQ(split.hidden_tokens(kTokens), 0);
  EXPECT_NEAR(split.seconds, by_layers(machine).from_tokens.seconds, 1e-9);
}

TEST(TokenSplit, FillsWhatWouldBeIdle) {
  // Reading a token's hidden states takes 1 ms a layer, projecting 3: with x of the tokens from
  // hidden states reading takes 2 - x and computing 3 x, the same at a half.
  const MachineProfile slow_compute = profile(1, 3e-3, 1e6);
  const TokenSplit read = best_token_split(slow_compute, kTokens, 1);
  EXPECT_FALSE(read.recomputes);
  EXPECT_NEAR(read.tokens, kTokens / 2, kTokens / 10);
  EXPECT_LT(read.seconds, by_layers(slow_compute).from_forms[0].seconds);
  EXPECT_LT(read.seconds, by_layers(slow_compute).from_forms[1].seconds);
  // Reading takes 4 ms, projecting 1, computing 7: with x computed 4 (1 - x) = 7 x + (1 - x).
  const MachineProfile slow_disk = profile(7e-3, 1e-3, 0.25e6);
  const TokenSplit computed = best_token_split(slow_disk, kTokens, 1);
  EXPECT_TRUE(computed.recomputes);
  EXPECT_NEAR(computed.tokens, kTokens * 3 / 10, kTokens / 20);
  // At whole blocks it takes no less.
  const TokenSplit rounded = best_token_split(slow_disk, kTokens, 64);
  EXPECT_EQ(rounded.tokens % 64, 0);
  EXPECT_GE(rounded.seconds, computed.seconds);
  EXPECT_LT(rounded.seconds, 1.1 * computed.seconds);
}

}  // namespace
}  // namespace kvlane
