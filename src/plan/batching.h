// How the tokens of one step are chosen: running answers first, then parts of prompts, so many that
// running answers are not slowed down by more than was promised. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

namespace kvlane {

// Even where prompts slow answers down too much, a step carries this many prompt tokens: prompts
// must get on.
inline constexpr int kPromptTokensMin = 16;

// Of so many steps in a row with prompt tokens and answers, one has no prompt tokens: it keeps
// StepPace::answer_seconds fresh.
inline constexpr int kMixedStepsMax = 32;

// How long steps take on this machine with this model, as learnt from the last ones.
struct StepPace {
  double answer_seconds = 0;        // of a step with answers only; 0: not known yet
  double prompt_token_seconds = 0;  // that each prompt token adds; 0: not known yet
  int mixed_steps = 0;              // in a row
};

// One step that was computed.
struct StepSample {
  int answers = 0;        // sequences that got one token
  int prompt_tokens = 0;  // of the others
  double seconds = 0;
};

StepPace learn(StepPace pace, const StepSample& sample);

// The most prompt tokens the next step may carry beside `answers` answering sequences, so that it
// takes at most `slowdown_max` times (1 or more) what it takes without, but at least
// kPromptTokensMin; with no answers, or without any pace to keep, `tokens_max`.
int prompt_budget(const StepPace& pace, int answers, double slowdown_max, int tokens_max);

// Shares a step among sequences in order of rank: missing[i] tokens, at least 1, are not computed
// yet, tokens[i] of them are computed now. Who misses one token gets it. The others share `budget`:
// the first half of it for the first of them, the rest in equal parts, and what somebody does not
// need for those behind. So no prompt waits until another's is complete, and the first in rank is
// not held up by those behind it. With more sequences than tokens, `turn` (a step counter) sees to
// it that each gets some in time.
void share_step(std::span<const int> missing, int budget, unsigned turn, std::span<int> tokens);

}  // namespace kvlane
