// A report as one HTML file with tables and plots that needs nothing else, no network either.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "eval/eval_report.h"

namespace kvlane {

// Tables and facts are plain HTML; plots are drawn by the page's script from the report's JSON,
// which is in the page too (element "data"). Names and texts may hold anything: they are escaped.
std::string eval_page(const EvalReport& report);

}  // namespace kvlane
