// Reads what lies beside each checkpoint.
// SPDX-License-Identifier: Apache-2.0
#include "model/expected_fixture.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/test_results.h"

namespace kvlane::expected_fixture {

void Errors::add(std::span<const float> logits, const float* expected) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double error = double{logits[i]} - expected[i];
    squares += error * error;
    worst = std::max(worst, std::abs(error));
    ++count;
  }
}

double Errors::root_of_mean_square() const {
  return std::sqrt(squares / static_cast<double>(count));
}

Expected::Expected(const std::filesystem::path& directory)
    : file_(take(MappedFile::open(directory / "expected.safetensors"))),
      tensors_(take(parse_safetensors(file_.bytes()))) {
  const std::string text = take(read_text_file(directory / "expected.json", 1 << 20));
  const nlohmann::json json = nlohmann::json::parse(text);
  prompts_ = json["prompts"].get<std::vector<std::vector<std::int32_t>>>();
  for (const auto& [name, errors] : json["errors"].items()) {
    plain_[name] = {errors["rms"].get<double>(), errors["max_abs"].get<double>()};
  }
}

const float* Expected::logits(std::size_t prompt) const {
  return reinterpret_cast<const float*>(
      tensors_.at("logits." + std::to_string(prompt)).bytes.data());
}

int Expected::positions(std::size_t prompt) const {
  return static_cast<int>(tensors_.at("logits." + std::to_string(prompt)).shape[0]);
}

void Expected::expect_at_most(const Errors& errors, double factor, const std::string& plain) const {
  ASSERT_GT(errors.count, 0U);
  EXPECT_LE(errors.root_of_mean_square(), factor * plain_.at(plain).root_of_mean_square);
  EXPECT_LE(errors.worst, factor * plain_.at(plain).worst);
}

}  // namespace kvlane::expected_fixture
