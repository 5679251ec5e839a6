// Two passes over a text, and every format's statistics of the slabs they leave.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_tables.h"

#include <algorithm>
#include <vector>

#include "calib/kv_statistics.h"
#include "cpu/parallel.h"
#include "quant/slab_rows.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace {

constexpr std::uint64_t kTokensMax = std::uint64_t{1} << 24;

std::uint64_t tokens_in_blocks(const Model& model, std::uint64_t tokens) {
  const auto length = static_cast<std::uint64_t>(calibration_sequence(model));
  const auto whole = [](std::uint64_t count) { return count / kBlockTokens * kBlockTokens; };
  return tokens / length * whole(length) + whole(tokens % length);
}

// Shows the complete slabs of a sequence to `see`, layers side by side.
template <class See>
Status see_slabs(const BlockTable& table, const See& see) {
  const BlockPool& pool = table.pool();
  const KvShape& shape = pool.shape();
  std::vector<Status> finite(shape.layers);
  parallel_for(shape.layers, [&](std::int64_t layer) {
    for (int block = 0; block < table.tokens() / kBlockTokens; ++block) {
      const SlabPlace place{static_cast<int>(layer), block * kBlockTokens};
      const std::uint16_t* const rows = pool.slab(table.id(block), place.layer);
      finite[layer] = check_rows_are_finite(shape, place, rows);
      if (!finite[layer].ok()) return;
      see(place, rows);
    }
  });
  const auto bad = std::ranges::find_if(finite, [](const Status& status) { return !status.ok(); });
  return bad == finite.end() ? Status() : *bad;
}

}  // namespace

Result<KvTables> calibrate_tables(const Model& model, std::span<const std::int32_t> tokens,
                                  const KvTables* weights, const OnCalibrated& progress,
                                  std::span<const std::shared_ptr<const ZackFormat>> behind) {
  const KvShape shape = model.config().kv_shape();
  const std::uint64_t counted = tokens_in_blocks(model, tokens.size());
  if (counted == 0 || tokens.size() > kTokensMax) {
    return invalid_argument("calibrating tables needs from " + std::to_string(kBlockTokens) +
                            " to 2^24 tokens, not " + std::to_string(tokens.size()));
  }
  std::vector<std::unique_ptr<KvStatistics>> all;
  all.push_back(make_cachegen_statistics(shape));
  KVLANE_ASSIGN(auto kvquant, make_kvquant_statistics(shape, model.rope(), counted, weights));
  all.push_back(std::move(kvquant));
  for (const auto& zack : behind) {
    all.push_back(make_zack_kvquant_statistics(zack, model.isa(), counted));
  }

  Status seen;
  for (const bool first : {true, false}) {
    const auto on_sequence = [&](const BlockTable& table) {
      if (!seen.ok()) return;
      seen = see_slabs(table, [&](SlabPlace place, const std::uint16_t* rows) {
        for (const auto& statistics : all) {
          first ? statistics->first(place, rows) : statistics->second(place, rows);
        }
      });
    };
    const auto on_tokens = [&](std::uint64_t done, std::uint64_t total) {
      if (progress) progress(first ? done : total + done, 2 * total);
    };
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
