// The time account of a request: exclusive intervals that add up to its completion time.
//
// The same names appear in responses, metrics and benchmarks. Overlapped time
// belongs to compute; `transfer` counts only what nothing else hid.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string_view>

namespace kvlane {

// Seconds. The "of it" members are parts of the one they follow, not further intervals.
struct TimeAccount {
  double queue = 0;
  double restore = 0;
  double prefill = 0;
  double prefill_attention = 0;   // of prefill
  double prefill_quantise = 0;    // of prefill: sealing blocks, or finding a prompt's axes
  double prefill_dequantise = 0;  // of prefill: opening sealed pages; 0 where attention opens none
  double encode = 0;
  double wait_for_memory = 0;
  double transfer = 0;
  double decode_codec = 0;
  double decode = 0;
  double decode_attention = 0;  // of decode
  // Of decode: opening sealed pages, 0 where attention opens none; or making rows of coefficients.
  double decode_dequantise = 0;
  double other = 0;

  // The exclusive intervals, without the "of it" parts.
  double total() const {
    return queue + restore + prefill + encode + wait_for_memory + transfer + decode_codec + decode +
           other;
  }
};

struct AccountField {
  std::string_view name;
  double TimeAccount::*seconds;
};

// Every field by its public name, in the order of a request's life.
inline constexpr std::array<AccountField, 14> kAccountFields = {{
    {"queue", &TimeAccount::queue},
    {"restore", &TimeAccount::restore},
    {"prefill", &TimeAccount::prefill},
    {"prefill_attention", &TimeAccount::prefill_attention},
    {"prefill_quantise", &TimeAccount::prefill_quantise},
    {"prefill_dequantise", &TimeAccount::prefill_dequantise},
    {"encode", &TimeAccount::encode},
    {"wait_for_memory", &TimeAccount::wait_for_memory},
    {"transfer", &TimeAccount::transfer},
    {"decode_codec", &TimeAccount::decode_codec},
    {"decode", &TimeAccount::decode},
    {"decode_attention", &TimeAccount::decode_attention},
    {"decode_dequantise", &TimeAccount::decode_dequantise},
    {"other", &TimeAccount::other},
}};

}  // namespace kvlane
