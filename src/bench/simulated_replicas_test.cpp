// The notation of clusters.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_replicas.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

TEST(Replicas, AreReadAndTold) {
  const auto group = parse_replicas("5xA10G:tp=4,pp=2,net=12.5");
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group->count, 5);
  EXPECT_EQ(group->gpu.name, "A10G");
  EXPECT_EQ(group->parallel.tensor, 4);
  EXPECT_EQ(group->parallel.pipeline, 2);
  EXPECT_DOUBLE_EQ(group->network_rate, 12.5e9 / 8);
  EXPECT_EQ(describe(*group), "5 replicas of 8 A10G (tp=4, pp=2), 12.5 Gbit/s");
}

TEST(Replicas, HaveDefaults) {
  const auto group = parse_replicas("A100-80GB-SXM");
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(describe(*group), "1 replica of 1 A100-80GB-SXM (tp=1, pp=1), 100 Gbit/s");
}

TEST(Replicas, MayBeOfOtherGpus) {
  const Gpu own{.name = "4xmine"};  // a name may look like a number of them
  EXPECT_EQ(parse_replicas("2x4xmine", {&own, 1})->count, 2);
  EXPECT_FALSE(parse_replicas("mine").ok());
}

TEST(Replicas, SayWhatIsWrong) {
  const auto error = [](std::string_view text) { return parse_replicas(text).status().message(); };
  EXPECT_EQ(error("0xL4"), "a group has from 1 to 10000 replicas, not 0");
  EXPECT_EQ(error("99999999999xL4"), "a group has from 1 to 10000 replicas, not 99999999999");
  EXPECT_NE(error("2xA9").find("no GPU 'A9' is known"), std::string::npos);
  EXPECT_NE(error("L4:tp=0").find("tp"), std::string::npos);
  EXPECT_NE(error("L4:net=0").find("net"), std::string::npos);
  EXPECT_NE(error("L4:gpus=2").find("no parameter 'gpus'"), std::string::npos);
  EXPECT_NE(error("").find("no GPU"), std::string::npos);
  EXPECT_NE(error("L4+hack").find("a group of replicas is COUNTxGPU"), std::string::npos);
}

}  // namespace
}  // namespace kvlane
