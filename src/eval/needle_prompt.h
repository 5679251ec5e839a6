// Prompts that hide a short fact in a long text and ask for it at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvlane/status.h"
#include "model/tokenizer.h"

namespace kvlane {

enum class NeedleForm {
  kPasskey,  // "The pass key is 12345. Remember it. 12345 is the pass key."
  kCities,   // "The special magic number for Rome is 1234.", for one or several cities
};

struct NeedlePlace {
  NeedleForm form = NeedleForm::kPasskey;
  int length = 0;    // tokens of prompt and answer together: at most these, and hardly fewer
  double depth = 0;  // where the needle that is asked for lies in the filler, 0 ... 1
  int needles = 1;   // kCities: how many there are; the others lie anywhere
  std::uint32_t trial = 0;
};

// Most needles of a prompt: each has a city of its own.
inline constexpr int kNeedlesMax = 32;

struct NeedlePrompt {
  std::vector<std::int32_t> tokens;  // up to the question's end
  std::vector<std::int32_t> answer;  // of a blank and `value`
  std::string value;
  int needle_at = 0;  // the first token of the needle that is asked for
};

// Immutable. Prompts are put together from tokens, each sentence encoded by itself, so that their
// lengths are what was asked for.
class NeedlePrompts {
 public:
  // The tokenizer outlives it. `filler`: tokens of a text, of which each prompt takes a stretch
  // that begins with a sentence; empty: a few sentences over and over ("The grass is green. ...").
  static Result<NeedlePrompts> create(const Tokenizer& tokenizer, std::vector<std::int32_t> filler);

  // The same place and seed give the same prompt. kInvalidArgument when not even the needles fit
  // into the length.
  Result<NeedlePrompt> make(const NeedlePlace& place, std::uint64_t seed) const;

 private:
  // Where filler may be cut, before a token: kSentence is a kWord too.
  enum class Cut : std::uint8_t { kNone, kWord, kSentence };

  explicit NeedlePrompts(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::int32_t filler(std::size_t index) const { return filler_[index % filler_.size()]; }
  Cut cut(std::size_t index) const { return cuts_[index % cuts_.size()]; }
  void find_cuts();
  std::size_t filler_start(std::uint32_t random) const;
  int filler_length(std::size_t start, int most) const;
  // Between sentences, or between words where no sentence ends within a twentieth of the filler.
  int nearest_cut(std::size_t start, int length, double depth) const;

  const Tokenizer* tokenizer_;
  std::vector<std::int32_t> filler_;
  std::vector<Cut> cuts_;  // one a token of filler_
  bool given_ = false;     // the filler is a text of the caller
};

}  // namespace kvlane
