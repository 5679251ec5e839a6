// Merging what a slow client has not read yet.
// SPDX-License-Identifier: Apache-2.0
#include "server/request_updates.h"

#include <utility>

namespace kvlane {

void append_update(Update& answer, const Update& next) {
  answer.tokens.insert(answer.tokens.end(), next.tokens.begin(), next.tokens.end());
  answer.logprobs.insert(answer.logprobs.end(), next.logprobs.begin(), next.logprobs.end());
  answer.text += next.text;
  if (next.ended) answer.ended = next.ended;
}

MergeResult merge_updates(Update& older, Update& newer) {
  if (newer.finish) return MergeResult::kSeparate;
  if (older.choice != newer.choice) return MergeResult::kUnrelated;
  if (older.tokens.size() + newer.tokens.size() > kMergedTokensMax) return MergeResult::kSeparate;
  append_update(older, newer);
  return MergeResult::kMerged;
}

}  // namespace kvlane
