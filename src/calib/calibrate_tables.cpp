// Two passes over a text, the second one back as well where there are weights, and every format's
// statistics of the slabs they leave.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_tables.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "calib/kv_gradients.h"
#include "calib/kv_statistics.h"
#include "cpu/parallel.h"
#include "quant/slab_rows.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace {

constexpr std::uint64_t kTextTokensMax = std::uint64_t{1} << 24;

std::uint64_t tokens_in_blocks(const Model& model, std::uint64_t tokens) {
  const auto length = static_cast<std::uint64_t>(calibration_sequence(model));
  const auto whole = [](std::uint64_t count) { return count / kBlockTokens * kBlockTokens; };
  return tokens / length * whole(length) + whole(tokens % length);
}

// Shows the complete slabs of one layer of a sequence to `see`.
template <class See>
Status see_layer(const BlockTable& table, int layer, const See& see) {
  const BlockPool& pool = table.pool();
  for (int block = 0; block < table.tokens() / kBlockTokens; ++block) {
    const SlabPlace place{layer, block * kBlockTokens};
    const std::uint16_t* const rows = pool.slab(table.id(block), layer);
    KVLANE_TRY(check_rows_are_finite(pool.shape(), place, rows));
    see(place, rows);
  }
  return {};
}

// Layers side by side.
template <class See>
Status see_layers(const BlockTable& table, const See& see) {
  const int layers = table.pool().shape().layers;
  std::vector<Status> seen(layers);
  parallel_for(layers, [&](std::int64_t layer) {
    seen[layer] = see_layer(table, static_cast<int>(layer), see);
  });
  const auto bad = std::ranges::find_if(seen, [](const Status& status) { return !status.ok(); });
  return bad == seen.end() ? Status() : *bad;
}

using AllStatistics = std::vector<std::unique_ptr<KvStatistics>>;

// The second pass over a sequence, with gradients.
Status see_weighted(const KvGradients<float>& gradients, std::span<const std::int32_t> tokens,
                    const BlockTable& table, const AllStatistics& all,
                    const std::function<void(int, int)>& progress) {
  Status seen;
  const auto on_gradients = [&](int layer, const Matrix<float>& keys, const Matrix<float>& values) {
    if (!seen.ok()) return;
    seen = see_layer(table, layer, [&](SlabPlace place, const std::uint16_t* rows) {
      const SlabGradients of_slab{keys.row(place.position).data(),
                                  values.row(place.position).data()};
      parallel_for(static_cast<std::int64_t>(all.size()),
                   [&](std::int64_t i) { all[i]->second(place, rows, &of_slab); });
    });
  };
  KVLANE_TRY(
      gradients.run(tokens, {.on_gradients = on_gradients, .on_rows = {}, .progress = progress})
          .status());
  return seen;
}

}  // namespace

Result<KvTables> calibrate_tables(const Model& model, std::span<const std::int32_t> tokens,
                                  SignpostWeights weights, const OnCalibrated& progress,
                                  std::span<const std::shared_ptr<const ZackFormat>> behind) {
  const KvShape shape = model.config().kv_shape();
  const std::uint64_t counted = tokens_in_blocks(model, tokens.size());
  if (counted == 0 || tokens.size() > kTextTokensMax) {
    return invalid_argument("calibrating tables needs from " + std::to_string(kBlockTokens) +
                            " to 2^24 tokens, not " + std::to_string(tokens.size()));
  }
  AllStatistics all;
  all.push_back(make_cachegen_statistics(shape));
  all.push_back(make_kvquant_statistics(shape, model.rope(), counted));
  for (const auto& zack : behind) {
    all.push_back(make_zack_kvquant_statistics(zack, model.isa(), counted));
  }
  // Progress counts tokens of either pass, and those of the way back.
  const bool weighted = weights == SignpostWeights::kGradients;
  const std::uint64_t passes = weighted ? 3 : 2;
  std::uint64_t done = 0;
  const auto report = [&](std::uint64_t more) {
    if (progress) progress(done + more, passes * tokens.size());
  };
  Status seen;
  for (const bool first : {true, false}) {
    std::optional<KvGradients<float>> gradients;
    if (!first && weighted) {
      KVLANE_ASSIGN(auto made, KvGradients<float>::create(model));
      gradients.emplace(std::move(made));
    }
    std::size_t begin = 0;
    const auto on_sequence = [&](const BlockTable& table) {
      if (!seen.ok()) return;
      const auto sequence = tokens.subspan(begin, table.tokens());
      begin += sequence.size();
      done += sequence.size();
      if (gradients) {
        // The last sequence may have no block.
        if (table.tokens() >= kBlockTokens) {
          seen = see_weighted(*gradients, sequence, table, all, [&](int layers, int total) {
            report(sequence.size() * layers / total);
          });
        }
        done += sequence.size();
        return;
      }
      seen = see_layers(table, [&](SlabPlace place, const std::uint16_t* rows) {
        for (const auto& statistics : all) {
          first ? statistics->first(place, rows) : statistics->second(place, rows, nullptr);
        }
      });
    };
    const auto on_tokens = [&](std::uint64_t of_pass, std::uint64_t) { report(of_pass - begin); };
    KVLANE_TRY(run_sequences(model, tokens, on_sequence, on_tokens));
    KVLANE_TRY(seen);
  }
  KvTables tables;
  for (const auto& statistics : all) statistics->write(tables);
  return tables;
}

bool is_kvquant_behind_zack(std::string_view text) {
  const std::size_t plus = text.find('+');
  if (plus == std::string_view::npos) return false;
  const std::string_view codes = text.substr(plus + 1);
  return codes.substr(0, codes.find(':')) == kZackKvquantCodes;
}

Result<std::shared_ptr<const ZackFormat>> zack_before_kvquant(std::string_view text,
                                                              const KvShape& shape,
                                                              const KvTables& tables) {
  if (is_kvquant_behind_zack(text)) {
    const std::string_view before = text.substr(0, text.find('+'));
    KVLANE_ASSIGN(const auto format, make_kv_format(before, {.shape = shape, .tables = &tables}));
    if (auto zack = std::dynamic_pointer_cast<const ZackFormat>(format)) return zack;
  }
  return invalid_argument("tables are made for cachegen, kvquant and such as zack:keep=0.5+" +
                          std::string(kZackKvquantCodes) + ", not for '" + std::string(text) + "'");
}

}  // namespace kvlane
