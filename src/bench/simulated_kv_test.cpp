// Shapes of models and bytes of formats, as the simulator takes them.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_kv.h"

#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "base/test_paths.h"

namespace kvlane {
namespace {

ModelConfig config_of(const std::string& name) {
  const auto text = read_text_file(
      std::string(kSourceDir) + "/tests/fixtures/configs/" + name + ".json", 1 << 20);
  EXPECT_TRUE(text.ok());
  const auto config = parse_model_config(*text);
  EXPECT_TRUE(config.ok());
  return *config;
}

KvCosts costs(std::string_view format, std::string_view codec = "none", bool unfused = false) {
  const auto kv = simulated_kv(format, codec, config_of("llama-3.1-8b"), unfused);
  EXPECT_TRUE(kv.ok()) << format << ": " << kv.status().message();
  return kv.ok() ? kv->costs : KvCosts();
}

// Bits a value of Llama 3.1 8B's 2,048 K and V values of a token and layer.
double bits(std::string_view format) { return costs(format).resident_bytes * 8 / 2048; }

// The public totals: 8.03, 6.74, 30 and 179.5 thousand million parameters. Positions of OPT, biases
// and norms are left out.
TEST(SimulatedModel, HasTheParametersOfItsConfig) {
  const auto billions = [](const std::string& name) {
    return simulated_model(config_of(name)).weight_bytes() / 2e9;
  };
  EXPECT_NEAR(billions("llama-3.1-8b"), 8.03, 0.01);
  EXPECT_NEAR(billions("llama-2-7b"), 6.74, 0.01);
  EXPECT_NEAR(billions("opt-30b"), 29.97, 0.05);
  EXPECT_NEAR(billions("yi-34b"), 34.39, 0.05);
  EXPECT_NEAR(billions("falcon-180b"), 178.6, 0.7);
  EXPECT_NEAR(billions("qwen2.5-0.5b"), 0.494, 0.002) << "one table for both ends";
}

TEST(SimulatedKv, BytesAreTheFormats) {
  EXPECT_DOUBLE_EQ(bits("bf16"), 16);
  EXPECT_NEAR(bits("int4"), 4.25, 0.15);
  EXPECT_DOUBLE_EQ(bits("mxfp4"), 4.25);
  // A page's two scales, in a line of memory that they do not fill.
  EXPECT_NEAR(bits("fp8_e4m3"), 8.05, 0.03);
  EXPECT_NEAR(costs("fp8_e4m3").wire_bytes * 8 / 2048, 8.002, 0.002);
  EXPECT_NEAR(bits("hack"), 2.375, 0.15);
  EXPECT_NEAR(bits("hack:k=4,v=4"), bits("hack") + 2, 0.01);
  EXPECT_DOUBLE_EQ(bits("kvquant:bits=3"), 3.53);
  EXPECT_DOUBLE_EQ(bits("cachegen"), 2.8);
  EXPECT_DOUBLE_EQ(bits("zack:keep=0.25"), 4);
  EXPECT_DOUBLE_EQ(bits("zack:keep=0.5+hack"), bits("hack") / 2);
  EXPECT_DOUBLE_EQ(bits("zack:bits=2.5+hack"), 2.5);
  EXPECT_LE(costs("hack").wire_bytes, costs("hack").resident_bytes);
  EXPECT_GT(costs("hack").wire_bytes, 0.97 * costs("hack").resident_bytes);
}

TEST(SimulatedKv, CodecsAreForRows) {
  const KvCosts rows = costs("bf16", "splitzip");
  EXPECT_EQ(rows.name, "bf16 + splitzip");
  EXPECT_DOUBLE_EQ(rows.resident_bytes, 4096);
  EXPECT_NEAR(rows.wire_bytes, 4096 / 1.3225, 1e-9);
  EXPECT_GT(rows.encode_share, 0.4);
  EXPECT_EQ(costs("zack:keep=0.5", "splitzip:channel").name, "zack:keep=0.5 + splitzip:channel");
  const KvCosts codes = costs("hack", "splitzip");
  EXPECT_EQ(codes.name, "hack");
  EXPECT_EQ(codes.encode_share, 0);
}

// docs/gpu.md: 5.1, 4.7 and 4.2 times as fast as rows with 1, 4 and 8 query heads a KV head.
TEST(SimulatedKv, HackIsAsFastAsMeasured) {
  ModelConfig config = config_of("llama-3.1-8b");
  for (const auto& [group, times] : {std::pair(1, 5.1), std::pair(4, 4.7), std::pair(6, 4.45),
                                     std::pair(8, 4.2), std::pair(16, 4.2)}) {
    config.kv_heads = 4;
    config.heads = 4 * group;
    const auto kv = simulated_kv("hack", "none", config, false);
    ASSERT_TRUE(kv.ok());
    EXPECT_TRUE(kv->measured);
    EXPECT_NEAR(kv->costs.read_share * 16 / 2.375, times, 1e-9) << group;
    EXPECT_EQ(kv->costs.open_operations, 0);
    EXPECT_GT(kv->costs.prefill_speed, 1);
  }
}

TEST(SimulatedKv, OnlyWhatWasRunIsMeasured) {
  const auto measured = [](std::string_view format) {
    return simulated_kv(format, "none", config_of("llama-3.1-8b"), false)->measured;
  };
  for (const char* const format : {"bf16", "hack", "zack:keep=0.5"}) EXPECT_TRUE(measured(format));
  for (const char* const format : {"hack:k=8,v=8", "hack:paper", "hack:p=64", "zack:keep=0.25",
                                   "zack:keep=0.5+hack", "zack:bits=2.5+hack", "int4"}) {
    EXPECT_FALSE(measured(format)) << format;
  }
}

TEST(SimulatedKv, WhoOpensCodesPaysForIt) {
  for (const char* const format : {"kivi:bits=2", "kvquant", "cachegen", "int8", "mxfp4"}) {
    const auto kv = simulated_kv(format, "none", config_of("llama-3.1-8b"), false);
    ASSERT_TRUE(kv.ok()) << kv.status().message();
    EXPECT_FALSE(kv->measured);
    EXPECT_EQ(kv->costs.open_operations, 2);
    EXPECT_FALSE(kv->costs.opens_to_memory);
    EXPECT_EQ(kv->costs.prefill_speed, 1);
    EXPECT_TRUE(costs(format, "none", true).opens_to_memory);
  }
  EXPECT_FALSE(costs("hack", "none", true).opens_to_memory);
}

// Nine operations of each partition of K and of V, a query head and token.
TEST(SimulatedKv, HacksOwnArithmeticIsCorrected) {
  EXPECT_EQ(costs("hack").approximate_operations, 0);
  EXPECT_EQ(costs("hack:paper").approximate_operations, 0) << "lean is the default";
  EXPECT_EQ(costs("hack:paper,compute=complete").approximate_operations, 2 * 9 * 128 / 64);
}

TEST(SimulatedKv, SaysWhatIsWrong) {
  const ModelConfig config = config_of("llama-3.1-8b");
  const auto error = [&](std::string_view format, std::string_view codec = "none") {
    return simulated_kv(format, codec, config, false).status().message();
  };
  EXPECT_EQ(error("bf16", "zip"),
            "codecs to simulate are none, splitzip and splitzip:channel, not 'zip'");
  EXPECT_NE(error("bf17").find("bf17"), std::string::npos);
  EXPECT_NE(error("kvquant:bits=5").find("bits"), std::string::npos);
  EXPECT_NE(error("zack:keep=2").find("keep"), std::string::npos);
  EXPECT_NE(error("kvquant:bits=4,sink=1").find("only bits are known"), std::string::npos);
  EXPECT_NE(error("cachegen:level=3").find("only level=1 and level=2"), std::string::npos);
  EXPECT_NE(error("cachegen:form=paper").find("only level=1 and level=2"), std::string::npos);
  EXPECT_NE(error("zack:keep=0.5,ranks=uniform").find("only keep and bits"), std::string::npos);
  EXPECT_NE(error("zack:bits=2.5").find("codes of hack"), std::string::npos);
  EXPECT_NE(error("zack:bits=2.5+int8").find("codes of hack"), std::string::npos);
  for (const char* const codes : {"zack:keep=0.5", "bf16", "cachegen"}) {
    EXPECT_NE(error(std::string("zack:keep=0.5+") + codes).find("not simulated"),
              std::string::npos);
  }
  EXPECT_NE(error("hack:compute=bf16").find("not simulated"), std::string::npos);
  EXPECT_NE(error("hack:p=64,compute=dequantise").find("not simulated"), std::string::npos);
  EXPECT_NE(error("kivi:bits=2,recent=1").find("not simulated"), std::string::npos);
}

}  // namespace
}  // namespace kvlane
