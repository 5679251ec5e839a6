// Eviction by token: which tokens of its prompt each KV head keeps, and which one gives way to
// every later one. Pure functions; cache/sparse_cache.h holds what is kept.
//
//   h2o:keep=0.5,recent=0.5     H2O (Zhang et al., NeurIPS'23): a token's score is the sum of all
//                               probabilities with which queries read it
//   keyformer:keep=0.6,recent=0.3,tau=1,tau_delta=0.01,seed=0
//                               Keyformer (Adnan et al., MLSys'24): the same of
//                               softmax((scores + Gumbel noise) / tau), where every token behind
//                               the prompt raises tau by tau_delta
//
// When the prompt is over, floor(keep * its tokens) stay in each KV head and layer: the newest,
// floor(recent * as many), and of the others those with the highest scores. Every later token is
// read and scored, then one goes in the same way and does not come back. Query heads that share a
// KV head add up their scores, since a token can only go for all of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

struct EvictionRule {
  enum class Score : std::uint8_t { kH2o, kKeyformer };

  Score score = Score::kH2o;
  int keep = 5000;    // of a prompt, in parts of kShareParts (quant/format_text.h)
  int recent = 5000;  // of what is kept, likewise
  // Of Keyformer; tau and tau_delta likewise.
  int tau = 10000;
  int tau_delta = 100;
  std::uint32_t seed = 0;

  // As users write it, every parameter named.
  std::string name() const;
  // Of scores: in the prompt (step 0), and for the step-th token behind it.
  float temperature(int step) const;

  friend bool operator==(const EvictionRule&, const EvictionRule&) = default;
};

// The rule that `text` says. Errors name the parameter that is wrong and what would be right.
Result<EvictionRule> make_eviction_rule(std::string_view text);

// Whether `text` begins with the name of a rule.
bool names_eviction_rule(std::string_view text);

// How many tokens a KV head keeps.
struct EvictionBudget {
  int key;     // with the highest scores
  int recent;  // the newest

  int tokens() const { return key + recent; }
};

// Of a prompt of so many tokens, of which at least one is kept.
EvictionBudget eviction_budget(const EvictionRule& rule, int prompt_tokens);
// Blocks that have room for these tokens and the next one.
int eviction_blocks(const EvictionRule& rule, int prompt_tokens);

// Which tokens of a prompt stay, in order of position; scores[i] is that of the token at position
// i. Of equal scores the earlier one is the higher. A score that is no number is the lowest.
std::vector<int> kept_tokens(std::span<const float> scores, EvictionBudget budget);

// Which of the tokens that a head holds goes, the newest of them being at position `newest`: the
// lowest score of all but the recent ones, of equal ones the latest; -1 while there are no more
// than the budget allows. Any order; there is one token more than the budget at most.
int discarded_token(std::span<const float> scores, std::span<const std::int32_t> positions,
                    EvictionBudget budget, int newest);

}  // namespace kvlane
