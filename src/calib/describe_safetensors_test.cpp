// Descriptions of safetensors files, of tables and of others.
// SPDX-License-Identifier: Apache-2.0
#include "calib/describe_safetensors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "calib/kv_tables_file.h"
#include "crypto/sha256.h"
#include "model/safetensors.h"

namespace kvlane {
namespace {

using Json = nlohmann::json;

Json described(ByteView file) {
  const auto text = describe_safetensors_json(file);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? Json::parse(*text) : Json();
}

TEST(DescribeSafetensors, TellsEveryTensor) {
  Bytes file = build_safetensors_header(
      std::vector<TensorSpec>{{"b", ElementType::kBf16, {2, 3}}, {"a", ElementType::kF32, {}}});
  file.resize(file.size() + 2 * 2 * 3 + 4);
  EXPECT_EQ(described(file),
            Json::parse(R"({"kind": "safetensors", "values": 7, "bytes": 16, "tensors": [
              {"name": "a", "dtype": "F32", "shape": [], "bytes": 4},
              {"name": "b", "dtype": "BF16", "shape": [2, 3], "bytes": 12}]})"));
}

TEST(DescribeSafetensors, TellsWhoseTablesTheseAre) {
  KvTables tables;
  tables.values["kvquant.layers.0.k.low"] = {1, 2};
  tables.values["zack:keep=0.5+kvquant.layers.0.v.low"] = {3};
  ModelIdentity model{};
  model[0] = std::byte{0xab};
  const Json told = described(build_kv_tables(tables, model, 4096));
  EXPECT_EQ(told["kind"], "kv_tables");
  EXPECT_EQ(told["model_identity"], to_hex(model));
  EXPECT_EQ(told["tokens"], 4096);
  EXPECT_EQ(told["formats"], Json::parse(R"(["kvquant", "zack:keep=0.5+kvquant"])"));
  EXPECT_EQ(told["tensors"].size(), 2U + 3U);
}

// That number is for people, and nobody refuses tables for it.
TEST(DescribeSafetensors, ANumberOfTokensThatIsNoneIsNull) {
  Bytes file = build_kv_tables({}, {}, 4096);
  const float right = 4096;
  const ByteView pattern = std::as_bytes(std::span(&right, 1));
  const auto at = std::search(file.begin(), file.end(), pattern.begin(), pattern.end());
  ASSERT_NE(at, file.end());
  for (const float wrong : {-1.0F, 1e30F, std::numeric_limits<float>::quiet_NaN()}) {
    const ByteView bytes = std::as_bytes(std::span(&wrong, 1));
    std::copy(bytes.begin(), bytes.end(), at);
    EXPECT_TRUE(described(file)["tokens"].is_null()) << wrong;
    EXPECT_TRUE(parse_kv_tables(file, ModelIdentity{}).ok()) << wrong;
  }
}

TEST(DescribeSafetensors, RefusesWhatIsNone) {
  const Bytes garbage(100, std::byte{0x5a});
  EXPECT_EQ(describe_safetensors_json(garbage).status().code(), Code::kCorrupt);
  // Says that it is tables, and has none of the rest.
  Bytes file =
      build_safetensors_header(std::vector<TensorSpec>{{"kvlane.version", ElementType::kF32, {1}}});
  const float version = 1;
  const ByteView bytes = std::as_bytes(std::span(&version, 1));
  file.insert(file.end(), bytes.begin(), bytes.end());
  EXPECT_EQ(describe_safetensors_json(file).status().message(),
            "this is no file of KV tables: it has no 'kvlane.model' of 32 values");
}

}  // namespace
}  // namespace kvlane
