// Numbers of the study, laid out.
// SPDX-License-Identifier: Apache-2.0
#include "cli/zack_report.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "crypto/sha256.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kJsonNames[kStacks] = {"k", "v", "qk", "vw"};
constexpr const char* kNames[kStacks] = {"K", "V", "Q-K", "V-W_O"};

template <class Values, class ToJson>
Json by_stack(const Values& values, const ToJson& to_json) {
  Json json;
  for (int stack = 0; stack < kStacks; ++stack) json[kJsonNames[stack]] = to_json(values[stack]);
  return json;
}

Json to_object(const std::array<HeadSpread, kStacks>& spreads) {
  return by_stack(spreads, [](const HeadSpread& spread) {
    return Json{{"max_over_min", spread.ratio}, {"variation", spread.variation}};
  });
}

Json to_object(const RotationDistance& distance) {
  return {{"subspace", distance.subspace},
          {"subspace_worst", distance.subspace_worst},
          {"element", distance.element},
          {"magnitude", distance.magnitude}};
}

Json to_object(const PairDistance& distance) {
  return {
      {"tokens", distance.tokens}, {"qk", to_object(distance.qk)}, {"vw", to_object(distance.vw)}};
}

// A normalised singular value of a stack, mean over layers.
double mean_at(const ZackStudy& study, int stack, std::size_t quarter) {
  double mean = 0;
  for (const LayerStudy& layer : study.layers) {
    const std::vector<double>& spectrum = layer.spectra[stack];
    const std::size_t at = std::min(spectrum.size() * quarter / 4, spectrum.size() - 1);
    mean += spectrum[at] / static_cast<double>(study.layers.size());
  }
  return mean;
}

template <class Value>
void add_table_row(std::ostream& out, const char* name, const Value& value) {
  out << std::left << std::setw(34) << name << std::right;
  for (int stack = 0; stack < kStacks; ++stack) out << std::setw(10) << value(stack);
  out << '\n';
}

void add_distance(std::ostream& out, const std::string& name, const PairDistance& distance) {
  out << std::left << std::setw(34) << name << std::right;
  for (const RotationDistance& pair : {distance.qk, distance.vw}) {
    out << std::setw(10) << pair.subspace << std::setw(10) << pair.subspace_worst << std::setw(10)
        << pair.element;
  }
  out << '\n';
}

}  // namespace

std::string zack_report_json(const ZackReport& report) {
  Json layers = Json::array();
  for (const LayerStudy& layer : report.study.layers) {
    const auto values = [](const std::vector<double>& spectrum) { return Json(spectrum); };
    layers.push_back(
        {{"spectra", by_stack(layer.spectra, values)}, {"largest", to_object(layer.spreads)}});
  }
  Json snapshots = Json::array();
  for (const PairDistance& snapshot : report.study.snapshots) {
    snapshots.push_back(to_object(snapshot));
  }
  Json json = {{"model", to_hex(report.model)},
               {"text", report.text},
               {"tokens", report.tokens},
               {"rotation", report.rotation},
               {"balance", report.balance},
               {"layers", layers},
               {"largest", to_object(report.study.spreads)},
               {"fewer_tokens", snapshots}};
  if (report.other) {
    json["other_text"] = to_object(*report.other);
    json["other_text"]["text"] = report.other_text;
  }
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string zack_report_table(const ZackReport& report) {
  const ZackStudy& study = report.study;
  std::ostringstream out;
  out << std::fixed << std::setprecision(4);
  add_table_row(out, "singular values over the largest", [](int stack) { return kNames[stack]; });
  add_table_row(out, "  a quarter down", [&](int stack) { return mean_at(study, stack, 1); });
  add_table_row(out, "  half", [&](int stack) { return mean_at(study, stack, 2); });
  add_table_row(out, "  three quarters", [&](int stack) { return mean_at(study, stack, 3); });
  out << "largest singular value over heads\n";
  add_table_row(out, "  max / min", [&](int stack) { return study.spreads[stack].ratio; });
  add_table_row(out, "  deviation / mean",
                [&](int stack) { return study.spreads[stack].variation; });
  out << "distance of rotations, Q-K and V-W_O: of subspaces of half the columns (mean, worst), "
         "mean of entries\n";
  for (const PairDistance& snapshot : study.snapshots) {
    add_distance(out, "  " + std::to_string(snapshot.tokens) + " tokens, from all", snapshot);
  }
  if (report.other) add_distance(out, "  the other text", *report.other);
  return out.str();
}

}  // namespace kvlane
