// Slabs with sums of codes, for attention in the complete form of HACK's paper: what they hold, how
// much it is, and that it never travels.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_sums.h"

#include <gtest/gtest.h>

#include <cstring>

#include "quant/hack_fixture.h"

namespace kvlane::hack_fixture {
namespace {

constexpr const char* kComplete[] = {"hack:k=2,v=2,p=32",       "hack:k=2,v=2,p=64",
                                     "hack:k=2,v=2,p=128",      "hack:k=4,v=8,p=32",
                                     "hack:k=8,v=4,p=64",       "hack:k=8,v=8,p=128,meta=bf16",
                                     "hack:k=4,v=2,p=64,mix=1", "hack:k=2,v=4,p=32,round=sr"};

std::string complete(const char* name) { return std::string(name) + ",compute=complete"; }

class HackSums : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, HackSums, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

int code_at(const std::byte* codes, hack::CodePlace place, int bits) {
  std::uint32_t word = 0;
  std::memcpy(&word, codes + sizeof(word) * place.word, sizeof(word));
  return static_cast<int>(word >> place.bit & ((1U << bits) - 1));
}

// From places of codes alone; the sums as bytes.
Slab expected_sums(const hack::Plane& plane, int head_dim, const std::byte* codes) {
  std::vector<int> totals(hack::entries(plane, head_dim));
  for (int token = 0; token < kBlockTokens; ++token) {
    for (int channel = 0; channel < head_dim; ++channel) {
      const hack::CodePlace place = plane.axis == hack::Axis::kToken
                                        ? hack::key_place(plane.bits, token, channel)
                                        : hack::value_place(plane.bits, head_dim, token, channel);
      totals[hack::entry_of(plane, head_dim, token, channel)] += code_at(codes, place, plane.bits);
    }
  }
  Slab bytes;
  for (const int total : totals) {
    bytes.push_back(std::byte(total & 0xff));
    if (hack::sum_bytes(plane, head_dim) == 2) bytes.push_back(std::byte(total >> 8));
  }
  return bytes;
}

TEST_P(HackSums, LieBehindASlabThatIsOtherwiseTheSame) {
  for (const char* name : kComplete) {
    for (const int head_dim : kHeadDims) {
      const KvShape shape = shape_of(2, head_dim);
      const auto plain = format_of(name, shape, GetParam());
      const auto format = format_of(complete(name), shape, GetParam());
      RowMaker maker(static_cast<unsigned>(head_dim));
      const Rows rows = in_range(*plain, maker.slab(Kind::kModel, shape));
      const Slab without = seal(*plain, rows);
      const Slab slab = seal(*format, rows, 0xa5);
      const hack::PageLayout& layout = format->layout();
      ASSERT_EQ(layout.k_sums, plain->layout().bytes);
      for (int head = 0; head < 2; ++head) {
        const std::byte* const page = slab.data() + layout.bytes * head;
        EXPECT_EQ(std::memcmp(page, without.data() + layout.k_sums * head, layout.k_sums), 0);
        Slab sums = expected_sums(format->options().k, head_dim, page);
        sums.resize(layout.v_sums - layout.k_sums);
        const Slab of_values = expected_sums(format->options().v, head_dim, page + layout.v_codes);
        sums.insert(sums.end(), of_values.begin(), of_values.end());
        sums.resize(layout.bytes - layout.k_sums);
        EXPECT_EQ(std::memcmp(page + layout.k_sums, sums.data(), sums.size()), 0)
            << name << ", head_dim " << head_dim;
      }
      EXPECT_EQ(open(*format, slab), open(*plain, without)) << name;
    }
  }
}

TEST_P(HackSums, DoNotTravelAndAreTakenAnew) {
  for (const char* name : kComplete) {
    for (const int head_dim : {48, 128}) {
      const KvShape shape = shape_of(2, head_dim);
      const auto plain = format_of(name, shape, GetParam());
      const auto format = format_of(complete(name), shape, GetParam());
      EXPECT_EQ(format->slab_name(), plain->slab_name());
      EXPECT_EQ(format->slab_name(), name);
      RowMaker maker(3);
      const Rows rows = in_range(*plain, maker.slab(Kind::kModel, shape));
      const Slab slab = seal(*format, rows);
      Slab packed(format->used_bytes({0, 0}, slab.data()));
      ASSERT_EQ(packed.size(), plain->used_bytes({0, 0}, nullptr));
      format->pack({0, 0}, slab.data(), packed.data());
      Slab packed_plain(packed.size());
      plain->pack({0, 0}, seal(*plain, rows).data(), packed_plain.data());
      EXPECT_EQ(packed, packed_plain) << name;
      Poisoned<std::byte> back(slab.size());
      ASSERT_TRUE(format->unpack({0, 0}, packed, back.data()).ok());
      EXPECT_TRUE(back.intact_beyond());
      EXPECT_EQ(back.values(), slab) << name << ", head_dim " << head_dim;
    }
  }
}

TEST_P(HackSums, AreThoseOfAnyCodes) {
  std::mt19937 engine(8);
  for (const char* name : kComplete) {
    for (const int head_dim : kHeadDims) {
      const auto format = format_of(complete(name), shape_of(1, head_dim), GetParam());
      for (const hack::Plane& plane : {format->options().k, format->options().v}) {
        Poisoned<std::byte> codes(hack::codes_bytes(plane, head_dim));
        Poisoned<std::byte> sums(hack::sums_bytes(plane, head_dim));
        for (const bool full : {false, true}) {
          for (std::size_t i = 0; i < hack::codes_bytes(plane, head_dim); ++i) {
            codes.data()[i] = full ? std::byte{0xff} : std::byte(engine() & 0xff);
          }
          hack::sum_kernel(GetParam())(plane, head_dim, codes.data(), sums.data());
          EXPECT_TRUE(sums.intact_beyond());
          EXPECT_EQ(sums.values(), expected_sums(plane, head_dim, codes.data()))
              << name << ", head_dim " << head_dim << (full ? ", full" : "");
        }
      }
    }
  }
}

// What one page of a head of 128 channels takes: HACK's own table, but that V's partitions end with
// the block, so that those of 128 are of 64.
TEST(HackSumsBits, AreThoseOfThePaper) {
  struct Bits {
    const char* name;
    double wire_k, wire_v, slab;  // a value; the slab's with sums
  };
  for (const Bits& bits : {Bits{"hack:p=32", 3, 3, 3.25}, Bits{"hack:p=64", 2.5, 2.5, 2.625},
                           Bits{"hack:p=128", 2.25, 2.5, (2.375 + 2.625) / 2}}) {
    const auto format = format_of(complete(bits.name), shape_of(1, 128), Isa::kScalar);
    const hack::PageLayout& layout = format->layout();
    const auto of_value = [](std::size_t bytes, int planes) {
      return 8 * static_cast<double>(bytes) / (planes * 64 * 128);
    };
    const std::size_t k = layout.v_codes + (layout.v_metadata - layout.k_metadata);
    const std::size_t v =
        (layout.k_metadata - layout.v_codes) + (layout.k_sums - layout.v_metadata);
    EXPECT_EQ(of_value(k, 1), bits.wire_k) << bits.name;
    EXPECT_EQ(of_value(v, 1), bits.wire_v) << bits.name;
    EXPECT_EQ(format->used_bytes({0, 0}, nullptr), k + v) << bits.name;
    EXPECT_EQ(of_value(format->slab_bytes(), 2), bits.slab) << bits.name;
    const auto computed =
        format_of(complete(bits.name) + ",sums=computed", shape_of(1, 128), Isa::kScalar);
    EXPECT_EQ(computed->slab_bytes(), format->used_bytes({0, 0}, nullptr)) << bits.name;
  }
}

}  // namespace
}  // namespace kvlane::hack_fixture
