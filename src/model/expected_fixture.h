// What transformers computed with the checkpoints of tests/fixtures/models, in double precision.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/test_paths.h"
#include "model/safetensors.h"

namespace kvlane::expected_fixture {

inline const std::filesystem::path kModels =
    std::filesystem::path(kSourceDir) / "tests/fixtures/models";

// How far logits are from those.
struct Errors {
  double squares = 0;
  double worst = 0;
  std::size_t count = 0;

  void add(std::span<const float> logits, const float* expected);
  double root_of_mean_square() const;
};

// Of one checkpoint.
class Expected {
 public:
  explicit Expected(const std::filesystem::path& directory);

  const std::vector<std::vector<std::int32_t>>& prompts() const { return prompts_; }
  const float* logits(std::size_t prompt) const;  // [positions(prompt)][vocab]
  int positions(std::size_t prompt) const;        // the last ones of the prompt
  // `errors` are at most `factor` times those of a plain implementation in the types of that name.
  void expect_at_most(const Errors& errors, double factor, const std::string& plain) const;

 private:
  struct Plain {
    double root_of_mean_square;
    double worst;
  };
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
  std::vector<std::vector<std::int32_t>> prompts_;
  std::map<std::string, Plain> plain_;
};

}  // namespace kvlane::expected_fixture
