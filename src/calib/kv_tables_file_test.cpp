// Files of KV tables: what is written is read back, by the model it belongs to alone.
// SPDX-License-Identifier: Apache-2.0
#include "calib/kv_tables_file.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/temporary_directory.h"

namespace kvlane {
namespace {

ModelIdentity identity(std::uint8_t first) {
  ModelIdentity model{};
  for (std::size_t i = 0; i < model.size(); ++i) model[i] = static_cast<std::byte>(first + 9 * i);
  return model;
}

KvTables tables() {
  KvTables result;
  result.values["kvquant.layers.0.k.o1.low"] = {-1.5F, 2, 1e-30F};
  result.values["cachegen.layers.0.v.anchor"] = {0, 16777216};
  result.values["empty"] = {};
  return result;
}

std::string message(ByteView file, const ModelIdentity& model) {
  const auto parsed = parse_kv_tables(file, model);
  return parsed.ok() ? "ok" : parsed.status().message();
}

TEST(KvTablesFile, IsReadBack) {
  const Bytes file = build_kv_tables(tables(), identity(200), 32768);
  const auto parsed = parse_kv_tables(file, identity(200));
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->values, tables().values);
}

TEST(KvTablesFile, BelongsToOneModel) {
  const Bytes file = build_kv_tables(tables(), identity(200), 32768);
  EXPECT_EQ(message(file, identity(199)),
            "the tables belong to another model: to c8d1dae3ecf5fe07, not to c7d0d9e2ebf4fd06");
}

TEST(KvTablesFile, RefusesWhatItIsNot) {
  EXPECT_NE(message({}, identity(1)), "ok");
  const Bytes good = build_kv_tables(tables(), identity(1), 64);
  const auto with = [&](const char* name, std::vector<float> values) {
    KvTables all = *parse_kv_tables(good, identity(1));
    Bytes file = build_kv_tables(all, identity(1), 64);
    const std::string_view text = as_text(file);
    const std::size_t at = text.find(name);
    EXPECT_NE(at, std::string_view::npos);
    if (values.empty()) file[at] = std::byte{'x'};
    return file;
  };
  for (const char* name : {"kvlane.version", "kvlane.model", "kvlane.tokens"}) {
    EXPECT_EQ(message(with(name, {}), identity(1))
                  .find("this is no file of KV tables: it has no '" + std::string(name) + "'"),
              0U);
  }
  for (std::size_t bytes = 0; bytes < good.size(); ++bytes) {
    ASSERT_NE(message(ByteView(good).first(bytes), identity(1)), "ok") << bytes;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_NE(message(longer, identity(1)), "ok");
}

TEST(KvTablesFile, OtherVersionsAreNotGuessed) {
  // Values lie in the order of names; "kvlane.version" is the last.
  Bytes file = build_kv_tables(tables(), identity(1), 64);
  const std::string_view text = as_text(file);
  ASSERT_NE(text.find("kvlane.version"), std::string_view::npos);
  bool found = false;
  const float one = 1;
  const float two = 2;
  for (std::size_t at = file.size() - 4 * 8; at + 4 <= file.size(); at += 4) {
    if (std::memcmp(file.data() + at, &one, 4) == 0) {
      std::memcpy(file.data() + at, &two, 4);
      found = true;
    }
  }
  ASSERT_TRUE(found);
  EXPECT_EQ(message(file, identity(1)),
            "version 2.000000 of files of KV tables is not known, 1 is");
}

TEST(KvTablesFile, ErrorsNameTheFile) {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "tables.safetensors";
  EXPECT_NE(load_kv_tables(path, identity(1)).status().message().find(path.string()),
            std::string::npos);
  ASSERT_TRUE(write_file(path, build_kv_tables(tables(), identity(2), 64)).ok());
  EXPECT_EQ(
      load_kv_tables(path, identity(1)).status().message().find(path.string() + ": the tables"),
      0U);
  EXPECT_TRUE(load_kv_tables(path, identity(2)).ok());
}

}  // namespace
}  // namespace kvlane
