// The notation of formats: NAME:KEY=VALUE,KEY=VALUE, and +CODES where what a format keeps is coded
// in another one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "kvlane/status.h"
#include "quant/kv_format.h"

namespace kvlane {

// Shares, and other numbers with decimals, are told in so many parts of the whole.
inline constexpr int kShareParts = 10000;
// "0.5" of 5000.
std::string share_text(int share);

// What FormatText::one_of() allows for a parameter that is off or on.
inline constexpr std::array kSwitch = {0, 1};

// A format's parameters while it is made. Each getter takes its parameter out; what is left in the
// end nobody knew. Errors are sentences for whoever typed the text.
class FormatText {
 public:
  // Fails for a part without "=", an empty key or value, a key given twice, or nothing behind "+".
  // Errors call it a `noun`: what else is written in this notation has a word of its own.
  static Result<FormatText> parse(std::string_view text, std::string_view noun = "KV format");

  const std::string& name() const { return name_; }
  bool has(const std::string& key) const { return parameters_.contains(key); }

  // The parameter, or `otherwise` where it is not given. An error unless it is a whole number among
  // `allowed`.
  Result<int> one_of(const std::string& key, std::span<const int> allowed, int otherwise);
  // The same for a whole number in [least, most].
  Result<int> within(const std::string& key, int least, int most, int otherwise);
  // The same for one of some words.
  Result<std::string> word(const std::string& key, std::span<const std::string_view> allowed,
                           std::string_view otherwise);
  // A share in (0, 1] with at most four decimals, in parts of kShareParts.
  Result<int> share(const std::string& key, int otherwise);
  // A number from `least` to `most` with at most four decimals, all of them in such parts.
  Result<int> decimal(const std::string& key, int least, int most, int otherwise);
  // "sink" and "recent", in blocks of 64 tokens: at most 1024 each.
  Result<KvWindow> window();

  // What stands behind "+", taken out: the text of a format, or nothing.
  std::string take_codes() { return std::exchange(codes_, {}); }

  // An error when a parameter, or codes, are left that nobody asked for.
  Status finish() const;

 private:
  Status wrong(const std::string& key, const std::string& value, const std::string& right) const;

  std::string noun_;
  std::string name_;
  std::map<std::string, std::string> parameters_;
  std::string codes_;
};

// ",sink=1,recent=2" or "": the part of a name that says the window.
std::string window_text(const KvWindow& window);

}  // namespace kvlane
