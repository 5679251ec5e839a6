// Draws, and the table of published workloads.
// SPDX-License-Identifier: Apache-2.0
#include "bench/lengths.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace kvlane {

namespace {

using Shape = LengthDistribution::Shape;

constexpr double kBetaConcentration = 4;

constexpr LengthDistribution beta(double mean, double min, double max) {
  return {Shape::kBeta, mean, min, max};
}
// Of which only the mean is known: the distribution that assumes nothing else.
constexpr LengthDistribution geometric(double mean) { return {Shape::kGeometric, mean, 1, 1}; }
constexpr LengthDistribution always(double length) {
  return {Shape::kUniform, length, length, length};
}

constexpr std::string_view kHack = "HACK, table 4";
constexpr std::string_view kHcacheChats = "HCache, ShareGPT4";
constexpr std::string_view kHcacheDocuments = "HCache, L-Eval";

// ShareGPT4 has 12 rounds: in the paper the median history is above 2,500 tokens, which six rounds
// of 66.8 + 358.8 tokens make; the median round of a conversation is its middle one.
constexpr std::array<PaperWorkload, 9> kPaperWorkloads = {{
    {"imdb", kHack, beta(315, 106, 821), beta(37, 16, 87)},
    {"arxiv", kHack, beta(6300, 1600, 14100), beta(243, 29, 464)},
    {"cocktail", kHack, beta(16200, 9400, 28800), beta(159, 44, 246)},
    {"humaneval", kHack, beta(204, 75, 697), beta(139, 11, 552)},
    {"sharegpt4", kHcacheChats, geometric(66.8), geometric(358.8), 0, 12, 30},
    {"leval-paper", kHcacheDocuments, always(143), geometric(404.8), 10604},
    {"leval-gsm", kHcacheDocuments, always(77), geometric(4.3), 5452},
    {"leval-quality", kHcacheDocuments, always(92), geometric(19.2), 7054},
    {"leval-all", kHcacheDocuments, always(45), geometric(50.2), 16340},
}};

}  // namespace

int draw_length(const LengthDistribution& distribution, RandomStream& random) {
  const double min = distribution.min;
  const double range = distribution.max - min;
  double length = 0;
  switch (distribution.shape) {
    case Shape::kUniform: length = std::floor(min + random.unit() * (range + 1)); break;
    case Shape::kBeta: {
      const double mean = (distribution.mean - min) / range;
      length = std::round(
          min + range * random.beta(mean * kBetaConcentration, (1 - mean) * kBetaConcentration));
      break;
    }
    case Shape::kGeometric:
      length = 1 + std::floor(std::log1p(-random.unit()) / std::log1p(-1 / distribution.mean));
      break;
  }
  return std::max(1, static_cast<int>(length));
}

LengthDistribution around(int length, double range_ratio) {
  const double least = std::max(1.0, std::floor(length * (1 - range_ratio)));
  return {Shape::kUniform, static_cast<double>(length), least,
          std::max(least, std::ceil(length * (1 + range_ratio)))};
}

Result<PaperWorkload> find_paper_workload(std::string_view name) {
  for (const PaperWorkload& workload : kPaperWorkloads) {
    if (workload.name == name) return workload;
  }
  std::string names;
  for (const std::string& known : paper_workload_names()) names += " " + known;
  return not_found("there is no workload '" + std::string(name.substr(0, 60)) +
                   "'; those of papers are:" + names);
}

std::vector<std::string> paper_workload_names() {
  std::vector<std::string> names;
  for (const PaperWorkload& workload : kPaperWorkloads) names.emplace_back(workload.name);
  return names;
}

}  // namespace kvlane
