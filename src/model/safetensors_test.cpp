// safetensors headers: good files are read, and every way to lie about one is named.
// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace kvlane {
namespace {

using ::testing::HasSubstr;

std::string file_with(std::string_view header, std::string_view data) {
  ByteWriter writer;
  writer.write(std::uint64_t{header.size()});
  writer.write_bytes(as_byte_view(header));
  writer.write_bytes(as_byte_view(data));
  return std::string(as_text(writer.bytes()));
}

// The error of a file with this header and `data_bytes` bytes behind it.
Status error_of(std::string_view header, std::size_t data_bytes) {
  const std::string file = file_with(header, std::string(data_bytes, '\0'));
  const auto tensors = parse_safetensors(as_byte_view(file));
  return tensors.ok() ? Status() : tensors.status();
}

void expect_corrupt(std::string_view header, std::size_t data_bytes, const std::string& reason) {
  const Status status = error_of(header, data_bytes);
  EXPECT_EQ(status.code(), Code::kCorrupt) << header;
  EXPECT_THAT(status.message(), HasSubstr(reason)) << header;
}

TEST(Safetensors, ReadsTensorsOfAllTypesAndPlaces) {
  const std::string file = file_with(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},)"
      R"("a":{"data_offsets":[4,12],"shape":[2],"dtype":"F32"},)"
      R"("s":{"dtype":"F16","shape":[],"data_offsets":[12,14]},)"
      R"("none":{"dtype":"F16","shape":[3,0],"data_offsets":[4,4]}}   )",
      "0123456789abcd");
  const auto tensors = parse_safetensors(as_byte_view(file));
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  ASSERT_EQ(tensors->size(), 4U);
  EXPECT_EQ(tensors->at("b").type, ElementType::kBf16);
  EXPECT_EQ(tensors->at("b").shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(as_text(tensors->at("b").bytes), "0123");
  EXPECT_EQ(tensors->at("a").type, ElementType::kF32);
  EXPECT_EQ(as_text(tensors->at("a").bytes), "456789ab");
  EXPECT_EQ(tensors->at("s").type, ElementType::kFp16);
  EXPECT_TRUE(tensors->at("s").shape.empty());
  EXPECT_EQ(as_text(tensors->at("s").bytes), "cd");
  EXPECT_TRUE(tensors->at("none").bytes.empty());
}

TEST(Safetensors, ReadsWhatItBuilds) {
  const TensorSpec specs[] = {{"w\"1", ElementType::kBf16, {3, 2}}, {"w0", ElementType::kF32, {5}}};
  Bytes file = build_safetensors_header(specs);
  EXPECT_EQ(file.size() % 8, 0U);
  EXPECT_EQ(specs[0].bytes() + specs[1].bytes(), 32U);
  file.resize(file.size() + 32);
  const auto tensors = parse_safetensors(file);
  ASSERT_TRUE(tensors.ok()) << tensors.status().message();
  EXPECT_EQ(tensors->at("w\"1").shape, specs[0].shape);
  EXPECT_EQ(tensors->at("w0").bytes.data() - file.data(),
            static_cast<std::ptrdiff_t>(file.size()) - 20);
}

TEST(Safetensors, AFileWithoutTensorsIsEmpty) {
  const auto tensors = parse_safetensors(as_byte_view(file_with("{}", "")));
  ASSERT_TRUE(tensors.ok());
  EXPECT_TRUE(tensors->empty());
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file =
      file_with(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", "abcd");
  ASSERT_TRUE(parse_safetensors(as_byte_view(file)).ok());
  for (std::size_t bytes = 0; bytes < file.size(); ++bytes) {
    const auto tensors = parse_safetensors(as_byte_view(file).first(bytes));
    EXPECT_EQ(tensors.status().code(), Code::kCorrupt) << bytes;
  }
}

TEST(Safetensors, EveryByteOfTheHeaderMayBeWrong) {
  const std::string good =
      file_with(R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", "abcd");
  for (std::size_t at = 0; at < good.size() - 4; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string file = good;
      file[at] = static_cast<char>(value);
      const auto tensors = parse_safetensors(as_byte_view(file));
      // Another name is fine; whatever is accepted lies inside the file.
      if (!tensors.ok()) continue;
      for (const auto& [name, tensor] : *tensors) {
        EXPECT_EQ(tensor.bytes.size(), 4U);
        EXPECT_EQ(as_text(tensor.bytes), "abcd");
      }
    }
  }
}

TEST(Safetensors, HeaderLengthIsCheckedAgainstLimitAndFile) {
  std::string file = file_with("{}", "");
  file[3] = '\x7f';
  EXPECT_THAT(parse_safetensors(as_byte_view(file)).status().message(), HasSubstr("the limit of"));
  file[3] = '\0';
  file[0] = '\x09';
  EXPECT_THAT(parse_safetensors(as_byte_view(file)).status().message(), HasSubstr("only 2 follow"));
}

TEST(Safetensors, JsonOfAnotherShapeIsNamed) {
  expect_corrupt("", 0, "does not begin with {");
  expect_corrupt("[]", 0, "does not begin with {");
  expect_corrupt(" {}", 0, "does not begin with {");
  expect_corrupt("{", 0, "not valid JSON at byte");
  expect_corrupt("{}x", 0, "not valid JSON at byte");
  expect_corrupt("{\"\xff\":1}", 0, "not valid JSON at byte");
  expect_corrupt(R"({"a":1})", 0, R"(tensor "a" is or holds a number)");
  expect_corrupt(R"({"a":[]})", 0, R"(tensor "a" is or holds an array)");
  expect_corrupt(R"({"a":{"dtype":{}}})", 0, R"(dtype of tensor "a" is or holds an object)");
  expect_corrupt(R"({"a":{"dtype":[]}})", 0, R"(dtype of tensor "a" is or holds an array)");
  expect_corrupt(R"({"a":{"shape":null}})", 0, R"(shape of tensor "a" is or holds null)");
  expect_corrupt(R"({"a":{"shape":[-1]}})", 0, "a negative number");
  expect_corrupt(R"({"a":{"shape":[1.0]}})", 0, "a fraction");
  expect_corrupt(R"({"a":{"shape":[[1]]}})", 0, "an array");
  expect_corrupt(R"({"a":{"shape":[true]}})", 0, "a truth value");
  expect_corrupt(R"({"a":{"shape":[99999999999999999999]}})", 0, "a fraction");
  expect_corrupt(R"({"a":{"size":1}})", 0, "an unknown field");
  expect_corrupt(R"({"__metadata__":{"n":1}})", 0, "where only strings may be");
  expect_corrupt(R"({"__metadata__":{"n":{}}})", 0, "where only strings may be");
  expect_corrupt(R"({"__metadata__":7})", 0, "where only strings may be");
}

TEST(Safetensors, MissingAndRepeatedFieldsAreNamed) {
  expect_corrupt(R"({"a":{"shape":[],"data_offsets":[0,2]}})", 2, R"("a" has no dtype)");
  expect_corrupt(R"({"a":{"dtype":"F16","data_offsets":[0,2]}})", 2, R"("a" has no shape)");
  expect_corrupt(R"({"a":{"dtype":"F16","shape":[]}})", 2, R"("a" has no data_offsets)");
  expect_corrupt(R"({"a":{"dtype":"F16","dtype":"F16"}})", 2, "the field dtype twice");
  expect_corrupt(R"({"a":{"shape":[1],"shape":[1]}})", 2, "the field shape twice");
  expect_corrupt(R"({"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]},)"
                 R"("a":{"dtype":"F16","shape":[],"data_offsets":[2,4]}})",
                 4, R"("a" twice)");
  expect_corrupt(R"({"__metadata__":{},"__metadata__":{}})", 0, R"("__metadata__" twice)");
}

TEST(Safetensors, RangesMustMatchShapesAndTileTheData) {
  const auto tensor = [](const char* name, const char* shape, const char* offsets) {
    return std::string("\"") + name + R"(":{"dtype":"F16","shape":)" + shape +
           R"(,"data_offsets":)" + offsets + "}";
  };
  const auto header = [](std::initializer_list<std::string> tensors) {
    std::string text = "{";
    for (const std::string& one : tensors) text += (text.size() > 1 ? "," : "") + one;
    return text + "}";
  };
  expect_corrupt(header({tensor("a", "[3]", "[0,4]")}), 4, "needs 6 bytes");
  expect_corrupt(header({tensor("a", "[2]", "[4,0]")}), 4, "[4, 0)");
  expect_corrupt(header({tensor("a", "[2]", "[0,4]")}), 3, "truncated");
  expect_corrupt(header({tensor("a", "[2]", "[0]")}), 4, "1 data_offsets instead of 2");
  expect_corrupt(header({tensor("a", "[2]", "[0,4,8]")}), 4, "more than 2 numbers");
  expect_corrupt(header({tensor("a", "[1,1,1,1,1,1,1,1,1]", "[0,2]")}), 2, "more than 8 numbers");
  expect_corrupt(header({tensor("a", "[2]", "[2,6]")}), 6, "bytes [0, 2) before tensor \"a\"");
  expect_corrupt(header({tensor("a", "[2]", "[0,4]")}), 6, "the last 2 bytes");
  expect_corrupt(header({tensor("a", "[2]", "[0,4]"), tensor("b", "[2]", "[2,6]")}), 6,
                 "\"b\" begins at byte 2, inside the one before it");
  expect_corrupt(header({tensor("a", "[4294967296,4294967296]", "[0,0]")}), 0, "overflows");
  expect_corrupt(header({tensor("a", "[0,18446744073709551615]", "[0,0]")}), 0, "overflows");
}

TEST(Safetensors, OtherTypesAreUnsupportedByName) {
  const Status status = error_of(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})", 8);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_THAT(status.message(), HasSubstr(R"("ids" has the type I64)"));
}

TEST(Safetensors, NamesAndDepthAreLimited) {
  const std::string name(kTensorNameBytesMax + 1, 'n');
  expect_corrupt("{\"" + name + R"(":{"dtype":"F16","shape":[],"data_offsets":[0,2]}})", 2,
                 "more than the limit of 512");
  std::string deep = "{\"a\":";
  for (int i = 0; i < 200000; ++i) deep += "[";
  expect_corrupt(deep, 0, "is or holds an array");
}

}  // namespace
}  // namespace kvlane
