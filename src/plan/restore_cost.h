// What restoring a layer costs, by the number of tokens: from measured times of this machine and
// model, or from figures of hardware. Pure functions.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "plan/restore_plan.h"

namespace kvlane {

// Something took so many seconds for so many tokens.
struct TimedTokens {
  int tokens;
  double seconds;
};

// Seconds for `tokens` tokens from measured points, which are in order of their tokens, all
// different, at least one; no tokens take no time. Where seconds a token rise from one point to the
// next they are taken to be linear: exact for a N + b N^2, which causal attention makes of a layer.
// Where they fall, seconds are: a + b N. Below the first point and where there is one alone the
// point's rate counts; beyond the last one rates rise as before, or stay.
double seconds_for(std::span<const TimedTokens> points, int tokens);

// One layer of a model on one machine, all layers being alike.
struct RestoreProfile {
  std::vector<TimedTokens> prefill;  // a whole layer of a prompt
  std::vector<TimedTokens> project;  // K and V of a layer from its normed input, with RoPE
  double read_rate = 0;              // bytes a second from all directories together; more than 0
};

// Costs of everything but the forms; `tokens` is at least 1.
RestoreCosts restore_costs(const RestoreProfile& profile, int layers, int tokens);

// A form of which all layers are alike: `bytes` of a layer are read, and computed in so many
// seconds.
RestoreForm uniform_form(const RestoreProfile& profile, int layers, std::string name,
                         RestoreSource source, double bytes, double compute);

// A layer of a transformer, for estimates without a measurement.
struct LayerWork {
  int hidden;
  int heads;
  int kv_heads;
  int head_dim;
  double parameters;  // of its products

  // Floating-point operations: of the whole layer with causal attention, half of a full one; and of
  // the projection to K and V.
  double prefill(double tokens) const;
  double project(double tokens) const;
  // Bytes in 16 bits.
  double hidden_bytes(double tokens) const;
  double kv_bytes(double tokens) const;
};

// The profile of machines that do `operations` a second, at the powers of two up to `tokens_max`.
RestoreProfile expected_profile(const LayerWork& work, double operations, double read_rate,
                                int tokens_max);

}  // namespace kvlane
