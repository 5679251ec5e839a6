// What `hack` makes of values: errors within bounds that follow from the specification, sums that
// it keeps, and rounding by chance that is right on average.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "quant/hack_fixture.h"
#include "quant/hadamard.h"

namespace kvlane::hack_fixture {
namespace {

using hack::Axis;
using hack::Part;

// K or V of the only head of a slab, sealed and read back.
class Coded {
 public:
  Coded(const HackFormat& format, Part part, const Rows& rows, const Slab& slab)
      : part_(part),
        plane_(part == Part::kKeys ? format.options().k : format.options().v),
        head_dim_(format.shape().head_dim),
        slab_(slab.size()),
        before_(format.shape().page_plane_elements()),
        after_(before_.size()) {
    const std::size_t first = part == Part::kKeys ? 0 : before_.size();
    for (std::size_t i = 0; i < before_.size(); ++i) {
      before_[i] = to_float(bf16{rows[first + i]});
    }
    if (format.options().mix) mix_channels_scalar(before_.data(), kBlockTokens, head_dim_);
    std::memcpy(slab_.data(), slab.data(), slab.size());
    const hack::PageLayout& layout = format.layout();
    codes_ = slab_.data() + (part == Part::kKeys ? 0 : layout.v_codes);
    metadata_ = slab_.data() + (part == Part::kKeys ? layout.k_metadata : layout.v_metadata);
    Poisoned<float> values(after_.size());
    hack::open_kernel(plane_, part,
                      Isa::kScalar)({plane_, part, head_dim_, codes_, metadata_, values.data()});
    EXPECT_TRUE(values.intact_beyond());
    after_ = values.values();
  }

  const hack::Plane& plane() const { return plane_; }
  int head_dim() const { return head_dim_; }
  double before(int token, int channel) const { return before_[at(token, channel)]; }
  double after(int token, int channel) const { return after_[at(token, channel)]; }
  int code(int token, int channel) const {
    const hack::CodePlace place = part_ == Part::kKeys
                                      ? hack::key_place(plane_.bits, token, channel)
                                      : hack::value_place(plane_.bits, head_dim_, token, channel);
    std::uint32_t word = 0;
    std::memcpy(&word, codes_ + sizeof(word) * place.word, sizeof(word));
    return static_cast<int>(word >> place.bit & ((1U << plane_.bits) - 1));
  }
  // In 16-bit numbers from the start of the metadata.
  double number(int index) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, metadata_ + 2 * std::size_t(index), sizeof(bits));
    return plane_.meta == hack::Meta::kFp16 ? to_float(fp16{bits}) : to_float(bf16{bits});
  }
  double minimum(int token, int channel) const {
    return number(plane_.axis == Axis::kBoth
                      ? channel
                      : 2 * hack::entry_of(plane_, head_dim_, token, channel));
  }
  double scale(int token, int channel) const {
    return number(plane_.axis == Axis::kBoth
                      ? head_dim_ + token
                      : 2 * hack::entry_of(plane_, head_dim_, token, channel) + 1);
  }

 private:
  std::size_t at(int token, int channel) const { return std::size_t(token) * head_dim_ + channel; }

  Part part_;
  hack::Plane plane_;
  int head_dim_;
  Poisoned<std::byte> slab_;
  std::vector<float> before_, after_;
  const std::byte* codes_ = nullptr;
  const std::byte* metadata_ = nullptr;
};

// body(coded, what it is of) for K and V of rows of each kind.
template <class Body>
void for_all(const HackFormat& format, const Body& body) {
  for (const Kind kind : kKinds) {
    RowMaker maker(11);
    const Rows rows = in_range(format, maker.slab(kind, format.shape()));
    const Slab slab = seal(format, rows);
    for (const Part part : {Part::kKeys, Part::kValues}) {
      body(Coded(format, part, rows, slab), format.name() + (part == Part::kKeys ? ", K" : ", V") +
                                                ", kind " + std::to_string(static_cast<int>(kind)) +
                                                ", head_dim " +
                                                std::to_string(format.shape().head_dim));
    }
  }
}

template <class Body>
void for_axes(bool paper, const Body& body) {
  for (const char* name : kFormats) {
    for (const int head_dim : {16, 80, 128}) {
      const auto format = format_of(name, shape_of(1, head_dim), Isa::kScalar);
      if ((format->options().k.axis != Axis::kBoth) == paper) for_all(*format, body);
    }
  }
}

TEST(HackValues, AreWhatTheSpecificationSaysOfCodesAndMetadata) {
  for (const bool paper : {false, true}) {
    for_axes(paper, [&](const Coded& coded, const std::string& what) {
      const double middle = paper ? 0.0 : hack::middle_code(coded.plane());
      for (int t = 0; t < kBlockTokens; ++t) {
        for (int c = 0; c < 16; ++c) {
          const double value =
              coded.minimum(t, c) + coded.scale(t, c) * (coded.code(t, c) - middle);
          ASSERT_EQ(coded.after(t, c), double{static_cast<float>(value)})
              << what << ", token " << t << ", channel " << c;
        }
      }
    });
  }
}

// Half a step to the nearest code, less than one by chance; x - m and 1 / s, rounded to fp32, move
// what a code stands for by 2^-23 of the range at most, the value read back is rounded as well.
TEST(HackValues, OfThePapersAxesAreWithinAStep) {
  for_axes(true, [](const Coded& coded, const std::string& what) {
    const bool chance = what.find("round=sr") != std::string::npos;
    const double most = (1 << coded.plane().bits) - 1;
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int c = 0; c < coded.head_dim(); ++c) {
        const double s = coded.scale(t, c);
        const double rounding = 0x1p-22 * (std::abs(coded.minimum(t, c)) + most * s);
        ASSERT_LE(std::abs(coded.after(t, c) - coded.before(t, c)), (chance ? s : s / 2) + rounding)
            << what << ", token " << t << ", channel " << c;
      }
    }
  });
}

// The least value is read back as its partition's minimum: rounded down to the 16-bit type.
TEST(HackValues, MinimaOfThePapersAxesAreNotAbove) {
  for_axes(true, [](const Coded& coded, const std::string& what) {
    const bool fp16_type = coded.plane().meta == hack::Meta::kFp16;
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int c = 0; c < coded.head_dim(); ++c) {
        const double m = coded.minimum(t, c);
        ASSERT_LE(m, coded.before(t, c)) << what << ", token " << t << ", channel " << c;
        if (coded.scale(t, c) == 0) {
          ASSERT_LE(coded.before(t, c) - m, std::abs(m) * (fp16_type ? 0x1p-10 : 0x1p-7) + 0x1p-24)
              << what;
        }
      }
    }
  });
}

// What rounding a number to the type changes at most.
double half_step(hack::Meta meta, double x) {
  return meta == hack::Meta::kFp16 ? std::abs(x) * 0x1p-11 + 0x1p-25
                                   : std::abs(x) * 0x1p-8 + 0x1p-134;
}

// Step 1 of section 6, in floats: what is taken from it may be small.
float centre_of(const Coded& coded, int c) {
  const auto x = [&](int t) { return static_cast<float>(coded.before(t, c)); };
  float least = x(0);
  float greatest = x(0);
  float sum = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    least = std::min(least, x(t));
    greatest = std::max(greatest, x(t));
    sum += x(t);
  }
  const float mean = ((sum - least) - greatest) / 62;
  float distances = 0;
  float farthest = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    distances += std::abs(x(t) - mean);
    farthest = std::max(farthest, std::abs(x(t) - mean));
  }
  const float near = (distances - farthest) / 63 * 4;
  return (std::max(least, mean - near) + std::min(greatest, mean + near)) / 2;
}

// Step 3 of section 6: a token's coded vector is right along the vector itself.
TEST(HackValues, ScalesOfTokensKeepTheSquare) {
  for_axes(false, [](const Coded& coded, const std::string& what) {
    const double middle = hack::middle_code(coded.plane());
    const hack::Meta meta = coded.plane().meta;
    const int d = coded.head_dim();
    std::vector<double> centre(d);
    for (int c = 0; c < d; ++c) centre[c] = centre_of(coded, c);
    for (int t = 0; t < kBlockTokens; ++t) {
      double squares = 0;
      double products = 0;
      for (int c = 0; c < d; ++c) {
        const double y = coded.before(t, c) - centre[c];
        squares += y * y;
        products += y * (coded.code(t, c) - middle);
      }
      const double s = coded.scale(t, 0);
      if (s == 0) {
        // No step of 2^-24 or more: no value is further than h of them from its channel's middle.
        ASSERT_LE(std::sqrt(squares / d), 0x1p-24 * middle * 1.01) << what << ", token " << t;
      } else {
        // Each term is rounded three times, and at most 20 partial sums are above it.
        ASSERT_NEAR(s, squares / products, half_step(meta, s) + s * 0x1p-19)
            << what << ", token " << t;
      }
    }
  });
}

// A token far from all others, as the first of a text often is, costs them next to nothing.
TEST(HackValues, OneLargeTokenLeavesTheOthersAlone) {
  for (const float times : {1.0F, 4.0F, 16.0F, 256.0F}) {
    const KvShape shape = shape_of(1, 64);
    const auto format = format_of("hack", shape, Isa::kScalar);
    std::mt19937 engine(7);
    std::normal_distribution<float> gauss;
    Rows rows(2 * shape.page_plane_elements());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const bool large = i / shape.head_dim % kBlockTokens == 0;
      rows[i] = to_bf16(gauss(engine) * (large ? times : 1.0F)).bits;
    }
    const Rows opened = open(*format, seal(*format, rows));
    double error = 0;
    double energy = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i / shape.head_dim % kBlockTokens == 0) continue;
      const double x = to_float(bf16{rows[i]});
      error += (to_float(bf16{opened[i]}) - x) * (to_float(bf16{opened[i]}) - x);
      energy += x * x;
    }
    EXPECT_LT(error / energy, 0.17) << times;
  }
}

// Step 4: errors of a channel in units of scales add up to what rounding its mean leaves.
TEST(HackValues, MeansOfChannelsKeepTheSum) {
  for_axes(false, [](const Coded& coded, const std::string& what) {
    for (int c = 0; c < coded.head_dim(); ++c) {
      double error = 0;
      double weights = 0;
      double magnitudes = 0;
      for (int t = 0; t < kBlockTokens; ++t) {
        if (coded.scale(t, 0) == 0) continue;
        const double weight = 1 / coded.scale(t, 0);
        weights += weight;
        error += weight * (coded.before(t, c) - coded.after(t, c));
        magnitudes += weight * (std::abs(coded.before(t, c)) + std::abs(coded.after(t, c)) +
                                std::abs(coded.minimum(t, c)));
      }
      if (weights == 0) continue;
      // 64 terms, each rounded thrice and with the sums behind it; values read back are rounded
      // too.
      ASSERT_LE(std::abs(error) / weights, half_step(coded.plane().meta, coded.minimum(0, c)) +
                                               magnitudes / weights * 0x1p-18 + 0x1p-149)
          << what << ", channel " << c;
    }
  });
}

// Rows whose partitions of 32 have m = 0 and s = 1: 0, 3 and fractions between, in K's channels and
// in V's tokens alike.
constexpr int kDraws = 4096;
constexpr std::array kFractions = {0.0F, 3.0F, 0.125F, 0.25F, 0.5F,  0.625F, 0.9375F, 1.0F,
                                   1.5F, 2.0F, 2.25F,  2.5F,  2.75F, 2.875F, 0.0625F, 2.96875F};

Rows rows_of_fractions() {
  Rows rows;
  for (int t = 0; t < kBlockTokens; ++t) {
    for (const float x : kFractions) rows.push_back(to_bf16(x).bits);
  }
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int c = 0; c < 16; ++c) rows.push_back(to_bf16(kFractions[t % 16]).bits);
  }
  return rows;
}

Slab seal_at(const KvFormat& format, SlabPlace place, const Rows& rows) {
  Poisoned<std::byte> slab(format.slab_bytes());
  const Status status = format.seal(place, rows.data(), slab.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return slab.values();
}

SlabPlace place_of(int draw) { return {draw % 32, draw / 32 * kBlockTokens}; }

TEST(HackValues, ByChanceAreRightOnAverage) {
  const auto format = format_of("hack:p=32,round=sr", shape_of(1, 16), Isa::kScalar);
  const Rows rows = rows_of_fractions();
  // Of K's token 5, of V's tokens 32 ... 47 of channel 9, and of all tokens of K.
  std::array<int, 16> keys{};
  std::array<int, 16> values{};
  std::array<double, 16> all{};
  for (int draw = 0; draw < kDraws; ++draw) {
    const Slab slab = seal_at(*format, place_of(draw), rows);
    const Coded k(*format, Part::kKeys, rows, slab);
    const Coded v(*format, Part::kValues, rows, slab);
    for (int i = 0; i < 16; ++i) {
      keys[i] += k.code(5, i);
      values[i] += v.code(32 + i, 9);
      for (int t = 0; t < kBlockTokens; ++t) all[i] += k.code(t, i);
    }
    if (draw == 0) {
      EXPECT_EQ(k.minimum(5, 0), 0.0);
      EXPECT_EQ(k.scale(5, 0), 1.0);
      EXPECT_EQ(v.scale(40, 9), 1.0);
    }
  }
  for (int i = 0; i < 16; ++i) {
    const double x = kFractions[i];
    const double part = x - std::floor(x);
    const double deviation = std::sqrt(part * (1 - part) / kDraws);
    EXPECT_LE(std::abs(keys[i] / double{kDraws} - x), 4 * deviation) << "K, " << x;
    EXPECT_LE(std::abs(values[i] / double{kDraws} - x), 4 * deviation) << "V, " << x;
    // As many draws again in 63 other tokens: what is drawn for them is something else.
    EXPECT_LE(std::abs(all[i] / (double{kDraws} * kBlockTokens) - x), 4 * deviation / 8) << x;
  }
}

TEST(HackValues, ByChanceFollowFromThePlaceOnly) {
  const auto chance = format_of("hack:p=32,round=sr", shape_of(2, 16), Isa::kScalar);
  const auto nearest = format_of("hack:p=32", shape_of(2, 16), Isa::kScalar);
  Rows rows = rows_of_fractions();
  rows.insert(rows.end(), rows.begin(), rows.begin() + 2 * 64 * 16);
  const Slab slab = seal_at(*chance, {3, 128}, rows);
  EXPECT_EQ(seal_at(*chance, {3, 128}, rows), slab);
  EXPECT_NE(seal_at(*chance, {4, 128}, rows), slab);
  EXPECT_NE(seal_at(*chance, {3, 192}, rows), slab);
  const auto half = slab.begin() + static_cast<std::ptrdiff_t>(slab.size() / 2);
  EXPECT_NE(Slab(slab.begin(), half), Slab(half, slab.end())) << "heads draw for themselves";
  EXPECT_EQ(seal_at(*nearest, {3, 128}, rows), seal_at(*nearest, {4, 192}, rows));
}

}  // namespace
}  // namespace kvlane::hack_fixture
