// The notation of formats: what is read, what is refused and with which words.
// SPDX-License-Identifier: Apache-2.0
#include "quant/format_text.h"

#include <gtest/gtest.h>

#include <array>

namespace kvlane {
namespace {

FormatText parsed(std::string_view text) {
  auto result = FormatText::parse(text);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return *result;
}

constexpr std::array kBits = {2, 4};
constexpr std::array<std::string_view, 2> kRounding = {"rn", "sr"};

TEST(FormatText, GivesWhatIsSaidAndOtherwiseTheDefault) {
  FormatText text = parsed("kivi:bits=4,round=sr,recent=2");
  EXPECT_EQ(text.name(), "kivi");
  EXPECT_EQ(*text.one_of("bits", kBits, 2), 4);
  EXPECT_EQ(*text.one_of("bits", kBits, 2), 2) << "a parameter is taken out";
  EXPECT_EQ(*text.word("round", kRounding, "rn"), "sr");
  EXPECT_EQ(*text.within("group", 1, 64, 32), 32);
  EXPECT_EQ(*text.window(), (KvWindow{0, 2}));
  EXPECT_TRUE(text.finish().ok());
}

TEST(FormatText, ANameAloneHasNoParameters) {
  const FormatText text = parsed("fp8_e4m3");
  EXPECT_EQ(text.name(), "fp8_e4m3");
  EXPECT_TRUE(text.finish().ok());
}

TEST(FormatText, RefusesWhatIsNotAList) {
  for (const char* text : {"kivi:", "kivi:bits", "kivi:bits=", "kivi:=2", "kivi:bits=2,",
                           "kivi:,bits=2", "kivi:bits=2,bits=4"}) {
    EXPECT_FALSE(FormatText::parse(text).ok()) << text;
  }
}

TEST(FormatText, SaysWhatWouldBeRight) {
  const auto message = [](const char* text) {
    return parsed(text).one_of("bits", kBits, 2).status().message();
  };
  EXPECT_EQ(message("kivi:bits=3"), "KV format 'kivi': bits is 2 or 4, not '3'");
  EXPECT_EQ(message("kivi:bits=4x"), "KV format 'kivi': bits is 2 or 4, not '4x'");
  EXPECT_EQ(parsed("kivi:recent=-1").window().status().message(),
            "KV format 'kivi': recent is a whole number from 0 to 1024, not '-1'");
  EXPECT_EQ(parsed("kivi:round=up").word("round", kRounding, "rn").status().message(),
            "KV format 'kivi': round is rn or sr, not 'up'");
  EXPECT_EQ(parsed("kivi:bit=2").finish().message(), "KV format 'kivi' has no parameter 'bit'");
}

TEST(FormatText, SharesHaveFourDecimals) {
  const auto share = [](const char* text) { return parsed(text).share("keep", 7); };
  EXPECT_EQ(*share("zack:keep=0.5"), 5000);
  EXPECT_EQ(*share("zack:keep=1"), kShareParts);
  EXPECT_EQ(*share("zack:keep=0.3125"), 3125);
  EXPECT_EQ(*share("zack:keep=0.0001"), 1);
  for (const char* text :
       {"zack:keep=0", "zack:keep=1.0001", "zack:keep=0.00001", "zack:keep=-1", "zack:keep=0.12345",
        "zack:keep=half", "zack:keep=0.5x", "zack:keep=nan", "zack:keep=inf"}) {
    EXPECT_FALSE(share(text).ok()) << text;
  }
  EXPECT_EQ(share("zack:keep=2").status().message(),
            "KV format 'zack': keep is a share above 0 and up to 1, with at most four decimals, "
            "not '2'");
  EXPECT_EQ(*share("zack"), 7);
  const auto bits = [](const char* text) {
    return parsed(text).decimal("bits", 1, 16 * kShareParts, 7);
  };
  EXPECT_EQ(*bits("zack:bits=2.4"), 24000);
  EXPECT_EQ(*bits("zack:bits=16"), 16 * kShareParts);
  EXPECT_EQ(*bits("zack"), 7);
  for (const char* text : {"zack:bits=0", "zack:bits=16.0001", "zack:bits=2.40001"}) {
    EXPECT_FALSE(bits(text).ok()) << text;
  }
  for (const int parts : {1, 10, 3125, 5000, 9999, kShareParts}) {
    const std::string text = "zack:keep=" + share_text(parts);
    EXPECT_EQ(*share(text.c_str()), parts) << text;
  }
  EXPECT_EQ(share_text(5000), "0.5");
  EXPECT_EQ(share_text(kShareParts), "1");
  EXPECT_EQ(share_text(24500), "2.45");
}

TEST(KvFormats, UnknownNamesAreRefusedWithTheKnownOnes) {
  const auto result = make_kv_format("nvfp3", {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().message().find("there is no KV format 'nvfp3'; known are bf16"), 0);
}

TEST(KvFormats, Bf16LeavesRowsAsTheyAre) {
  const auto result = make_kv_format("bf16", {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(*result, nullptr);
  EXPECT_FALSE(make_kv_format("bf16:bits=2", {}).ok());
}

TEST(KvWindow, OwnBlockIsAlwaysRows) {
  EXPECT_TRUE((KvWindow{0, 0}).reads_rows(3, 3));
  EXPECT_FALSE((KvWindow{0, 0}).reads_rows(2, 3));
  EXPECT_TRUE((KvWindow{1, 0}).reads_rows(0, 9));
  EXPECT_FALSE((KvWindow{1, 2}).reads_rows(1, 9));
  EXPECT_TRUE((KvWindow{1, 2}).reads_rows(7, 9));
}

}  // namespace
}  // namespace kvlane
