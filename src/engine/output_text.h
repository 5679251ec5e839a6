// The text of an answer as it grows: detokenised, with stop strings cut off.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/tokenizer.h"

namespace kvlane {

// An answer goes on after its prompt: a space before its first word is part of it.
// Thread-compatible.
class OutputText {
 public:
  OutputText(const Tokenizer& tokenizer, std::vector<std::string> stop)
      : stream_(tokenizer, TokenStream::Begin::kContinuation), stop_(std::move(stop)) {}

  // Takes one more token and returns the text that is certain now. What may be the beginning of a
  // stop string is held back; after a stop string nothing more comes. With `may_stop` false a stop
  // string that is whole by now does not count, now or later; one that has only begun may.
  std::string push(std::int32_t token, bool may_stop = true);
  // The rest, at the end of an answer that no stop string ended.
  std::string finish();

  bool stopped() const { return stopped_; }

 private:
  std::string release_certain();

  TokenStream stream_;
  const std::vector<std::string> stop_;
  std::string held_;
  std::size_t settled_ = 0;  // of `held_`: no stop string that ends here counts
  bool stopped_ = false;
};

}  // namespace kvlane
