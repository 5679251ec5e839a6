// Reads the tables, asks the step function.
// SPDX-License-Identifier: Apache-2.0
#include "cli/zack_rates.h"

#include <nlohmann/json.hpp>

#include "calib/kv_tables_file.h"
#include "model/checkpoint.h"
#include "quant/table_lookup.h"
#include "quant/zack.h"
#include "transfer/hex.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kShares[] = {9000, 7500, 6250, 5000, 3750, 2500};

Json describe_ranks(const zack::Ranks& ranks) {
  double k = 0;
  double v = 0;
  for (const HeadWidths& widths : ranks.widths) {
    k += widths.k;
    v += widths.v;
  }
  const auto heads = static_cast<double>(ranks.widths.size());
  return {{"kept", ranks.share},
          {"threshold", ranks.threshold},
          {"mean_k", k / heads},
          {"mean_v", v / heads}};
}

}  // namespace

Status add_zack_rates(const std::filesystem::path& directory, bool steps,
                      std::string& description) {
  const std::filesystem::path file = directory / kZackTables;
  std::error_code error;
  if (!std::filesystem::exists(file, error)) return {};
  Json json = Json::parse(description);
  ModelIdentity identity{};
  if (!parse_hex(json.at("identity").get<std::string>(), identity)) {
    return internal_error("an identity is no hexadecimal number");
  }
  KVLANE_ASSIGN(const KvTables tables, load_kv_tables(file, identity));
  KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(directory));
  KVLANE_ASSIGN(const zack::Rates rates,
                zack_rates({.shape = checkpoint.config().kv_shape(), .tables = &tables},
                           zack::Weigh::kValues));
  const std::string of_keys = table_prefix("zack", 0, true);
  const bool folded = tables.values.contains(of_keys + zack::kFoldedRotation);
  const bool product = tables.values.contains(of_keys + "query_rotation");
  Json& member = json["zack"] = {{"tables", kZackTables},
                                 {"rotation", folded    ? "in the weights"
                                              : product ? "product"
                                                        : "stacked"}};
  for (const int share : kShares) {
    const auto ranks = rates.at(share);
    if (ranks.ok()) member["keep=" + share_text(share)] = describe_ranks(*ranks);
  }
  if (steps) {
    Json& all = member["steps"] = Json::array();
    for (const zack::Rates::Step& step : rates.steps()) {
      all.push_back({{"threshold", step.threshold}, {"share", step.share}});
    }
  }
  description = json.dump(2, ' ', false, Json::error_handler_t::replace);
  return {};
}

}  // namespace kvlane
