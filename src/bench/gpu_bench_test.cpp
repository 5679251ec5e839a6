// What kvlane_gpu_bench refuses, and what it says where no GPU is.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device.h"

namespace kvlane {
namespace {

using testing::HasSubstr;

Status refusal(const GpuBenchOptions& options) {
  return bench_gpu(options, [](const std::string& what) { ADD_FAILURE() << what; }).status();
}

TEST(GpuBench, RefusesWhatItDoesNotMeasureBeforeItLooksForAGpu) {
  const std::pair<GpuBenchOptions, const char*> cases[] = {
      {{.planes = 0}, "planes must be from 1"},
      {{.rounds = 0}, "rounds must be 1 or more"},
      {{.planes = 64, .launches = {48}}, "do not divide 64"},
      {{.launches = {}}, "a size of launches"},
      {{.only = {"splitzip", "everything"}}, "no group 'everything'"},
      {{.file = "values.bin", .only = {"hack"}}, "group 'hack' are not of a file's values"}};
  for (const auto& [options, sentence] : cases) {
    const Status status = refusal(options);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(sentence));
  }
}

TEST(GpuBench, SaysThatThereIsNoGpu) {
  const auto found = gpu::devices();
  if (found.ok()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(refusal({}).code(), found.status().code());
  EXPECT_EQ(refusal({}).message(), found.status().message());
}

}  // namespace
}  // namespace kvlane
