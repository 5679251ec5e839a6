// What greedy choice on a GPU cannot do, in words.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/greedy_gpu.h"

namespace kvlane {

Status check_greedy(const GreedyRows& rows) {
  if (rows.rows < 0) return invalid_argument("rows cannot be " + std::to_string(rows.rows));
  if (rows.vocab < 1 || rows.vocab > kGreedyVocabMax) {
    return invalid_argument("a vocabulary must have 1 to " + std::to_string(kGreedyVocabMax) +
                            " tokens on a GPU, not " + std::to_string(rows.vocab));
  }
  if (rows.logits == nullptr || rows.parts == nullptr || rows.tokens == nullptr) {
    return invalid_argument("logits, room for parts, or room for tokens is missing");
  }
  if (reinterpret_cast<std::uintptr_t>(rows.logits) % 16 == 0) return {};
  return invalid_argument("logits must begin at a multiple of 16 bytes on a GPU");
}

}  // namespace kvlane
