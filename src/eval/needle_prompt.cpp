// Filler from a start to a cut, needles put in between sentences, a question behind.
// SPDX-License-Identifier: Apache-2.0
#include "eval/needle_prompt.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/random.h"
#include "eval/answer_tokens.h"

namespace kvlane {
namespace {

// The wording of the passkey task as it is commonly used; each line begins with its line break.
constexpr std::string_view kIntroduction =
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
    "I will quiz you about the important information there.";
constexpr std::string_view kSentences =
    "\nThe grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

constexpr std::array<std::string_view, 40> kCityNames = {
    "London", "Paris",  "Rome",    "Berlin",  "Madrid",  "Vienna",    "Moscow",  "Athens",
    "Cairo",  "Boston", "Chicago", "Dublin",  "Lisbon",  "Oslo",      "Prague",  "Tokyo",
    "Delhi",  "Sydney", "Geneva",  "Venice",  "Naples",  "Milan",     "Munich",  "Hamburg",
    "Warsaw", "Lima",   "Havana",  "Quebec",  "Toronto", "Denver",    "Dallas",  "Seattle",
    "Oxford", "York",   "Bristol", "Glasgow", "Zurich",  "Stockholm", "Nairobi", "Manila"};
static_assert(kNeedlesMax <= static_cast<int>(kCityNames.size()));

// Filler ends with a sentence where that costs at most so many tokens of the length.
constexpr int kTokensToSentence = 8;

struct Needle {
  std::string statement;
  std::string question;
  std::string value;
};

// Random words of one prompt, drawn one after another.
class Draws {
 public:
  Draws(std::uint64_t seed, const NeedlePlace& place)
      : seed_(seed),
        counter_{place.trial, static_cast<std::uint32_t>(place.length),
                 static_cast<std::uint32_t>(place.depth * 1e6) * 2 +
                     static_cast<std::uint32_t>(place.form),
                 0} {}

  double unit() {
    const auto words = philox4x32(seed_, counter_);
    ++counter_[3];
    return uniform_unit(words[0], words[1]);
  }
  int below(int limit) { return static_cast<int>(unit() * limit); }

 private:
  std::uint64_t seed_;
  PhiloxCounter counter_;
};

Needle passkey(Draws& draws) {
  const std::string value = std::to_string(10000 + draws.below(90000));
  return {"\nThe pass key is " + value + ". Remember it. " + value + " is the pass key.",
          "\nWhat is the pass key? The pass key is", value};
}

// Needles of different cities and different numbers; the first is the one that is asked for.
std::vector<Needle> cities(int count, Draws& draws) {
  auto names = kCityNames;
  std::vector<Needle> needles;
  for (int i = 0; i < count; ++i) {
    std::swap(names[i], names[i + draws.below(static_cast<int>(names.size()) - i)]);
    std::string value;
    do {
      value = std::to_string(1000 + draws.below(9000));
    } while (std::ranges::find(needles, value, &Needle::value) != needles.end());
    const std::string about = "special magic number for " + std::string(names[i]);
    needles.push_back({"\nThe " + about + " is " + value + ".",
                       "\nWhat is the " + about + "? The " + about + " is", value});
  }
  return needles;
}

bool ends_sentence(std::string_view bytes) {
  const std::size_t last = bytes.find_last_not_of("\"')");
  return last != std::string_view::npos &&
         std::string_view(".!?\n").find(bytes[last]) != std::string_view::npos;
}

}  // namespace

Result<NeedlePrompts> NeedlePrompts::create(const Tokenizer& tokenizer,
                                            std::vector<std::int32_t> filler) {
  NeedlePrompts prompts(tokenizer);
  prompts.given_ = !filler.empty();
  prompts.filler_ = std::move(filler);
  if (!prompts.given_) {
    KVLANE_ASSIGN(prompts.filler_, tokenizer.encode(kSentences, false));
  }
  prompts.find_cuts();
  return prompts;
}

void NeedlePrompts::find_cuts() {
  cuts_.assign(filler_.size(), Cut::kNone);
  for (std::size_t i = 0; i < filler_.size(); ++i) {
    const std::string_view here = tokenizer_->token_bytes(filler_[i]);
    if (here.empty() || (here[0] != ' ' && here[0] != '\n')) continue;
    const bool sentence = i == 0 || ends_sentence(tokenizer_->token_bytes(filler_[i - 1]));
    cuts_[i] = sentence ? Cut::kSentence : Cut::kWord;
  }
}

std::size_t NeedlePrompts::filler_start(std::uint32_t random) const {
  if (!given_) return 0;
  const std::size_t first = random % filler_.size();
  for (std::size_t start = first; start < first + filler_.size(); ++start) {
    if (cut(start) == Cut::kSentence) return start % filler_.size();
  }
  return first;  // no sentence begins anywhere
}

int NeedlePrompts::filler_length(std::size_t start, int most) const {
  for (const Cut wanted : {Cut::kSentence, Cut::kWord}) {
    for (int length = most; length > 0 && length >= most - kTokensToSentence; --length) {
      if (cut(start + length) >= wanted) return length;
    }
  }
  return most;
}

int NeedlePrompts::nearest_cut(std::size_t start, int length, double depth) const {
  const int wanted = static_cast<int>(depth * length + 0.5);
  for (const auto& [least, reach] :
       {std::pair(Cut::kSentence, std::max(16, length / 20)), std::pair(Cut::kWord, length)}) {
    for (int away = 0; away <= reach; ++away) {
      for (const int at : {wanted - away, wanted + away}) {
        if (at < 0 || at > length) continue;
        if (at == 0 || at == length || cut(start + at) >= least) return at;
      }
    }
  }
  return 0;
}

Result<NeedlePrompt> NeedlePrompts::make(const NeedlePlace& place, std::uint64_t seed) const {
  Draws draws(seed, place);
  const std::vector<Needle> needles = place.form == NeedleForm::kPasskey
                                          ? std::vector<Needle>{passkey(draws)}
                                          : cities(place.needles, draws);
  NeedlePrompt prompt{.value = needles[0].value};
  KVLANE_ASSIGN(prompt.tokens, tokenizer_->encode(kIntroduction));
  KVLANE_ASSIGN(const auto question, tokenizer_->encode(needles[0].question, false));
  KVLANE_ASSIGN(prompt.answer, answer_tokens(*tokenizer_, needles[0].question, prompt.value));
  std::size_t fixed = prompt.tokens.size() + question.size() + prompt.answer.size();
  std::vector<std::vector<std::int32_t>> statements;
  for (const Needle& needle : needles) {
    KVLANE_ASSIGN(std::vector<std::int32_t> tokens, tokenizer_->encode(needle.statement, false));
    fixed += tokens.size();
    statements.push_back(std::move(tokens));
  }
  if (fixed > static_cast<std::size_t>(place.length)) {
    return invalid_argument("a prompt with " + std::to_string(needles.size()) + " needle(s) has " +
                            std::to_string(fixed) + " tokens without any filler, more than " +
                            std::to_string(place.length));
  }
  const std::size_t start = filler_start(static_cast<std::uint32_t>(draws.unit() * 0x1p32));
  const int length = filler_length(start, place.length - static_cast<int>(fixed));
  std::vector<std::pair<int, int>> places;  // in the filler, and which needle
  for (int i = 0; i < static_cast<int>(needles.size()); ++i) {
    places.emplace_back(nearest_cut(start, length, i == 0 ? place.depth : draws.unit()), i);
  }
  // Of needles at one place the order is no matter of which is asked for.
  std::ranges::sort(places, {}, [&](const auto& at) {
    return std::pair(at.first, std::string_view(needles[at.second].value));
  });
  auto next = places.begin();
  for (int i = 0; i <= length; ++i) {
    for (; next != places.end() && next->first == i; ++next) {
      if (next->second == 0) prompt.needle_at = static_cast<int>(prompt.tokens.size());
      const auto& statement = statements[next->second];
      prompt.tokens.insert(prompt.tokens.end(), statement.begin(), statement.end());
    }
    if (i < length) prompt.tokens.push_back(filler(start + i));
  }
  prompt.tokens.insert(prompt.tokens.end(), question.begin(), question.end());
  return prompt;
}

}  // namespace kvlane
