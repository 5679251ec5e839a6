// The report of `kvlane calibrate zack`: JSON, and a table for people.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "calib/zack_study.h"
#include "format/shape.h"

namespace kvlane {

struct ZackReport {
  ModelIdentity model{};  // the one that was calibrated
  std::string text;
  std::uint64_t tokens = 0;
  std::string rotation;  // as --rotation says
  bool balance = false;
  ZackStudy study;
  std::string other_text;             // empty: none
  std::optional<PairDistance> other;  // from the rotations of that text
};

std::string zack_report_json(const ZackReport& report);
std::string zack_report_table(const ZackReport& report);

}  // namespace kvlane
