// How far one distribution of the next token is from another: the figures of one scored token.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace kvlane {

struct TokenScore {
  double loss = 0;        // -log p(target), in nats, by the logits under test
  double divergence = 0;  // KL(reference || tested), in nats
  bool agrees = false;    // both have the same most likely token (the first of equals)
};

// The logits of one position in the reference format: what is the same for all that are compared
// with it. Refers to the logits.
class Reference {
 public:
  explicit Reference(std::span<const float> logits);

  // False when a logit is not a finite number: then nothing else may be asked.
  bool finite() const { return finite_; }
  double loss(std::int32_t target) const { return log_total_ - logits_[target]; }

  // Of logits [vocab] for the same position. Equal logits give a divergence of exactly zero. A
  // logit that is not finite gives a divergence that is not.
  TokenScore compare(std::span<const float> logits, std::int32_t target) const;

 private:
  std::span<const float> logits_;
  double log_total_ = 0;  // log of the sum of exp(logit)
  std::int32_t top_ = 0;
  bool finite_ = false;
};

}  // namespace kvlane
