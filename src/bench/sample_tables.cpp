// Calibrates one layer on sample rows, and gives its tables to all.
// SPDX-License-Identifier: Apache-2.0
#include "bench/sample_tables.h"

#include <cmath>
#include <memory>
#include <string>

#include "calib/calibrate_tables.h"
#include "calib/kv_statistics.h"

namespace kvlane {

RopeTable sample_rope(int head_dim, int positions) {
  constexpr float kTheta = 10000;
  std::vector<float> inverse(head_dim / 2);
  for (int i = 0; i < head_dim / 2; ++i) {
    inverse[i] = std::pow(kTheta, -2.0F * static_cast<float>(i) / static_cast<float>(head_dim));
  }
  return {inverse, positions};
}

namespace {

std::string of_layer(int layer) { return ".layers." + std::to_string(layer) + "."; }

// Spectra that fall at each head's own pace, so that widths differ; rotations that leave rows as
// they are: what attention costs depends on widths alone.
void add_zack_tables(const KvShape& shape, KvTables& tables) {
  const std::size_t d = shape.head_dim;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const std::string prefix = "zack" + of_layer(layer) + (is_key ? "k." : "v.");
      std::vector<float>& rotation = tables.values[prefix + "rotation"];
      std::vector<float>& singular_values = tables.values[prefix + "singular_values"];
      std::vector<float>& errors = tables.values[prefix + "errors"];
      rotation.assign(d * d * shape.kv_heads, 0);
      for (int head = 0; head < shape.kv_heads; ++head) {
        const auto pace = static_cast<float>((is_key ? 4 : 2) + (layer + 3 * head) % 5);
        for (std::size_t i = 0; i < d; ++i) {
          rotation[(head * d + i) * d + i] = 1;
          singular_values.push_back(
              std::exp(-pace * static_cast<float>(i) / static_cast<float>(d)));
        }
        // Of a Gaussian whose variances fall as the squares of singular values.
        for (const float lost : {0.12F, 0.01F, 3e-5F}) {
          for (std::size_t width = 16; width <= d; width += 16) {
            const float tail =
                *(singular_values.end() - static_cast<std::ptrdiff_t>(d - width + 1));
            errors.push_back(width < d ? lost + tail * tail : lost);
          }
        }
      }
    }
  }
}

// Tables of the layers 0 ... period - 1 of `from`, for as many layers as there are.
void repeat_layers(const KvTables& from, int period, int layers, KvTables& tables) {
  for (int layer = 0; layer < layers; ++layer) {
    const std::string part = of_layer(layer % period);
    for (const auto& [name, values] : from.values) {
      const std::size_t at = name.find(part);
      if (at == std::string::npos) continue;
      tables.values[std::string(name).replace(at, part.size(), of_layer(layer))] = values;
    }
  }
}

// Shows all slabs of one layer to statistics, twice.
void see(KvStatistics& statistics, int layer, std::size_t slab,
         const std::vector<std::uint16_t>& rows) {
  for (std::size_t at = 0; at < rows.size(); at += slab) statistics.first({layer, 0}, &rows[at]);
  for (std::size_t at = 0; at < rows.size(); at += slab) {
    statistics.second({layer, 0}, &rows[at], nullptr);
  }
}

// Each layer has widths, and with them tables, of its own.
Status add_behind_zack(std::span<const std::string> formats, const KvShape& shape,
                       const std::vector<std::uint16_t>& rows, KvTables& tables) {
  const std::size_t slab = shape.slab_bytes() / sizeof(rows[0]);
  for (const std::string& format : formats) {
    if (!is_kvquant_behind_zack(format)) continue;
    KVLANE_ASSIGN(const auto zack, zack_before_kvquant(format, shape, tables));
    const std::uint64_t tokens = rows.size() / slab * kBlockTokens;
    const auto statistics = make_zack_kvquant_statistics(zack, Isa::kScalar, tokens);
    for (int layer = 0; layer < shape.layers; ++layer) see(*statistics, layer, slab, rows);
    KvTables found;
    statistics->write(found);
    tables.values.merge(found.values);
  }
  return {};
}

}  // namespace

Result<KvTables> sample_tables(const KvShape& shape, const RopeTable& rope,
                               const std::vector<std::uint16_t>& rows, const KvTables& zack,
                               std::span<const std::string> formats) {
  KvShape layer = shape;
  layer.layers = 1;
  const std::size_t slab = layer.slab_bytes() / sizeof(rows[0]);
  const std::size_t slabs = rows.size() / slab;
  std::vector<std::unique_ptr<KvStatistics>> all;
  all.push_back(make_cachegen_statistics(layer));
  all.push_back(make_kvquant_statistics(layer, rope, slabs * kBlockTokens));
  KvTables found;
  for (const auto& statistics : all) {
    see(*statistics, 0, slab, rows);
    statistics->write(found);
  }
  KvTables tables;
  repeat_layers(found, 1, shape.layers, tables);
  if (zack.values.empty()) {
    add_zack_tables(shape, tables);
  } else {
    int period = 0;
    while (zack.values.contains("zack" + of_layer(period) + "k.rotation")) ++period;
    if (period == 0) return invalid_argument("tables without rotations of layer 0");
    repeat_layers(zack, period, shape.layers, tables);
  }
  KVLANE_TRY(add_behind_zack(formats, shape, rows, tables));
  return tables;
}

}  // namespace kvlane
