// Files of GPUs, right and wrong.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_file.h"

#include <gtest/gtest.h>

#include <string>

namespace kvlane {
namespace {

TEST(GpuFile, ReadsUnitsAndDefaults) {
  const auto gpus = parse_gpus(R"([
    {"name": "B200", "memory_gb": 192, "memory_gb_s": 8000, "matrix_tflops": 2250,
     "vector_tflops": 75, "matrix_int8_tops": 4500, "peer_gb_s": 900, "peer_us": 20,
     "memory_share": 0.85, "matrix_share": 0.7, "attention_share": 0.5},
    {"name": "H100-SXM", "memory_gb": 94, "memory_gb_s": 3900, "matrix_tflops": 989,
     "vector_tflops": 67}])");
  ASSERT_TRUE(gpus.ok()) << gpus.status().message();
  const Gpu& first = gpus->front();
  EXPECT_EQ(first.name, "B200");
  EXPECT_DOUBLE_EQ(first.memory_bytes, 192e9);
  EXPECT_DOUBLE_EQ(first.memory_rate, 8e12);
  EXPECT_DOUBLE_EQ(first.matrix_rate, 2250e12);
  EXPECT_DOUBLE_EQ(first.matrix_int8_rate, 4500e12);
  EXPECT_DOUBLE_EQ(first.vector_rate, 75e12);
  EXPECT_DOUBLE_EQ(first.peer_rate, 900e9);
  EXPECT_DOUBLE_EQ(first.peer_delay, 20e-6);
  EXPECT_DOUBLE_EQ(first.attention_share, 0.5);
  EXPECT_DOUBLE_EQ(gpus->back().matrix_int8_rate, 0);
  EXPECT_DOUBLE_EQ(gpus->back().memory_share, 0.8);
  // Figures of a known one are replaced.
  EXPECT_DOUBLE_EQ(find_gpu("H100-SXM", *gpus)->memory_bytes, 94e9);
  EXPECT_TRUE(find_gpu("A10G", *gpus).ok());
}

TEST(GpuFile, SaysWhatIsWrong) {
  const std::string rest =
      R"("memory_gb": 1, "memory_gb_s": 1, "matrix_tflops": 1, "vector_tflops": 1)";
  const auto error = [](const std::string& text) { return parse_gpus(text).status().message(); };
  EXPECT_EQ(error(""), "a file of GPUs is a JSON array of objects");
  EXPECT_EQ(error("{}"), "a file of GPUs is a JSON array of objects");
  EXPECT_EQ(error("[1]"), "GPU 1: it is no object");
  EXPECT_EQ(error("[{" + rest + "}]"), "GPU 1: 'name' must be a text");
  EXPECT_EQ(error(R"([{"name": ""}])"), "GPU 1: 'name' must be a text");
  EXPECT_EQ(error(R"([{"name": "a"}])"), "GPU 1: 'memory_gb' is missing");
  EXPECT_EQ(error(R"([{"name": "a", "memory_gb": "1"}])"),
            "GPU 1: 'memory_gb' must be a number from 0.001 to 100000");
  EXPECT_EQ(error(R"([{"name": "a", "memory_gb": 1, "memory_gb_s": 0}])"),
            "GPU 1: 'memory_gb_s' must be a number from 0.001 to 1e+06");
  EXPECT_EQ(error(R"([{"name": "a", "speed": 1}])"), "GPU 1: there is no member 'speed'");
  const std::string good = R"({"name": "a", )" + rest + "}";
  EXPECT_EQ(error("[" + good + "," + good + "]"), "GPU 2: 'a' is there twice");
}

}  // namespace
}  // namespace kvlane
