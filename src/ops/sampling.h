// Choosing the next token. A pure function of logits, parameters, seed and position: no state to
// move when a sequence moves to another worker.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvlane {

struct LogitBias {
  std::int32_t token = 0;
  float bias = 0;
};

// How the next token is drawn: greedy when temperature is 0. Applied in the order of the members,
// as vLLM does. All values are finite.
struct SamplingParams {
  std::vector<LogitBias> logit_bias;  // added to the logits; tokens inside the vocabulary
  float repetition_penalty = 1;       // above 0; divides positive logits of tokens seen before,
                                      // multiplies negative ones, prompt included
  float frequency_penalty = 0;        // subtracted for each time a token occurs in the answer
  float presence_penalty = 0;         // subtracted once if it does
  float temperature = 1;
  float min_p = 0;  // leaves out tokens with less than this part of the best one's probability
  int top_k = 0;    // the k most likely tokens; 0: all
  float top_p = 1;  // of these, the fewest whose probabilities reach top_p
};

// Where a random number comes from: the same key and position give the same token.
struct SamplingKey {
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;  // answers to one prompt draw apart
};

// What parameters do to the logits of the next token: the bias; penalties for the tokens seen, in
// `prompt` and `answer`; and -infinity for those that may not come now, `banned`. All tokens are
// inside the vocabulary; `answer` is what was generated so far.
void adjust_logits(std::span<float> logits, const SamplingParams& params,
                   std::span<const std::int32_t> prompt, std::span<const std::int32_t> answer,
                   std::span<const std::int32_t> banned);

// Whether these parameters take the most likely token of the logits as they are, if none is banned.
bool takes_best_logit(const SamplingParams& params);

// The token at `position` of its sequence. Equal logits rank by lower id; NaN ranks last. Looks at
// temperature and what follows it; what precedes it is adjust_logits(). A token 2^-92 as likely as
// the best one, or less, is never drawn: 53 random bits could not tell it from none. Where there
// is nothing to draw from (no finite logit, or an infinite one) it is the greedy token.
std::int32_t sample_token(std::span<const float> logits, const SamplingParams& params,
                          const SamplingKey& key, int position);

// Natural logarithms of probabilities.
struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};
struct TokenLogprobs {
  float logprob = 0;              // of the token itself
  std::vector<TokenLogprob> top;  // the most likely ones, best first

  friend bool operator==(const TokenLogprobs&, const TokenLogprobs&) = default;
};

// Of the softmax of `logits`, to which nothing was done: the probability of `token` and those of
// the `top` most likely ones, fewer where the vocabulary has fewer. Equal ones rank by lower id;
// NaN is as if it were not there. -infinity for a token that cannot come; where a logit is
// infinite, 0 for all that are.
TokenLogprobs token_logprobs(std::span<const float> logits, std::int32_t token, int top);

}  // namespace kvlane
