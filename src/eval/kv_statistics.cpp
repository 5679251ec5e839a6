// One pass, then loops over pages.
// SPDX-License-Identifier: Apache-2.0
#include "eval/kv_statistics.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "eval/generation.h"
#include "eval/spectrum.h"

namespace kvlane {
namespace {

// K, then V.
constexpr std::array<const char*, 2> kPlanes = {"k", "v"};

// What slabs and pages are aligned to.
struct alignas(64) Line {
  std::byte bytes[64];
};
std::vector<Line> lines_for(std::size_t bytes) { return std::vector<Line>((bytes + 63) / 64); }

float value_of(std::uint16_t bits) { return to_float(bf16{bits}); }

// Sums of one layer, for K and V.
struct LayerError {
  std::array<double, 2> error = {};
  std::array<double, 2> square = {};
};

void compare_page(const std::uint16_t* rows, const std::uint16_t* opened, std::size_t plane,
                  LayerError& sums) {
  for (std::size_t part = 0; part < kPlanes.size(); ++part) {
    for (std::size_t i = part * plane; i < (part + 1) * plane; ++i) {
      const double value = value_of(rows[i]);
      const double off = value_of(opened[i]) - value;
      sums.error[part] += off * off;
      sums.square[part] += value * value;
    }
  }
}

Result<LayerError> layer_error(const KvFormat& format, const BlockTable& table, int layer) {
  const KvShape& shape = format.shape();
  auto slab_lines = lines_for(format.slab_bytes());
  auto page_lines = lines_for(shape.page_bytes());
  auto* const slab = reinterpret_cast<std::byte*>(slab_lines.data());
  auto* const page = reinterpret_cast<std::uint16_t*>(page_lines.data());
  LayerError sums;
  for (int block = 0; block < table.tokens() / kBlockTokens; ++block) {
    const SlabPlace place{layer, block * kBlockTokens};
    if (Status sealed = format.seal(place, table.rows(block, layer), slab); !sealed.ok()) {
      return sealed.with_context(format.name());
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
      format.open_page(place, slab, head, page);
      compare_page(table.page(block, layer, head), page, shape.page_plane_elements(), sums);
    }
  }
  return sums;
}

Status report_errors(const BlockTable& table, EvalRun& run) {
  const int layers = run.model->config().layers;
  for (std::size_t i = 1; i < run.formats.size(); ++i) {
    if (run.formats[i].eviction) {
      run.report.not_measured.push_back(
          "kv of " + run.formats[i].name() +
          ": a token that is kept keeps its values, and one that is not has no error of its own");
      continue;
    }
    const KvFormat& format = *run.formats[i].kv;
    LayerError all;
    std::array<Curve, 2> curves;
    for (std::size_t part = 0; part < kPlanes.size(); ++part) {
      curves[part] = {"layers", format.name(), kPlanes[part], {}, {}};
    }
    for (int layer = 0; layer < layers; ++layer) {
      KVLANE_ASSIGN(const LayerError sums, layer_error(format, table, layer));
      for (std::size_t part = 0; part < kPlanes.size(); ++part) {
        curves[part].x.push_back(layer);
        // Rows of zeros that stay zeros have no error.
        curves[part].y.push_back(sums.error[part] > 0 ? sums.error[part] / sums.square[part] : 0);
        all.error[part] += sums.error[part];
        all.square[part] += sums.square[part];
      }
      if (run.progress) run.progress("kv " + format.name(), layer + 1, layers);
    }
    for (std::size_t part = 0; part < kPlanes.size(); ++part) {
      const double error = all.error[part] > 0 ? all.error[part] / all.square[part] : 0;
      run.report.measures.push_back({"kv",
                                     format.name(),
                                     std::string(kPlanes[part]) + "_error",
                                     {error, kNoInterval, kNoInterval},
                                     "share of squares"});
      run.report.curves.push_back(std::move(curves[part]));
    }
  }
  return {};
}

// K or V of one layer and head in complete blocks, [tokens][head_dim].
std::vector<float> plane_values(const BlockTable& table, int layer, int head, std::size_t part) {
  const std::size_t plane = table.pool().shape().page_plane_elements();
  std::vector<float> values;
  for (int block = 0; block < table.tokens() / kBlockTokens; ++block) {
    const std::uint16_t* const rows = table.page(block, layer, head) + part * plane;
    for (std::size_t i = 0; i < plane; ++i) values.push_back(value_of(rows[i]));
  }
  return values;
}

struct Rank {
  const char* name;
  double share;  // of tokens that are not above it
};
constexpr std::array<Rank, 5> kRanks = {
    {{"min", 0}, {"p1", 0.01}, {"median", 0.5}, {"p99", 0.99}, {"max", 1}}};

void report_channels(const std::string& name, const std::vector<float>& values, int channels,
                     EvalReport& report) {
  std::array<Curve, kRanks.size()> curves;
  for (std::size_t rank = 0; rank < kRanks.size(); ++rank) {
    curves[rank] = {"channels", "bf16", name + ", " + kRanks[rank].name, {}, {}};
  }
  const std::size_t tokens = values.size() / channels;
  std::vector<float> column(tokens);
  for (int channel = 0; channel < channels; ++channel) {
    for (std::size_t token = 0; token < tokens; ++token) {
      column[token] = values[token * channels + channel];
    }
    std::ranges::sort(column);
    for (std::size_t rank = 0; rank < kRanks.size(); ++rank) {
      const auto at =
          static_cast<std::size_t>(kRanks[rank].share * static_cast<double>(tokens - 1) + 0.5);
      curves[rank].x.push_back(channel);
      curves[rank].y.push_back(column[at]);
    }
  }
  for (Curve& curve : curves) report.curves.push_back(std::move(curve));
}

std::vector<int> detailed_layers(int layers) {
  const int count = std::min(layers, kDetailedLayersMax);
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(count == 1 ? 0 : i * (layers - 1) / (count - 1));
  return chosen;
}

Status report_details(const BlockTable& table, EvalRun& run) {
  const KvShape& shape = table.pool().shape();
  for (const int layer : detailed_layers(shape.layers)) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      for (std::size_t part = 0; part < kPlanes.size(); ++part) {
        const std::string name = std::string(kPlanes[part]) + ", layer " + std::to_string(layer) +
                                 ", head " + std::to_string(head);
        const std::vector<float> values = plane_values(table, layer, head, part);
        report_channels(name, values, shape.head_dim, run.report);
        KVLANE_ASSIGN(std::vector<double> spectrum, singular_values(values, shape.head_dim));
        Curve curve{"spectrum", "bf16", name, {}, std::move(spectrum)};
        for (int i = 0; i < shape.head_dim; ++i) curve.x.push_back(i + 1);
        run.report.curves.push_back(std::move(curve));
      }
    }
  }
  return {};
}

}  // namespace

Status run_kv_statistics_task(const KvStatisticsTask& task, EvalRun& run) {
  if (task.tokens.size() < kBlockTokens) {
    return invalid_argument("statistics of K and V need a text of at least " +
                            std::to_string(kBlockTokens) + " tokens, not " +
                            std::to_string(task.tokens.size()));
  }
  KVLANE_ASSIGN(FormatRunner runner,
                FormatRunner::create(*run.model, nullptr, static_cast<int>(task.tokens.size())));
  KVLANE_TRY(append_all(runner, task.tokens, task.tokens.size(), {}));
  KVLANE_TRY(report_errors(runner.table(), run));
  return report_details(runner.table(), run);
}

}  // namespace kvlane
