// Tensor files: originals of all kinds come back byte for byte, whatever the threads, kernels and
// streams; golden files; every truncation and every changed byte of a small file.
// SPDX-License-Identifier: Apache-2.0
#include "tensors/tensor_file.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "base/test_paths.h"
#include "tensors/memory_sink.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kGolden = fs::path(kSourceDir) / "tests/golden/tensor_file";

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const ByteView bytes = as_byte_view(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<fs::path> files_in(const char* folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(kGolden / folder)) {
    if (entry.path().extension() == ".kvl") paths.push_back(entry.path());
  }
  EXPECT_FALSE(paths.empty()) << folder;
  std::sort(paths.begin(), paths.end());
  return paths;
}

// bfloat16 values whose channels have few exponents each.
Bytes bf16_values(std::size_t rows, std::size_t channels, std::uint64_t seed) {
  Bytes bytes(2 * rows * channels);
  std::uint64_t state = seed;
  for (std::size_t i = 0; i < rows * channels; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const auto random = static_cast<std::uint32_t>(state >> 32);
    const auto exponent = 110 + i % channels % 13 + (random & 1U);
    const auto value = static_cast<std::uint16_t>((random >> 16 & 0x807FU) |
                                                  static_cast<std::uint32_t>(exponent) << 7);
    std::memcpy(bytes.data() + 2 * i, &value, sizeof(value));
  }
  return bytes;
}

Bytes concatenate(std::initializer_list<ByteView> parts) {
  Bytes all;
  for (const ByteView part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

Bytes safetensors(std::string_view header, std::initializer_list<ByteView> data) {
  const std::uint64_t header_bytes = header.size();
  Bytes file = concatenate({std::as_bytes(std::span(&header_bytes, 1)), as_byte_view(header)});
  for (const ByteView part : data) file.insert(file.end(), part.begin(), part.end());
  return file;
}

Bytes npy(std::string_view dictionary, ByteView data, std::uint8_t version = 1) {
  Bytes file = concatenate({as_byte_view("\x93NUMPY")});
  const std::string text = std::string(dictionary) + "   \n";
  file.insert(file.end(), {std::byte{version}, std::byte{0}});
  const auto length = static_cast<std::uint32_t>(text.size());
  const ByteView length_bytes = std::as_bytes(std::span(&length, 1));
  return concatenate({file, length_bytes.first(version == 1 ? 2 : 4), as_byte_view(text), data});
}

Result<TensorFileSummary> encode(ByteView original, const TensorFileEncoding& encoding,
                                 MemorySink& sink, const TensorFileWork& work = {}) {
  MemorySource source(original);
  return encode_tensor_file(source, encoding, work, sink);
}

Result<TensorFileSummary> decode(ByteView file, MemorySink& sink, const TensorFileWork& work = {}) {
  // A block of exactly this size: AddressSanitizer then sees a byte read too many.
  const auto copy = std::make_unique<std::byte[]>(file.size());
  std::copy(file.begin(), file.end(), copy.get());
  MemorySource source({copy.get(), file.size()});
  return decode_tensor_file(source, work, sink);
}

// Encodes and decodes in all ways there are and requires the same each time.
TensorFileSummary round_trip(ByteView original, const TensorFileEncoding& encoding = {}) {
  MemorySink first;
  const auto encoded = encode(original, encoding, first);
  EXPECT_TRUE(encoded.ok()) << encoded.status().message();
  if (!encoded.ok()) return {};
  EXPECT_EQ(encoded->container_bytes, first.bytes().size());
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    for (const int threads : {1, 3}) {
      const TensorFileWork work{.isa = isa, .threads = threads};
      MemorySink again(threads == 3);
      EXPECT_TRUE(encode(original, encoding, again, work).ok());
      EXPECT_EQ(again.bytes(), first.bytes()) << isa_name(isa) << ", " << threads << " threads";
      MemorySink back(threads == 3);
      const auto decoded = decode(first.bytes(), back, work);
      EXPECT_TRUE(decoded.ok()) << decoded.status().message();
      EXPECT_TRUE(std::ranges::equal(back.bytes(), original));
      if (decoded.ok()) {
        EXPECT_EQ(decoded->head.segments, encoded->head.segments);
        EXPECT_EQ(decoded->container_bytes, encoded->container_bytes);
      }
      PipeSource pipe(first.bytes());
      MemorySink through_pipe;
      EXPECT_TRUE(decode_tensor_file(pipe, work, through_pipe).ok());
      EXPECT_EQ(through_pipe.bytes(), back.bytes());
    }
  }
  return *encoded;
}

TensorFileEncoding raw(ElementType type, std::vector<std::uint64_t> shape = {}) {
  return {.original = {.kind = TensorFileKind::kRaw, .type = type, .shape = std::move(shape)}};
}

TEST(TensorFile, RawValuesOfAllTypesAndLengths) {
  const Bytes values = bf16_values(200, 64, 1);
  for (const ElementType type :
       {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    for (const std::size_t bytes : {0, 1, 2, 3, 127, 128, 129, 8191, 8192, 8193, 25600}) {
      for (const PlaneCodec codec :
           {PlaneCodec::kNone, PlaneCodec::kSplitZip, PlaneCodec::kSplitZipChannel}) {
        TensorFileEncoding encoding = raw(type);
        encoding.codec = codec;
        round_trip(ByteView(values).first(bytes), encoding);
      }
    }
  }
}

TEST(TensorFile, CodecsAreUsedWhereTheyPay) {
  const Bytes values = bf16_values(200, 64, 2);
  const auto coded = round_trip(values, raw(ElementType::kBf16, {200, 64}));
  EXPECT_EQ(coded.segments[0].codec, PlaneCodec::kSplitZipChannel);
  EXPECT_EQ(coded.segments[0].coded_planes, 1U);
  EXPECT_LT(coded.segments[0].coded_bytes, 0.72 * static_cast<double>(values.size()));
  const auto fp16 = round_trip(values, raw(ElementType::kFp16, {200, 64}));
  EXPECT_EQ(fp16.segments[0].codec, PlaneCodec::kNone);
  EXPECT_EQ(fp16.segments[0].coded_bytes, values.size());
  Bytes noise(25600);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = std::byte(i * i * 2654435761U >> 13);
  EXPECT_EQ(round_trip(noise, raw(ElementType::kBf16)).segments[0].coded_planes, 0U);
}

TEST(TensorFile, ManyPlanesInSeveralThreads) {
  const Bytes values = bf16_values(70000, 32, 3);  // 4.5 MB
  const auto summary = round_trip(values, raw(ElementType::kBf16, {70000, 32}));
  EXPECT_EQ(summary.head.planes, 5U);
  EXPECT_EQ(summary.segments[0].coded_planes, 5U);
}

TEST(TensorFile, Safetensors) {
  const Bytes k = bf16_values(96, 64, 4);
  const Bytes fp8(4096, std::byte{0x38});
  const Bytes odd(3, std::byte{7});
  const std::string header =
      R"({"__metadata__":{"format":"pt","note":"kept"}, "later": {"dtype":"F8_E4M3",)"
      R"("shape":[64,64],"data_offsets":[12300,16396]},"k":{"dtype":"BF16","shape":[1,2,48,64],)"
      R"("data_offsets":[0,12288]},"empty":{"dtype":"BF16","shape":[0,3],)"
      R"("data_offsets":[12288,12288]},)"
      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[12288,12292]},)"
      R"("future":{"dtype":"F4","shape":[6],"data_offsets":[12295,12298]}}   )";
  const Bytes file = safetensors(header, {k, Bytes(4), odd, odd, Bytes(2), fp8, odd});
  const auto summary = round_trip(file);
  EXPECT_EQ(summary.head.kind, TensorFileKind::kSafetensors);
  std::vector<std::string> names;
  for (const Segment& segment : summary.head.segments) names.push_back(segment.name);
  EXPECT_THAT(names,
              ::testing::ElementsAre("", "k", "empty", "scalar", "", "future", "", "later", ""));
  EXPECT_EQ(summary.head.segments[1].row_elements, 64U);
  EXPECT_EQ(summary.segments[1].codec, PlaneCodec::kSplitZipChannel);
  EXPECT_EQ(summary.segments[7].codec, PlaneCodec::kSplitZip);
  EXPECT_GT(summary.segments[7].coded_planes, 0U);
  EXPECT_EQ(summary.head.segments[5].type_name, "F4");
}

TEST(TensorFile, WrongSafetensorsAreRefusedAndCanBeRaw) {
  const auto refused = [](const Bytes& file, const char* why) {
    MemorySink sink;
    const auto encoded = encode(file, {}, sink);
    ASSERT_FALSE(encoded.ok()) << why;
    EXPECT_THAT(encoded.status().message(), HasSubstr("as a safetensors file"));
    EXPECT_THAT(encoded.status().message(), HasSubstr(why));
    round_trip(file, raw(ElementType::kBf16));
  };
  const auto one = [](const char* fields) {
    return R"({"t":{"dtype":"U8",)" + std::string(fields) + "}}";
  };
  refused(safetensors("{", {}), "JSON");
  refused(safetensors(one(R"("shape":[5],"data_offsets":[0,5])"), {Bytes(4)}), "behind the end");
  refused(safetensors(one(R"("shape":[5],"data_offsets":[3,2])"), {Bytes(4)}), "behind the end");
  refused(safetensors(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
                      {Bytes(5)}),
          "overlaps");
  // A type whose size its range does not have is just bytes.
  const auto summary = round_trip(
      safetensors(R"({"t":{"dtype":"BF16","shape":[9223372036854775807,4],"data_offsets":[0,4]}})",
                  {Bytes(4)}));
  EXPECT_FALSE(summary.head.segments[1].type);
}

TEST(TensorFile, Npy) {
  const Bytes values = bf16_values(96, 64, 5);
  const Bytes void_file =
      npy("{'descr': '|V2', 'fortran_order': False, 'shape': (2, 48, 64), }", values);
  EXPECT_FALSE(round_trip(void_file).head.segments[1].type);
  TensorFileEncoding encoding;
  encoding.original.type = ElementType::kBf16;
  const auto summary = round_trip(void_file, encoding);
  EXPECT_EQ(summary.head.kind, TensorFileKind::kNpy);
  EXPECT_GT(summary.segments[1].coded_planes, 0U);
  EXPECT_THAT(summary.head.segments[1].shape, ::testing::ElementsAre(2, 48, 64));

  const auto fortran = round_trip(npy("{'descr': '<f2', 'fortran_order': True, 'shape': (64, 96)}",
                                      concatenate({values, Bytes(5)}), 2));
  EXPECT_THAT(fortran.head.segments[1].shape, ::testing::ElementsAre(96, 64));
  EXPECT_EQ(fortran.head.segments[1].type, ElementType::kFp16);
  EXPECT_EQ(fortran.head.segments.size(), 3U);  // header, array, five bytes behind it

  for (const char* dictionary :
       {"{'descr': '<f8', 'fortran_order': False, 'shape': ()}",
        "{'descr': '>i4', 'fortran_order': False, 'shape': (0, 3)}",
        "{'descr': '<U3', 'fortran_order': False, 'shape': (7,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (70000,), }",
        "{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (3L,), }",
        "{'descr': [('a]', '<f4'), ('b', '|V2', (2,))], 'fortran_order': False, 'shape': (5,)}"}) {
    round_trip(npy(dictionary, Bytes(100)));
    round_trip(npy(dictionary, Bytes(100), 3));
  }
}

TEST(TensorFile, WrongNpyIsRefusedAndCanBeRaw) {
  const auto refused = [](const Bytes& file, const char* why, TensorFileEncoding encoding = {}) {
    MemorySink sink;
    const auto encoded = encode(file, encoding, sink);
    ASSERT_FALSE(encoded.ok()) << why;
    EXPECT_THAT(encoded.status().message(), HasSubstr(why));
    round_trip(file, raw(ElementType::kFp8E5m2));
  };
  const std::string_view good = "{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}";
  for (const std::size_t end : {6, 7, 8, 9, 20}) {
    const Bytes file = npy(good, Bytes(20));
    refused(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(end)), "ends within");
  }
  refused(npy(good, Bytes(19)), "more bytes than the 19");
  refused(npy(good, Bytes(20), 4), "version 4");
  for (const char* dictionary : {"", "{", "{}", "()", "{'descr': '<f4'}",
                                 "{'shape': (1,), 'descr': 3, 'fortran_order': True}",
                                 "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (5,)}",
                                 "{'descr': '<f4', 'fortran_order': True, 'shape': (-5,)}",
                                 "{'descr': '<f4', 'fortran_order': True, 'shape': (5,)} x",
                                 "{'descr': [('a', '<f4'), 'fortran_order': True, 'shape': (5,)}",
                                 "{'descr': '<f4', 'fortran_order': True, 'shapes': (5,)}"}) {
    refused(npy(dictionary, Bytes(20)), "its header");
  }
  refused(
      npy("{'descr': '<f8', 'fortran_order': True, 'shape': (4294967296, 4294967296)}", Bytes(8)),
      "more bytes");
  TensorFileEncoding bf16;
  bf16.original.type = ElementType::kBf16;
  refused(npy(good, Bytes(20)), "cannot be bf16", bf16);
}

TEST(TensorFile, OptionsThatDoNotFit) {
  const auto message = [](ByteView file, const TensorFileEncoding& encoding) {
    MemorySink sink;
    return encode(file, encoding, sink).status().message();
  };
  const Bytes zeros(100);
  EXPECT_THAT(message(zeros, {}), HasSubstr("--dtype"));
  EXPECT_THAT(message(zeros, raw(ElementType::kBf16, {49})), HasSubstr("50 values"));
  EXPECT_THAT(message(zeros, raw(ElementType::kBf16, {std::uint64_t{1} << 63, 4})),
              HasSubstr("50 values"));
  EXPECT_THAT(message(zeros, raw(ElementType::kF32)), HasSubstr("f32"));
  TensorFileEncoding encoding = raw(ElementType::kBf16);
  encoding.row_elements = 65537;
  EXPECT_THAT(message(zeros, encoding), HasSubstr("65537"));
  const Bytes file = safetensors("{}", {});
  encoding = {.original = {.type = ElementType::kBf16}};
  EXPECT_THAT(message(file, encoding), HasSubstr("says its types itself"));
  encoding = {.original = {.shape = {1}}};
  EXPECT_THAT(message(file, encoding), HasSubstr("says its own"));
  PipeSource pipe(zeros);
  MemorySink sink;
  EXPECT_THAT(encode_tensor_file(pipe, {}, {}, sink).status().message(), HasSubstr("regular file"));
}

TEST(TensorFile, RowsAreFoundByTrial) {
  // [tokens][2 heads][64]: a token has 128 values, and heads differ.
  Bytes values = bf16_values(256, 128, 6);
  const auto found = round_trip(values, raw(ElementType::kBf16, {256, 2, 64}));
  EXPECT_EQ(found.head.segments[0].row_elements, 128U);
  // [heads][tokens][64]: all candidates but the last dimension mix tokens.
  values = bf16_values(256, 64, 7);
  EXPECT_EQ(round_trip(values, raw(ElementType::kBf16, {4, 64, 64})).head.segments[0].row_elements,
            64U);
  TensorFileEncoding encoding = raw(ElementType::kBf16, {4, 64, 64});
  encoding.row_elements = 7;
  EXPECT_EQ(round_trip(values, encoding).head.segments[0].row_elements, 7U);
}

TEST(TensorFile, GoldenFiles) {
  for (const fs::path& path : files_in("valid")) {
    for (const int threads : {1, 2}) {
      MemorySink sink;
      const auto decoded = decode(read_bytes(path), sink, {.threads = threads});
      ASSERT_TRUE(decoded.ok()) << path << ": " << decoded.status().message();
      EXPECT_EQ(sink.bytes(), read_bytes(fs::path(path).replace_extension(".original"))) << path;
    }
  }
  for (const auto& [folder, code] :
       {std::pair("corrupt", Code::kCorrupt), std::pair("unsupported", Code::kUnsupported)}) {
    for (const fs::path& path : files_in(folder)) {
      for (const int threads : {1, 2}) {
        MemorySink sink;
        const Status status = decode(read_bytes(path), sink, {.threads = threads}).status();
        EXPECT_EQ(status.code(), code) << path << ": " << status.message();
        const Bytes file = read_bytes(path);
        PipeSource pipe(file);
        MemorySink through_pipe;
        EXPECT_EQ(decode_tensor_file(pipe, {}, through_pipe).status().code(), code) << path;
      }
    }
  }
}

TEST(TensorFile, EveryTruncationAndEveryChangedByteIsRefused) {
  for (const char* name : {"channel.kvl", "several_types.kvl"}) {
    const Bytes good = read_bytes(kGolden / "valid" / name);
    for (std::size_t at = 0; at < good.size(); ++at) {
      MemorySink sink;
      EXPECT_FALSE(decode(ByteView(good).first(at), sink).ok()) << name << " cut at " << at;
      PipeSource pipe(ByteView(good).first(at));
      MemorySink through_pipe;
      EXPECT_FALSE(decode_tensor_file(pipe, {}, through_pipe).ok()) << name << " cut at " << at;
      Bytes changed = good;
      changed[at] ^= std::byte(1U << at % 8);
      EXPECT_FALSE(decode(changed, sink).ok()) << name << " byte " << at;
    }
  }
}

TEST(TensorFile, ErrorsOfOthersAndOrdersToStopEndTheWork) {
  const Bytes values = bf16_values(70000, 32, 8);
  MemorySink whole;
  ASSERT_TRUE(encode(values, raw(ElementType::kBf16), whole).ok());
  for (const int threads : {1, 3}) {
    for (const bool sequential : {false, true}) {
      MemorySink full(sequential);
      full.room = 1500000;
      EXPECT_EQ(encode(values, raw(ElementType::kBf16), full, {.threads = threads}).status().code(),
                Code::kExhausted);
      MemorySink full_again(sequential);
      full_again.room = 1500000;
      EXPECT_EQ(decode(whole.bytes(), full_again, {.threads = threads}).status().code(),
                Code::kExhausted);
      int asked = 0;
      const TensorFileWork stopped{.threads = threads, .stopped = [&] { return ++asked == 3; }};
      MemorySink sink(sequential);
      EXPECT_EQ(encode(values, raw(ElementType::kBf16), sink, stopped).status().code(),
                Code::kAborted);
    }
  }
}

TEST(TensorFile, ProgressGoesFromPlaneToPlane) {
  const Bytes values = bf16_values(70000, 32, 9);
  std::vector<std::uint64_t> done;
  const TensorFileWork work{.threads = 3, .progress = [&](std::uint64_t now, std::uint64_t all) {
                              EXPECT_EQ(all, values.size());
                              done.push_back(now);
                            }};
  MemorySink sink;
  ASSERT_TRUE(encode(values, raw(ElementType::kBf16, {70000, 32}), sink, work).ok());
  EXPECT_THAT(done, ::testing::ElementsAre(1U << 20, 2U << 20, 3U << 20, 4U << 20, values.size()));
}

}  // namespace
}  // namespace kvlane
