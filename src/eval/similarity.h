// How far free answers drift from those of the cache in 16 bits: the task "similarity".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "eval/eval_run.h"
#include "model/tokenizer.h"

namespace kvlane {

struct SimilarityTask {
  std::span<const std::int32_t> tokens;  // a text that prompts are cut out of, evenly spread
  const Tokenizer* tokenizer;
  int prompts = 20;
  int prompt_tokens = 256;
  int new_tokens = 128;  // greedy; fewer where the model ends its answer
};

// Measures, beside the answer in 16 bits: rouge1 (F, 0 ... 1), edit_similarity (0 ... 1), identical
// (share of answers that are the same token for token, Wilson interval), same_tokens (until the
// first difference, all of an identical answer).
Status run_similarity_task(const SimilarityTask& task, EvalRun& run);

}  // namespace kvlane
