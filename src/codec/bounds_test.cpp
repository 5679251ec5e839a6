// No codec, on any tier, touches a byte outside the buffers it was given: planes and bodies lie
// right before or right behind pages that fault, and what is only read lies in pages that may not
// be written. AddressSanitizer sees less: it does not watch what masked loads and stores touch.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/test_sanitizers.h"
#include "codec/codec.h"
#include "codec/splitzip_fixture.h"
#include "cpu/streaming_copy.h"

namespace kvlane {
namespace {

using splitzip_fixture::Random;
using splitzip_fixture::with_exponent;

// Where in its pages a buffer lies. Starts differ with the size when it lies at the end.
enum class Side { kStart, kEnd };
constexpr Side kSides[] = {Side::kStart, Side::kEnd};

// Some pages between two that fault. Reserved once for all buffers of a test.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t most)
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        inner_((most + page_ - 1) / page_ * page_ + page_) {
    void* const all = ::mmap(nullptr, inner_ + 2 * page_, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return;
    start_ = static_cast<std::byte*>(all) + page_;
    allow_writing(true);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  ~GuardedPages() {
    if (start_ != nullptr) ::munmap(start_ - page_, inner_ + 2 * page_);
  }

  bool ok() const { return start_ != nullptr; }

  void allow_writing(bool allowed) {
    ASSERT_EQ(::mprotect(start_, inner_, allowed ? PROT_READ | PROT_WRITE : PROT_READ), 0);
  }

  std::span<std::byte> buffer(std::size_t size, Side side) {
    return {side == Side::kStart ? start_ : start_ + inner_ - size, size};
  }
  // The same, with `bytes` in it, and read-only until allow_writing().
  ByteView constant(ByteView bytes, Side side) {
    allow_writing(true);
    const std::span<std::byte> to = buffer(bytes.size(), side);
    std::copy(bytes.begin(), bytes.end(), to.begin());
    allow_writing(false);
    return to;
  }

 private:
  std::size_t page_;
  std::size_t inner_;
  std::byte* start_ = nullptr;
};

constexpr ElementType kTypes[] = {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3,
                                  ElementType::kFp8E5m2};

std::string to_string(const PlaneShape& shape) {
  return std::string(element_name(shape.type)) + " " + std::to_string(shape.kv_heads) + " x " +
         std::to_string(shape.rows) + " x " + std::to_string(shape.head_dim);
}

// What the values of a plane are like. The first codes everywhere, the last ones nowhere.
enum class Values { kLikely, kSomeOutliers, kManyOutliers, kOneExponent, kEveryPattern, kNoise };
constexpr Values kAllValues[] = {Values::kLikely,      Values::kSomeOutliers, Values::kManyOutliers,
                                 Values::kOneExponent, Values::kEveryPattern, Values::kNoise};

Bytes plane_of(const PlaneShape& shape, Values values, unsigned seed) {
  Random rng(seed);
  const unsigned exponents = shape.type == ElementType::kBf16      ? 256
                             : shape.type == ElementType::kFp8E4m3 ? 16
                                                                   : 32;
  Bytes plane(shape.bytes());
  const std::size_t width = element_bytes(shape.type);
  for (std::size_t i = 0; i < shape.elements(); ++i) {
    const unsigned outliers = values == Values::kSomeOutliers   ? 10
                              : values == Values::kManyOutliers ? 200
                                                                : 0;
    // About as far from each other as exponents of Gaussian values.
    const auto below = static_cast<unsigned>(__builtin_ctz(rng() | 1U << 5));
    unsigned exponent = exponents / 2 - (values == Values::kOneExponent ? 0 : below);
    if (rng() % 1000 < outliers) exponent = rng() % exponents;
    unsigned value = with_exponent(rng, shape.type, exponent);
    if (values == Values::kEveryPattern) value = static_cast<unsigned>(i) * 40503U;
    if (values == Values::kNoise) value = rng();
    std::memcpy(plane.data() + width * i, &value, width);
  }
  return plane;
}

class Bounds : public ::testing::TestWithParam<std::tuple<const char*, Isa>> {
 protected:
  static constexpr std::size_t kBytesMax = std::size_t{1} << 20;

  void SetUp() override {
    const auto [name, isa] = GetParam();
    if (!isa_supported(isa)) GTEST_SKIP() << "this processor lacks " << isa_name(isa);
    codec_ = *find_codec(name, isa);
    scalar_ = *find_codec(name, Isa::kScalar);
    ASSERT_TRUE(source_.ok() && destination_.ok());
  }

  Bytes encode_by_scalar(const PlaneShape& shape, ByteView plane) const {
    Bytes body(scalar_->bound(shape));
    body.resize(scalar_->encode(shape, plane, nullptr, body));
    return body;
  }

  void expect_round_trip(const PlaneShape& shape, const Bytes& plane) {
    const Bytes expected = encode_by_scalar(shape, plane);
    for (const Side side : kSides) {
      const std::span<std::byte> out = destination_.buffer(codec_->bound(shape), side);
      const std::size_t bytes = codec_->encode(shape, source_.constant(plane, side), nullptr, out);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin(), out.begin() + bytes));
      const std::span<std::byte> values = destination_.buffer(plane.size(), side);
      ASSERT_TRUE(codec_->decode(shape, source_.constant(expected, side), values).ok());
      ASSERT_TRUE(std::equal(plane.begin(), plane.end(), values.begin()));
    }
  }

  // `body` from strangers: the verdict and the values are those of the scalar decoder.
  void expect_judged_alike(const PlaneShape& shape, const Bytes& body) {
    Bytes expected(shape.bytes());
    const Status judged = scalar_->decode(shape, body, expected);
    for (const Side side : kSides) {
      const std::span<std::byte> values = destination_.buffer(shape.bytes(), side);
      const Status status = codec_->decode(shape, source_.constant(body, side), values);
      ASSERT_EQ(status.code(), judged.code());
      ASSERT_EQ(status.message(), judged.message());
      ASSERT_TRUE(!judged.ok() || std::equal(expected.begin(), expected.end(), values.begin()));
    }
  }

  // Bodies of all kinds: coded to the last tile and chunk, partly, and raw.
  std::vector<std::pair<PlaneShape, Bytes>> sample_bodies() const {
    std::vector<std::pair<PlaneShape, Bytes>> samples;
    for (const ElementType type : kTypes) {
      for (const PlaneShape& shape :
           {PlaneShape{type, 1, 64, 16}, PlaneShape{type, 2, 7, 70}, PlaneShape{type, 1, 1, 5}}) {
        for (const Values values : {Values::kSomeOutliers, Values::kManyOutliers}) {
          samples.emplace_back(shape, encode_by_scalar(shape, plane_of(shape, values, 3)));
        }
      }
    }
    return samples;
  }

  const Codec* codec_ = nullptr;
  const Codec* scalar_ = nullptr;
  GuardedPages source_{kBytesMax};
  GuardedPages destination_{kBytesMax};
};

INSTANTIATE_TEST_SUITE_P(Codecs, Bounds,
                         ::testing::Combine(::testing::Values("none", "splitzip",
                                                              "splitzip:channel"),
                                            ::testing::ValuesIn(kAllIsas)),
                         [](const auto& of) {
                           std::string name = std::get<0>(of.param);
                           std::replace(name.begin(), name.end(), ':', '_');
                           return name + "_" + std::string(isa_name(std::get<1>(of.param)));
                         });

TEST_P(Bounds, EveryLength) {
  for (const ElementType type : kTypes) {
    unsigned seed = 0;
    for (int n = 0; n <= 1100; n += n < 300 || n > 1000 ? 1 : 7) {
      const PlaneShape shape{type, 1, 1, n};
      const Values values = kAllValues[++seed % std::size(kAllValues)];
      expect_round_trip(shape, plane_of(shape, values, seed));
      ASSERT_FALSE(HasFailure()) << to_string(shape);
    }
  }
}

TEST_P(Bounds, EveryEdgeOfTilesAndBands) {
  constexpr int kRows[] = {1, 2, 3, 4, 5, 31, 60, 63, 64, 65, 66, 127, 128, 130};
  constexpr int kChannels[] = {1,  3,  4,  5,   8,   15,  16,  17,  31,  32,  33, 63,
                               64, 65, 96, 127, 128, 129, 192, 193, 255, 256, 257};
  unsigned seed = 0;
  for (const int channels : kChannels) {
    for (const int rows : kRows) {
      const PlaneShape shape{ElementType::kBf16, 1 + rows % 2, rows, channels};
      // Each kind in turn, so that all meet all edges of one of the two.
      const Values values = kAllValues[++seed % std::size(kAllValues)];
      expect_round_trip(shape, plane_of(shape, values, seed));
      ASSERT_FALSE(HasFailure()) << to_string(shape);
    }
  }
  for (const int channels : {511, 512, 513, 576, 600, 1024, 1025}) {
    const PlaneShape shape{ElementType::kBf16, 1, 66, channels};
    for (const Values values : kAllValues) {
      expect_round_trip(shape, plane_of(shape, values, ++seed));
      ASSERT_FALSE(HasFailure()) << to_string(shape);
    }
  }
}

TEST_P(Bounds, EveryKindOfValuesInEveryType) {
  for (const ElementType type : kTypes) {
    for (const PlaneShape& shape : {PlaneShape{type, 2, 64, 128}, PlaneShape{type, 3, 61, 67}}) {
      for (const Values values : kAllValues) {
        expect_round_trip(shape, plane_of(shape, values, 1));
        ASSERT_FALSE(HasFailure()) << to_string(shape);
      }
    }
  }
}

TEST_P(Bounds, EveryAddressModuloALine) {
  for (const ElementType type : kTypes) {
    const PlaneShape shape{type, 1, 67, 130};
    const Bytes plane = plane_of(shape, Values::kSomeOutliers, 1);
    const Bytes expected = encode_by_scalar(shape, plane);
    for (std::size_t shift = 1; shift < 64; ++shift) {
      source_.allow_writing(true);
      const std::span<std::byte> values = source_.buffer(plane.size() + shift, Side::kEnd);
      std::copy(plane.begin(), plane.end(), values.begin());
      const std::span<std::byte> body =
          destination_.buffer(codec_->bound(shape) + 64 - shift, Side::kEnd);
      const std::size_t bytes = codec_->encode(shape, values.first(plane.size()), nullptr,
                                               body.first(codec_->bound(shape)));
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), body.begin(), body.begin() + bytes));
      std::fill(values.begin(), values.end(), std::byte{0xA5});
      ASSERT_TRUE(codec_->decode(shape, body.first(bytes), values.first(plane.size())).ok());
      ASSERT_TRUE(std::equal(plane.begin(), plane.end(), values.begin())) << shift;
      const auto beyond = values.subspan(plane.size());
      ASSERT_TRUE(std::all_of(beyond.begin(), beyond.end(), [](std::byte b) {
        return b == std::byte{0xA5};
      })) << shift;
    }
  }
}

TEST_P(Bounds, EveryTruncation) {
  for (const auto& [shape, body] : sample_bodies()) {
    for (std::size_t length = 0; length < body.size(); ++length) {
      expect_judged_alike(shape, {body.begin(), body.begin() + length});
      ASSERT_FALSE(HasFailure()) << to_string(shape) << ": " << length << " of " << body.size();
    }
  }
}

TEST_P(Bounds, EveryChangedByte) {
  int coded = 0;
  for (auto& [shape, body] : sample_bodies()) {
    coded += body[1] == std::byte{1} ? 1 : 0;  // the mode, in both codecs that have one
    for (std::size_t at = 0; at < body.size(); ++at) {
      for (const unsigned change :
           every_other_if(kSanitized, std::vector{0x03U, 0x01U, 0x40U, 0x80U, 0xFFU})) {
        body[at] ^= std::byte(change);
        expect_judged_alike(shape, body);
        ASSERT_FALSE(HasFailure()) << to_string(shape) << ": byte " << at;
        body[at] ^= std::byte(change);
      }
    }
  }
  if (codec_->name() != "none") {
    EXPECT_GE(coded, 3);
  }
}

// Heads that lie in pages of their own: nothing between them is touched, and the body is that of
// the same values without gaps.
TEST_P(Bounds, HeadsApart) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  unsigned seed = 0;
  for (const ElementType type : kTypes) {
    for (const PlaneShape& shape :
         {PlaneShape{type, 3, 64, 128}, PlaneShape{type, 2, 64, 6}, PlaneShape{type, 3, 64, 257},
          PlaneShape{type, 3, 7, 70}, PlaneShape{type, 2, 33, 64}, PlaneShape{type, 60, 1, 5},
          PlaneShape{type, 5, 3, 200}, PlaneShape{type, 1, 4, 64}, PlaneShape{type, 3, 0, 64}}) {
      const Values values = kAllValues[++seed % std::size(kAllValues)];
      const Bytes plane = plane_of(shape, values, seed);
      const Bytes expected = encode_by_scalar(shape, plane);
      const std::size_t stride = (shape.head_bytes() + page - 1) / page * page + 3 * page;
      GuardedPages heads(stride * shape.kv_heads);
      ASSERT_TRUE(heads.ok());
      const std::span<std::byte> all = heads.buffer(stride * shape.kv_heads, Side::kStart);
      for (const Side side : kSides) {
        // One page before each head faults, and all behind it.
        heads.allow_writing(true);
        const std::size_t room = stride - 3 * page;
        const std::size_t begin = page + (side == Side::kEnd ? room - shape.head_bytes() : 0);
        for (int head = 0; head < shape.kv_heads; ++head) {
          std::byte* const own = all.data() + stride * head;
          std::copy_n(plane.data() + shape.head_bytes() * head, shape.head_bytes(), own + begin);
          ASSERT_EQ(::mprotect(own, page, PROT_NONE), 0);
          ASSERT_EQ(::mprotect(own + page + room, 2 * page, PROT_NONE), 0);
        }
        const std::span<std::byte> out = destination_.buffer(codec_->bound(shape), side);
        std::byte* const first = all.data() + begin;
        const std::size_t bytes = codec_->encode(shape, PlaneView{first, stride}, nullptr, out);
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), out.begin(), out.begin() + bytes))
            << to_string(shape);
        for (const bool past_caches : {false, true}) {
          for (int head = 0; head < shape.kv_heads; ++head) {
            std::fill_n(first + stride * head, shape.head_bytes(), std::byte{0xA5});
          }
          const PlaneSpan span{first, stride, past_caches};
          ASSERT_TRUE(codec_->decode(shape, source_.constant(expected, side), span).ok());
          Bytes decoded(plane.size());
          copy_plane(shape, {first, stride}, decoded.data());
          ASSERT_EQ(decoded, plane) << to_string(shape);
        }
      }
    }
  }
}

// Large enough for stores around the caches, whole lines of which end where the pages end.
TEST_P(Bounds, WhereOutputIsStreamed) {
  const PlaneShape shape{ElementType::kBf16, 65, 64, 1024 + 64};
  ASSERT_GE(shape.bytes(), kStreamingBytes);
  ASSERT_EQ(shape.bytes() % 64, 0U);
  const Bytes plane = plane_of(shape, Values::kSomeOutliers, 1);
  const Bytes expected = encode_by_scalar(shape, plane);
  GuardedPages in(codec_->bound(shape));
  GuardedPages out(codec_->bound(shape) + 64);
  ASSERT_TRUE(in.ok() && out.ok());
  for (const Side side : kSides) {
    const std::size_t room = (codec_->bound(shape) + 63) / 64 * 64;
    const std::span<std::byte> body = out.buffer(room, side);
    const std::size_t bytes = codec_->encode(shape, in.constant(plane, side), nullptr, body);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), body.begin(), body.begin() + bytes));
    const std::span<std::byte> values = out.buffer(plane.size(), side);
    ASSERT_TRUE(codec_->decode(shape, in.constant(expected, side), values).ok());
    ASSERT_TRUE(std::equal(plane.begin(), plane.end(), values.begin()));
  }
}

}  // namespace
}  // namespace kvlane
