// The codes of linear formats against straightforward double precision: nearest values found by
// looking at all of them, ranges and scales by their definitions, errors within derived bounds.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/fp16_bounds.h"
#include "cpu/tiers_fixture.h"
#include "quant/linear_fixture.h"

namespace kvlane::linear_fixture {
namespace {

using linear::CodeKind;
using linear::Plane;
using tiers_fixture::tiers;

double number(std::uint16_t bits) { return double{to_float(bf16{bits})}; }
double number(fp16 x) { return double{to_float(x)}; }

// Bit `bit` of the code of a value, counted from the start of the plane's codes: section 2 of the
// specification, written another way.
unsigned code_at(const std::byte* codes, int bits, int head_dim, int token, int channel) {
  const auto part = [&](std::size_t base, int width) {
    const int per_word = 16 / width;
    const std::size_t word = std::size_t(token / per_word) * head_dim + channel;
    const std::size_t bit = 8 * base + 16 * word + std::size_t(width) * (token % per_word);
    unsigned code = 0;
    for (int i = 0; i < width; ++i) {
      const auto byte = std::to_integer<unsigned>(codes[(bit + i) / 8]);
      code |= (byte >> ((bit + i) % 8) & 1U) << i;
    }
    return code;
  };
  if (bits == 6) return part(0, 4) | part(std::size_t{32} * head_dim, 2) << 4;
  return part(0, bits);
}

// One plane of a sealed page with what the specification says of it.
struct SealedPlane {
  const Plane plane;
  const int head_dim;
  const std::uint16_t* rows;    // what was sealed
  const std::uint16_t* opened;  // what it reads as
  const std::byte* codes;
  const std::byte* metadata;

  int entry(int token, int channel) const {
    switch (plane.groups) {
      case linear::Groups::kPage: return 0;
      case linear::Groups::kRow: return channel / plane.group * 64 + token;
      default: return token / plane.group * head_dim + channel;
    }
  }
  unsigned code(int token, int channel) const {
    return code_at(codes, linear::code_bits(plane.code), head_dim, token, channel);
  }
  double x(int token, int channel) const { return number(rows[token * head_dim + channel]); }
  double read_back(int token, int channel) const {
    return number(opened[token * head_dim + channel]);
  }
  std::uint16_t half(int entry, int which) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, metadata + linear::entry_bytes(plane.entry) * entry + 2 * which, 2);
    return bits;
  }
  // The values of each group, by entry.
  std::map<int, std::vector<double>> groups() const {
    std::map<int, std::vector<double>> all;
    for (int token = 0; token < 64; ++token) {
      for (int channel = 0; channel < head_dim; ++channel) {
        all[entry(token, channel)].push_back(x(token, channel));
      }
    }
    return all;
  }
};

// Calls check(plane) for K and V of a page that is sealed and opened.
template <class Check>
void with_planes(const LinearFormat& format, const Rows& rows, const Check& check) {
  const Slab slab = seal(format, rows);
  const Rows opened = open(format, slab);
  const int d = format.shape().head_dim;
  const linear::PageLayout& layout = format.layout();
  check(SealedPlane{format.k(), d, rows.data(), opened.data(), slab.data() + layout.k_codes,
                    slab.data() + layout.k_metadata});
  check(SealedPlane{format.v(), d, rows.data() + 64 * d, opened.data() + 64 * d,
                    slab.data() + layout.v_codes, slab.data() + layout.v_metadata});
}

// --- floating-point codes -----------------------------------------------------------------------

// The magnitudes of OCP's types by their definition: value of code i.
std::vector<double> magnitudes(CodeKind kind) {
  const std::map<CodeKind, std::array<int, 4>> types = {
      // exponent bits, mantissa bits, bias, codes that are finite
      {CodeKind::kE4m3, {4, 3, 7, 127}},
      {CodeKind::kE5m2, {5, 2, 15, 124}},
      {CodeKind::kE2m3, {2, 3, 1, 32}},
      {CodeKind::kE3m2, {3, 2, 3, 32}},
      {CodeKind::kE2m1, {2, 1, 1, 8}}};
  const auto [exponent_bits, mantissa_bits, bias, count] = types.at(kind);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    const int exponent = i >> mantissa_bits;
    const double mantissa = (i & ((1 << mantissa_bits) - 1)) / std::exp2(mantissa_bits);
    values.push_back(exponent == 0 ? std::exp2(1 - bias) * mantissa
                                   : std::exp2(exponent - bias) * (1 + mantissa));
  }
  return values;
}

TEST(LinearCodes, LargestValuesAreThoseOfOcp) {
  EXPECT_EQ(magnitudes(CodeKind::kE4m3).back(), 448);
  EXPECT_EQ(magnitudes(CodeKind::kE5m2).back(), 57344);
  EXPECT_EQ(magnitudes(CodeKind::kE2m3).back(), 7.5);
  EXPECT_EQ(magnitudes(CodeKind::kE3m2).back(), 28);
  EXPECT_EQ(magnitudes(CodeKind::kE2m1), (std::vector<double>{0, 0.5, 1, 1.5, 2, 3, 4, 6}));
}

// Nearest, of two equally near ones the even code; the last one beyond it.
unsigned nearest(const std::vector<double>& values, double magnitude) {
  const auto above = static_cast<unsigned>(
      std::lower_bound(values.begin(), values.end(), magnitude) - values.begin());
  if (above == values.size()) return above - 1;
  if (above == 0) return 0;
  const double up = values[above] - magnitude;
  const double down = magnitude - values[above - 1];
  if (up != down) return up < down ? above : above - 1;
  return above % 2 == 0 ? above : above - 1;
}

int expected_entry(const Plane& plane, const std::vector<double>& values, double largest) {
  if (largest == 0) return 0;
  const double top = values.back();
  int exponent = std::ilogb(largest) - std::ilogb(top);
  // FP8: the least scale with which nothing is beyond the largest value; but none with which 1.0 of
  // the type's greatest exponent would be infinite.
  const int most = 127 - std::ilogb(top);
  if (!plane.saturates && std::ldexp(largest, -exponent) > top && exponent < most) ++exponent;
  return std::clamp(exponent, -127, 127) + 127;
}

void expect_float_codes(const SealedPlane& sealed, const std::vector<double>& values) {
  std::map<int, double> scales;
  for (const auto& [entry, group] : sealed.groups()) {
    double largest = 0;
    for (const double x : group) largest = std::max(largest, std::abs(x));
    const int e = std::to_integer<int>(sealed.metadata[entry]);
    ASSERT_EQ(e, expected_entry(sealed.plane, values, largest)) << "largest " << largest;
    scales[entry] = std::exp2(e - 127);
  }
  const int sign_bit = linear::code_bits(sealed.plane.code) - 1;
  for (int token = 0; token < 64; ++token) {
    for (int channel = 0; channel < sealed.head_dim; ++channel) {
      const double x = sealed.x(token, channel);
      const double scale = scales[sealed.entry(token, channel)];
      const unsigned magnitude = nearest(values, std::abs(x) / scale);
      const unsigned sign = std::signbit(x) ? 1U << sign_bit : 0U;
      ASSERT_EQ(sealed.code(token, channel), magnitude | sign) << x << " / " << scale;
      // Nothing is rounded on the way back, unless it is less than BF16's subnormals can say.
      const double exact = std::copysign(values[magnitude] * scale, x);
      const double spacing = std::abs(exact) < 0x1p-126 ? 0x1p-133 : 0;
      ASSERT_LE(std::abs(sealed.read_back(token, channel) - exact), spacing / 2);
      ASSERT_EQ(std::signbit(sealed.read_back(token, channel)), std::signbit(x));
    }
  }
}

constexpr const char* kFloatFormats[] = {"fp8_e4m3",   "fp8_e5m2",   "mxfp8_e4m3", "mxfp8_e5m2",
                                         "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4"};

TEST(LinearCodes, FloatingPointOfAllKindsOfRows) {
  for (const char* name : kFloatFormats) {
    for (const int head_dim : {80, 128, 33}) {
      for (const Kind kind : kKinds) {
        RowMaker maker(7);
        const Rows rows = maker.page(kind, head_dim);
        for (const Isa isa : tiers()) {
          const auto format = format_of(name, shape_of(1, head_dim), isa);
          with_planes(*format, rows, [&](const SealedPlane& sealed) {
            expect_float_codes(sealed, magnitudes(sealed.plane.code));
          });
          ASSERT_FALSE(HasFatalFailure()) << name << ", kind " << static_cast<int>(kind);
        }
      }
    }
  }
}

// Each of the 65,280 finite values of BF16 as it is, with its neighbours: blocks of consecutive
// values, so that the largest of a block is near. And each beside a value 2^3 to 2^20 times as
// large, which sets the scale: every way to round, down to zero.
TEST(LinearCodes, EveryFiniteValue) {
  constexpr int kHeadDim = 256;
  std::vector<std::uint16_t> finite;
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    if ((bits & 0x7fffU) < 0x7f80U) finite.push_back(static_cast<std::uint16_t>(bits));
  }
  const std::size_t page = 2 * 64 * kHeadDim;
  for (const char* name : kFloatFormats) {
    for (const int octaves : {0, 3, 9, 20}) {
      for (std::size_t first = 0; first < finite.size(); first += page) {
        Rows rows(page);
        for (std::size_t i = 0; i < page; ++i) {
          rows[i] = finite[(first + i) % finite.size()];
          const unsigned raised = (rows[i] & 0x7fffU) + 128U * unsigned(octaves);
          if (octaves > 0 && i % 32 == 0 && raised < 0x7f80U) {
            rows[i] = static_cast<std::uint16_t>(raised);
          }
        }
        const auto judge = format_of(name, shape_of(1, kHeadDim), tiers().back());
        with_planes(*judge, rows, [&](const SealedPlane& sealed) {
          expect_float_codes(sealed, magnitudes(sealed.plane.code));
        });
        ASSERT_FALSE(HasFatalFailure()) << name << ", octaves " << octaves;
        // What was not checked has the same bytes.
        for (const Isa isa : tiers()) {
          if (isa == Isa::kScalar || isa == tiers().back()) continue;
          ASSERT_EQ(seal(*format_of(name, shape_of(1, kHeadDim), isa), rows), seal(*judge, rows));
        }
      }
    }
  }
}

// A page whose K begins with `values`; the rest is zero.
Rows page_of(std::initializer_list<std::uint16_t> values, int head_dim) {
  Rows rows(2 * std::size_t{64} * head_dim);
  std::copy(values.begin(), values.end(), rows.begin());
  return rows;
}

std::vector<unsigned> first_codes(const char* name, const Rows& rows, int count, Isa isa) {
  const auto format = format_of(name, shape_of(1, 32), isa);
  std::vector<unsigned> codes;
  with_planes(*format, rows, [&](const SealedPlane& sealed) {
    for (int i = 0; i < count && sealed.rows == rows.data(); ++i)
      codes.push_back(sealed.code(0, i));
  });
  return codes;
}

// By hand, from the specification's section 7.
TEST(LinearCodes, WorkedExampleOfMx) {
  const Rows rows = page_of({0x40a0, 0xc020, 0x3e80, 0x40e0}, 32);  // 5, -2.5, 0.25, 7
  for (const Isa isa : tiers()) {
    EXPECT_EQ(first_codes("mxfp4", rows, 5, isa), (std::vector<unsigned>{6, 12, 0, 7, 0}));
    // E4M3 with scale 2^-6: 320, -160, 16, 448.
    EXPECT_EQ(first_codes("mxfp8_e4m3", rows, 4, isa),
              (std::vector<unsigned>{0x7a, 0xf2, 0x58, 0x7e}));
  }
}

// --- integers -----------------------------------------------------------------------------------

struct Range {
  double m, s, inverse;
};

// m and s of a group by what they must be: the nearest fp16 numbers outside of the range.
Range expect_range(const SealedPlane& sealed, int entry, const std::vector<double>& group) {
  const auto [least, greatest] = std::minmax_element(group.begin(), group.end());
  const bool has_min = sealed.plane.entry == linear::Entry::kMinScale;
  const int bits = linear::code_bits(sealed.plane.code);
  Range range{0, 0, 0};
  if (has_min) {
    range.m = number(fp16{sealed.half(entry, 0)});
    EXPECT_LE(range.m, *least);
    EXPECT_EQ(sealed.half(entry, 0), fp16_not_above(static_cast<float>(*least)).bits);
  }
  const double steps = has_min ? (1 << bits) - 1 : (1 << (bits - 1)) - 1;
  const double span =
      has_min ? *greatest - range.m : std::max(std::abs(*least), std::abs(*greatest));
  const std::uint16_t scale = sealed.half(entry, has_min ? 1 : 0);
  range.s = number(fp16{scale});
  // Three roundings to fp32 may lie between the exact quotient and the number rounded up.
  EXPECT_GE(range.s * steps, span * (1 - 0x1p-22));
  if (scale > 0) {
    const double below = number(fp16{static_cast<std::uint16_t>(scale - 1)});
    EXPECT_LT(below * steps, span * (1 + 0x1p-22));
  }
  range.inverse = range.s == 0 ? 0 : 1 / range.s;
  return range;
}

void expect_integer_codes(const SealedPlane& sealed) {
  std::map<int, Range> ranges;
  for (const auto& [entry, group] : sealed.groups()) {
    ranges[entry] = expect_range(sealed, entry, group);
    ASSERT_FALSE(testing::Test::HasFailure());
  }
  const int bits = linear::code_bits(sealed.plane.code);
  const int offset = linear::code_offset(sealed.plane.code);
  for (int token = 0; token < 64; ++token) {
    for (int channel = 0; channel < sealed.head_dim; ++channel) {
      const double x = sealed.x(token, channel);
      const Range& range = ranges[sealed.entry(token, channel)];
      const double exact = (x - range.m) * range.inverse;
      const int code = static_cast<int>(sealed.code(token, channel)) - offset;
      // x - m and 1 / s were rounded to fp32 each: t is off by 2^-23 of itself, 255 at most.
      ASSERT_LE(std::abs(code - exact), 0.5 + 256 * 0x1p-23);
      ASSERT_GE(code, offset > 0 ? 1 - offset : 0);
      ASSERT_LT(code, (1 << bits) - offset);
      const double value = range.m + range.s * code;
      const double read_back = sealed.read_back(token, channel);
      // fp32, then BF16: half a step of 2^-7 and of 2^-23; subnormals do not occur.
      ASSERT_LE(std::abs(read_back - value), std::abs(value) * (0x1p-8 + 0x1p-24));
      ASSERT_LE(std::abs(read_back - x),
                range.s * (0.5 + 256 * 0x1p-23) + std::abs(value) * (0x1p-8 + 0x1p-24));
    }
  }
}

constexpr const char* kIntegerFormats[] = {
    "int8:sym=1", "int8:sym=0",    "int4:sym=1",  "int4:sym=0",
    "kivi",       "kivi:group=64", "kivi:bits=4", "kivi:bits=4,group=64"};

TEST(LinearCodes, IntegersOfAllKindsOfRows) {
  for (const char* name : kIntegerFormats) {
    for (const int head_dim : {80, 128, 33}) {
      for (const Kind kind : kKinds) {
        RowMaker maker(9);
        const Rows rows = maker.page(kind, head_dim);
        for (const Isa isa : tiers()) {
          with_planes(*format_of(name, shape_of(1, head_dim), isa), rows, expect_integer_codes);
          ASSERT_FALSE(HasFatalFailure() || HasFailure())
              << name << ", head_dim " << head_dim << ", kind " << static_cast<int>(kind);
        }
      }
    }
  }
}

// In a constant group s is 0 where fp16 can say the value, and nothing is lost.
TEST(LinearCodes, ConstantGroupsComeBackAsTheyAre) {
  RowMaker maker(10);
  const Rows constant = maker.page(Kind::kConstant, 96);
  for (const char* name : {"int8:sym=0", "int4:sym=0"}) {
    const auto format = format_of(name, shape_of(1, 96), tiers().back());
    const Rows opened = open(*format, seal(*format, constant));
    for (std::size_t i = 0; i < opened.size(); ++i) {
      ASSERT_EQ(opened[i], constant[i] == 0x8000 ? 0 : constant[i]) << name;
    }
  }
  const auto kivi = format_of("kivi", shape_of(1, 96), tiers().back());
  const Rows columns = maker.page(Kind::kColumns, 96);
  const Rows opened = open(*kivi, seal(*kivi, columns));
  for (std::size_t i = 0; i < opened.size() / 2; ++i) {
    ASSERT_EQ(opened[i], columns[i] == 0x8000 ? 0 : columns[i]);
  }
}

TEST(LinearCodes, WorkedExampleOfMinAndScale) {
  // -1.5, 0.30078125, 1, 2, and values between them up to the end of the group.
  Rows rows = page_of({}, 32);
  for (int channel = 0; channel < 32; ++channel) {
    constexpr std::uint16_t kValues[] = {0xbfc0, 0x3e9a, 0x3f80, 0x4000};
    rows[64 * 32 + channel] = kValues[channel % 4];
  }
  for (const Isa isa : tiers()) {
    with_planes(*format_of("kivi", shape_of(1, 32), isa), rows, [&](const SealedPlane& sealed) {
      if (sealed.rows == rows.data()) return;
      EXPECT_EQ(sealed.half(0, 0), 0xbe00);
      EXPECT_EQ(sealed.half(0, 1), 0x3cab);
      EXPECT_EQ((std::vector<unsigned>{sealed.code(0, 0), sealed.code(0, 1), sealed.code(0, 2),
                                       sealed.code(0, 3)}),
                (std::vector<unsigned>{0, 2, 2, 3}));
      EXPECT_EQ(Rows(sealed.opened, sealed.opened + 4), (Rows{0xbfc0, 0x3f56, 0x3f56, 0x4000}));
    });
  }
}

double relative_error(const char* name, const Rows& rows) {
  const auto format =
      format_of(name, shape_of(1, static_cast<int>(rows.size()) / 128), tiers().back());
  const Rows opened = open(*format, seal(*format, rows));
  double squares = 0;
  double lost = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    squares += number(rows[i]) * number(rows[i]);
    lost += std::pow(number(rows[i]) - number(opened[i]), 2);
  }
  return lost / squares;
}

// What rounding to the nearest of 4 values between least and greatest loses of unit Gaussian
// values: 0.154 of their squares in groups of 32, 0.204 in groups of 64.
TEST(LinearCodes, TwoBitsLoseWhatTheyMust) {
  std::mt19937 engine(11);
  std::normal_distribution<float> gauss;
  Rows rows(2 * 64 * 256);
  for (std::uint16_t& bits : rows) bits = to_bf16(gauss(engine)).bits;
  EXPECT_NEAR(relative_error("kivi:group=32", rows), 0.154, 0.003);
  EXPECT_NEAR(relative_error("kivi:group=64", rows), 0.204, 0.004);
}

TEST(LinearCodes, MoreBitsLoseLess) {
  RowMaker maker(11);
  const Rows rows = maker.page(Kind::kModel, 128);
  const char* const descending[] = {"int8:sym=0", "fp8_e4m3", "mxfp6_e2m3",   "mxfp6_e3m2",
                                    "mxfp4",      "kivi",     "kivi:group=64"};
  for (std::size_t i = 1; i < std::size(descending); ++i) {
    EXPECT_LT(relative_error(descending[i - 1], rows), relative_error(descending[i], rows))
        << descending[i];
  }
}

}  // namespace
}  // namespace kvlane::linear_fixture
