// Recorded traffic: Mooncake's JSON lines, and tables with a header (Azure's and vidur's CSV).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "kvlane/status.h"

namespace kvlane {

// A trace of an hour of a large service has some 10^5 requests and some 10 MB.
inline constexpr std::size_t kTraceBytesMax = std::size_t{1} << 29;
inline constexpr std::size_t kTraceRequestsMax = std::size_t{1} << 22;
// Of one prompt or one answer: more than any model's context.
inline constexpr int kTraceTokensMax = 1 << 24;
// Tokens that one hash id of a Mooncake trace stands for.
inline constexpr int kTraceBlockTokens = 512;

struct TraceRequest {
  double time = 0;  // seconds after the trace's first request
  int input_tokens = 1;
  int output_tokens = 1;
  // Names of the prompt's blocks of kTraceBlockTokens; requests share a prefix where these are
  // equal. Empty when the trace does not tell.
  std::vector<std::uint64_t> blocks;
};

struct Trace {
  std::vector<TraceRequest> requests;  // ascending in time
  bool has_times = false;
};

// Lines of {"timestamp": ms, "input_length", "output_length", "hash_ids": [...]}; other members are
// ignored, hash_ids may be absent. kInvalidArgument names the line and what is wrong with it.
Result<Trace> parse_mooncake_trace(std::string_view text);

// A header and lines of fields without quotes. Known columns: TIMESTAMP (YYYY-MM-DD hh:mm:ss.f),
// ContextTokens and GeneratedTokens of Azure's traces; arrived_at (seconds), num_prefill_tokens and
// num_decode_tokens of vidur's; others are ignored. Without a column for times, has_times is false.
Result<Trace> parse_csv_trace(std::string_view text);

// Reads the file; its first byte tells which of the two it is.
Result<Trace> read_trace(const std::filesystem::path& path);

}  // namespace kvlane
