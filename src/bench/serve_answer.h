// One streamed answer as a load generator reads it: when tokens came, how it ended, what it cost.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlane/status.h"
#include "plan/account.h"

namespace kvlane {

// The longest line of a stream that is read; a whole answer with its ids can come as one event.
inline constexpr std::size_t kAnswerLineBytesMax = 8 << 20;

struct Answer {
  // Of each event that carried tokens: when it was read (seconds, of the caller's clock), and how
  // many tokens (1 where the server does not tell ids).
  std::vector<double> times;
  std::vector<int> counts;
  std::string text;
  std::vector<std::int32_t> ids;  // as far as the server tells them
  // From the usage; -1 where the server does not tell.
  int prompt_tokens = -1;
  int completion_tokens = -1;
  int cached_tokens = -1;
  std::optional<TimeAccount> account;  // kvlane's extension

  // As the usage says, else what was counted.
  int output_tokens() const;
};

// Reads server-sent events of either completion API, piece by piece.
class AnswerReader {
 public:
  // Text and ids cost memory: they are kept when asked for.
  AnswerReader(bool keep_text, bool keep_ids) : keep_text_(keep_text), keep_ids_(keep_ids) {}

  // `now` is when the piece was read. After an error nothing more may be added. kUnavailable: the
  // server told an error in the stream; kCorrupt: what came is not such a stream.
  Status add(std::string_view piece, double now);

  // To be called at the end of the stream. kUnavailable when it ended before the answer did,
  // kCorrupt when the answer has no token.
  Status finish() const;

  const Answer& answer() const { return answer_; }
  Answer take() { return std::move(answer_); }

 private:
  Status read_line(std::string_view line, double now);
  Status read_event(std::string_view json_text, double now);

  bool keep_text_;
  bool keep_ids_;
  bool ended_ = false;
  std::string pending_;  // an unfinished line
  Answer answer_;
};

}  // namespace kvlane
