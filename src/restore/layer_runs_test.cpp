// Layers of equal and of different sizes, and more of them than an extent holds.
// SPDX-License-Identifier: Apache-2.0
#include "restore/layer_runs.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

using Runs = std::vector<LayerRun>;

TEST(LayerRuns, AreLargeEnough) {
  EXPECT_EQ(layer_runs(3, {}, 10), Runs());
  EXPECT_EQ(layer_runs(3, {4}, 10), (Runs{{3, 1}}));
  EXPECT_EQ(layer_runs(0, {10, 12, 10}, 10), (Runs{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(layer_runs(1, {6, 4, 9, 1, 5, 5}, 10), (Runs{{1, 2}, {3, 2}, {5, 2}}));
  EXPECT_EQ(layer_runs(0, {1, 9}), (Runs{{0, 2}}));
}

TEST(LayerRuns, WhatIsLeftGoesWithTheRunBefore) {
  EXPECT_EQ(layer_runs(2, {5, 5, 5, 5, 5}, 10), (Runs{{2, 2}, {4, 3}}));
  EXPECT_EQ(layer_runs(0, {20, 3, 3}, 10), (Runs{{0, 3}}));
}

TEST(LayerRuns, HoldNoMoreLayersThanAnExtent) {
  EXPECT_EQ(
      layer_runs(0, std::vector<std::size_t>(2 * kExtentLayersMax + 1, 1), 1000),
      (Runs{
          {0, kExtentLayersMax}, {kExtentLayersMax, kExtentLayersMax}, {2 * kExtentLayersMax, 1}}));
  // Two that are short make one extent where they fit.
  EXPECT_EQ(layer_runs(0, std::vector<std::size_t>(kExtentLayersMax - 1, 1), 50),
            (Runs{{0, kExtentLayersMax - 1}}));
  EXPECT_EQ(layer_runs(0, std::vector<std::size_t>(kExtentLayersMax + 15, 1), 50),
            (Runs{{0, 50}, {50, 45}}));
}

}  // namespace
}  // namespace kvlane
