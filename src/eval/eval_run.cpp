// Formats and their runners.
// SPDX-License-Identifier: Apache-2.0
#include "eval/eval_run.h"

#include <algorithm>
#include <utility>

namespace kvlane {
namespace {

// Where the format that begins at the start of `list` ends.
std::size_t format_end(std::string_view list) {
  for (std::size_t comma = list.find(','); comma != std::string_view::npos;
       comma = list.find(',', comma + 1)) {
    const std::string_view next = list.substr(comma + 1);
    const std::size_t mark = next.find_first_of(":,=");
    if (mark == std::string_view::npos || next[mark] != '=') return comma;
  }
  return list.size();
}

}  // namespace

Result<std::vector<FormatRunner>> make_runners(const EvalRun& run, int tokens_max) {
  std::vector<FormatRunner> runners;
  for (const auto& format : run.formats) {
    KVLANE_ASSIGN(FormatRunner runner, FormatRunner::create(*run.model, format, tokens_max));
    runners.push_back(std::move(runner));
  }
  return runners;
}

std::vector<std::string> split_formats(std::string_view list) {
  std::vector<std::string> formats;
  while (true) {
    const std::size_t end = format_end(list);
    formats.emplace_back(list.substr(0, end));
    if (end == list.size()) return formats;
    list.remove_prefix(end + 1);
  }
}

Result<std::vector<EvalFormat>> make_formats(std::string_view list,
                                             const KvFormatContext& context) {
  std::vector<EvalFormat> formats(1);
  bool rows_listed = false;
  for (const std::string& text : split_formats(list)) {
    KVLANE_ASSIGN(EvalFormat format, make_eval_format(text, context));
    const auto same = [&](const auto& other) { return other.name() == format.name(); };
    const bool twice = format.is_reference() ? std::exchange(rows_listed, true)
                                             : std::ranges::any_of(formats, same);
    if (twice) return invalid_argument("KV format '" + format.name() + "' is listed twice");
    if (!format.is_reference()) formats.push_back(std::move(format));
  }
  return formats;
}

}  // namespace kvlane
