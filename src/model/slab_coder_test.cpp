// Codecs of a device, here one of emulated threads: bytes and errors are those of the CPU's codecs.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_coder.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/bf16.h"
#include "base/test_results.h"
#include "model/emulated_accelerator.h"
#include "model/slab_fixture.h"

namespace kvlane {
namespace {

using slab_fixture::slab_of;

const KvShape kCoderShape{2, 3, 32, ElementType::kBf16};
constexpr int kSlabs = 3;
const std::string_view kCodecs[] = {"splitzip", "splitzip:channel"};

// The K, or the V, of a slab as the CPU's codec has it.
Bytes coded_on_cpu(const Codec& codec, const Bytes& slab, int part, int rows,
                   const Codebook* book) {
  const PlaneShape shape = plane_shape(kCoderShape, rows);
  Bytes coded(codec.bound(shape));
  const PlaneView values{slab.data() + part * kCoderShape.page_bytes() / 2,
                         kCoderShape.page_bytes()};
  coded.resize(codec.encode(shape, values, book, coded));
  return coded;
}

class SlabCoderTest : public testing::Test {
 protected:
  SlabCoderTest() {
    for (int i = 0; i < kSlabs; ++i) {
      slabs_.push_back(slab_of(kCoderShape, i));
      on_device_.push_back(
          {memory_.get() + i * kCoderShape.slab_bytes(), i == 2 ? 13 : kBlockTokens});
      EXPECT_TRUE(device_
                      .copy(memory_.get() + i * kCoderShape.slab_bytes(), slabs_[i].data(),
                            kCoderShape.slab_bytes())
                      .ok());
    }
    EXPECT_TRUE(device_.finish().ok());
  }
  Bytes read(int slab) {
    Bytes bytes(kCoderShape.slab_bytes());
    EXPECT_TRUE(copies_(bytes.data(), on_device_[slab].slab, bytes.size()).ok());
    return bytes;
  }

  // Into the first slab.
  Status decode(SlabCoder& coder, const Codec& codec, const CodedSlab& coded, int rows) {
    const ComingSlab coming{coded, rows, memory_.get()};
    Status verdict;
    KVLANE_TRY(coder.decode(codec, {&coming, 1}, {&verdict, 1}));
    return verdict;
  }

  EmulatedAccelerator device_;
  const MemoryCopy copies_ = take(device_.copies());
  const Accelerator::Memory memory_ = take(device_.allocate(kSlabs * kCoderShape.slab_bytes()));
  std::vector<Bytes> slabs_;
  std::vector<DeviceSlab> on_device_;
  SlabCoder coder_ = take(SlabCoder::open(device_, kCoderShape, kSlabs));
};

TEST_F(SlabCoderTest, HasTheBytesOfTheCpu) {
  Codebook book;
  for (int i = 0; i < 16; ++i) book.exponents[i] = static_cast<std::uint8_t>(112 + i);
  for (const std::string_view name : kCodecs) {
    const Codec& codec = *take(find_codec(name));
    ASSERT_TRUE(SlabCoder::knows(codec));
    for (const Codebook* const v_book : std::array<const Codebook*, 2>{nullptr, &book}) {
      for (const int count : {1, kSlabs}) {
        for (DeviceSlab& slab : on_device_) slab.books[1] = v_book;
        on_device_[1].books = {v_book, nullptr};  // each has its own
        const auto coded = take(coder_.encode(codec, std::span(on_device_).last(count), nullptr));
        ASSERT_EQ(static_cast<int>(coded.size()), count);
        for (int i = 0; i < count; ++i) {
          const int slab = kSlabs - count + i;
          const int rows = on_device_[slab].rows;
          const auto& books = on_device_[slab].books;
          const Bytes k = coded_on_cpu(codec, slabs_[slab], 0, rows, books[0]);
          const Bytes v = coded_on_cpu(codec, slabs_[slab], 1, rows, books[1]);
          EXPECT_EQ(Bytes(coded[i].k.begin(), coded[i].k.end()), k) << name << " " << slab;
          EXPECT_EQ(Bytes(coded[i].v.begin(), coded[i].v.end()), v) << name << " " << slab;
        }
      }
    }
  }
  EXPECT_FALSE(SlabCoder::knows(*take(find_codec("none"))));
}

TEST_F(SlabCoderTest, BeginsWhenTheDeviceHasReachedTheMark) {
  const Codec& codec = *take(find_codec("splitzip"));
  const Bytes other = slab_of(kCoderShape, 99);
  ASSERT_TRUE(device_.copy(memory_.get(), other.data(), other.size()).ok());
  const auto written = take(device_.mark());
  const auto coded = take(coder_.encode(codec, std::span(on_device_).first(1), written.get()));
  EXPECT_EQ(Bytes(coded[0].k.begin(), coded[0].k.end()),
            coded_on_cpu(codec, other, 0, kBlockTokens, nullptr));
}

TEST_F(SlabCoderTest, DecodesRowsAndNothingElse) {
  constexpr int kRows = 13;
  for (const std::string_view name : kCodecs) {
    const Codec& codec = *take(find_codec(name));
    const Bytes k = coded_on_cpu(codec, slabs_[1], 0, kRows, nullptr);
    const Bytes v = coded_on_cpu(codec, slabs_[1], 1, kRows, nullptr);
    const Bytes before = read(0);
    ASSERT_TRUE(decode(coder_, codec, {k, v}, kRows).ok());
    Bytes expected = before;
    const std::size_t plane = kCoderShape.page_bytes() / 2;
    for (std::size_t at = 0; at < expected.size(); at += plane) {
      std::memcpy(expected.data() + at, slabs_[1].data() + at, kRows * kCoderShape.head_dim * 2);
    }
    EXPECT_EQ(read(0), expected) << name;
    ASSERT_TRUE(copies_(memory_.get(), before.data(), before.size()).ok());
  }
}

TEST_F(SlabCoderTest, RefusesWithTheWordsOfTheCpu) {
  for (const std::string_view name : kCodecs) {
    const Codec& codec = *take(find_codec(name));
    const PlaneShape shape = plane_shape(kCoderShape, kBlockTokens);
    const Bytes k = coded_on_cpu(codec, slabs_[0], 0, kBlockTokens, nullptr);
    Bytes future = k, longer = k, too_long(2 * codec.bound(shape) + 256);
    future[0] = std::byte{77};
    longer.push_back(std::byte{0});
    const Bytes cut(k.begin(), k.end() - 1);
    for (const Bytes& wrong : {future, longer, too_long, cut, Bytes()}) {
      Bytes values(shape.bytes());
      const Status expected = codec.decode(shape, wrong, values);
      ASSERT_FALSE(expected.ok());
      for (const CodedSlab& coded : {CodedSlab{wrong, k}, CodedSlab{k, wrong}}) {
        const Status status = decode(coder_, codec, coded, kBlockTokens);
        EXPECT_EQ(status.code(), expected.code()) << name;
        EXPECT_EQ(status.message(), expected.message()) << name;
      }
    }
  }
}

// One that is wrong, whether a kernel finds it or it is too long for one, spoils no other.
TEST_F(SlabCoderTest, DecodesManyAtOnce) {
  for (const std::string_view name : kCodecs) {
    const Codec& codec = *take(find_codec(name));
    std::vector<Bytes> k, v;
    for (const Bytes& slab : slabs_) {
      k.push_back(coded_on_cpu(codec, slab, 0, kBlockTokens, nullptr));
      v.push_back(coded_on_cpu(codec, slab, 1, kBlockTokens, nullptr));
    }
    const Bytes too_long(2 * codec.bound(plane_shape(kCoderShape, kBlockTokens)) + 256);
    for (const bool fits : {true, false}) {
      // Each to where another one lies.
      std::vector<ComingSlab> coming;
      for (int i = 0; i < kSlabs; ++i) {
        coming.push_back({{k[i], v[i]},
                          kBlockTokens,
                          memory_.get() + (kSlabs - 1 - i) * kCoderShape.slab_bytes()});
      }
      const Bytes cut(k[1].begin(), k[1].end() - 1);
      coming[1].coded.k = fits ? cut : too_long;
      std::vector<Status> verdicts(kSlabs);
      ASSERT_TRUE(coder_.decode(codec, coming, verdicts).ok());
      for (const int i : {0, 2}) {
        EXPECT_TRUE(verdicts[i].ok()) << name << " " << i;
        EXPECT_EQ(read(kSlabs - 1 - i), slabs_[i]) << name << " " << i;
      }
      Bytes values(plane_shape(kCoderShape, kBlockTokens).bytes());
      const Status expected =
          codec.decode(plane_shape(kCoderShape, kBlockTokens), coming[1].coded.k, values);
      ASSERT_FALSE(expected.ok());
      EXPECT_EQ(verdicts[1].message(), expected.message()) << name;
    }
  }
}

TEST_F(SlabCoderTest, AnyCallOfTheDeviceMayFail) {
  const Codec& codec = *take(find_codec("splitzip"));
  const Bytes k = coded_on_cpu(codec, slabs_[1], 0, kBlockTokens, nullptr);
  const Bytes v = coded_on_cpu(codec, slabs_[1], 1, kBlockTokens, nullptr);
  const auto mark = take(device_.mark());
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    device_.fail_call(failed + 1);
    const auto everything = [&]() -> Status {
      KVLANE_ASSIGN(SlabCoder coder, SlabCoder::open(device_, kCoderShape, 1));
      KVLANE_ASSIGN(const auto coded,
                    coder.encode(codec, std::span(on_device_).subspan(1, 1), mark.get()));
      EXPECT_EQ(Bytes(coded[0].v.begin(), coded[0].v.end()), v);
      return decode(coder, codec, {k, v}, kBlockTokens);
    };
    const Status status = everything();
    done = device_.calls() <= failed;
    EXPECT_EQ(status.code(), done ? Code::kOk : Code::kInternal) << failed;
    // The next one is right.
    device_.fail_call(0);
    ASSERT_TRUE(decode(coder_, codec, {k, v}, kBlockTokens).ok());
    EXPECT_EQ(read(0), slabs_[1]);
  }
  EXPECT_GT(failed, 3 + 8 + 6);
}

}  // namespace
}  // namespace kvlane
