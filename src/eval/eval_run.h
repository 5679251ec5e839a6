// What every task of an evaluation works on and writes to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/eval_format.h"
#include "eval/eval_log.h"
#include "eval/eval_report.h"
#include "eval/format_runner.h"
#include "model/model.h"
#include "quant/kv_format.h"

namespace kvlane {

struct EvalRun {
  const Model* model;
  // The first is the cache in 16 bits that the others are compared with; none twice.
  std::vector<EvalFormat> formats;
  std::uint64_t seed = 0;  // of prompts and of bootstrap draws
  EvalLog log;
  EvalReport report;
  // Told what is being done, how much of it is done and how much there is; may be empty.
  std::function<void(const std::string& what, std::uint64_t done, std::uint64_t total)> progress;
};

// One runner for each format of the run, in their order.
Result<std::vector<FormatRunner>> make_runners(const EvalRun& run, int tokens_max);

// The parts of a list like "bf16,kivi:bits=2,group=32,int8". A comma before KEY=VALUE belongs to
// the format before it.
std::vector<std::string> split_formats(std::string_view list);

// The formats of such a list, the one in 16 bits first whether it is listed or not. A format that
// is listed twice is an error.
Result<std::vector<EvalFormat>> make_formats(std::string_view list, const KvFormatContext& context);

}  // namespace kvlane
