// Random clusters and workloads, most of them short of memory: what must be true of all of them.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/test_sanitizers.h"
#include "format/shape.h"
#include "sim/sim_fixture.h"

namespace kvlane {
namespace {

// Whole numbers of one case, each drawn once.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}
  int from(int least, int most) {
    const std::uint32_t word = philox4x32(seed_, {number_++, 0, 0, 0})[0];
    return least + static_cast<int>(word % static_cast<std::uint32_t>(most - least + 1));
  }
  bool coin() { return from(0, 1) == 1; }
  double exponent(int least, int most) { return std::pow(10.0, from(least, most)); }

 private:
  std::uint64_t seed_;
  std::uint32_t number_ = 0;
};

ReplicaGroup draw_group(Draws& draws, const ClusterSetting& setting, int count) {
  constexpr std::array<int, 4> kTensor = {1, 2, 4, 8};
  ReplicaGroup group;
  group.count = count;
  group.gpu = known_gpus()[draws.from(0, static_cast<int>(known_gpus().size()) - 1)];
  group.parallel = {.tensor = kTensor[draws.from(0, 3)],
                    .pipeline = draws.coin() ? draws.from(1, setting.model.layers) : 1};
  group.limits = {.batch_tokens_max = draws.coin() ? draws.from(1, 64) : draws.from(16, 4096),
                  .sequences_max = draws.from(1, 12),
                  .slowdown_max = 1 + 0.1 * draws.from(0, 30)};
  group.network_rate = draws.exponent(5, 10);
  limit_blocks(group, setting, draws.from(4, 60));
  return group;
}

ClusterSetting draw_cluster(Draws& draws) {
  ClusterSetting setting;
  setting.model = {
      .layer = {.hidden = 1024, .heads = 8, .kv_heads = 8, .head_dim = 64, .parameters = 1e7},
      .layers = draws.from(1, 6),
      .output_parameters = 1e7};
  setting.kv = bf16_costs(setting.model);
  if (draws.coin()) {
    setting.kv.encode_share = 0.01 * draws.from(1, 50);
    setting.kv.decode_share = 0.01 * draws.from(1, 50);
  }
  setting.prefill = draw_group(draws, setting, draws.from(0, 3));
  setting.decode = draw_group(draws, setting, draws.from(1, 3));
  if (draws.coin()) setting.flow_rate_max = draws.exponent(5, 9);
  setting.push_whole = draws.coin();
  return setting;
}

// Some begin alike, some come at once, some never fit.
std::vector<SimRequest> draw_requests(Draws& draws) {
  std::vector<SimRequest> requests(draws.from(1, 60));
  const double gap = draws.exponent(-4, 1);
  const int prompt_most = draws.coin() ? 300 : 4000;
  const int answer_most = draws.coin() ? 5 : 600;
  double time = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (draws.coin()) time += gap * draws.from(1, 100) / 50;
    requests[i] = {time, draws.from(1, prompt_most), draws.from(1, answer_most)};
    const int blocks = requests[i].prompt_tokens / kBlockTokens;
    if (!draws.coin()) continue;
    std::vector<std::uint64_t> names(blocks);
    const int shared = draws.from(0, blocks);
    const std::uint64_t prefix = 1000U * draws.from(0, 3);
    for (int b = 0; b < blocks; ++b) names[b] = b < shared ? prefix + b : 10'000 + 1000 * i + b;
    requests[i].names = std::make_shared<const std::vector<std::uint64_t>>(std::move(names));
  }
  return requests;
}

void check_record(const SimRequest& request, const SimRecord& record) {
  if (!record.fits) return;
  const TimeAccount& account = record.account;
  EXPECT_GT(record.completion, 0);
  EXPECT_LE(record.first_token, record.completion);
  EXPECT_NEAR(account.total(), record.completion, 1e-9 * std::max(1.0, record.completion));
  for (const AccountField& field : kAccountFields) EXPECT_GE(account.*field.seconds, 0);
  const double slack = 1 + 1e-9;
  EXPECT_LE(account.prefill_attention + account.prefill_quantise + account.prefill_dequantise,
            account.prefill * slack);
  EXPECT_LE(account.decode_attention + account.decode_dequantise, account.decode * slack);
  if (request.answer_tokens == 1) {
    EXPECT_EQ(record.first_token, record.completion);
  }
}

TEST(RandomClusters, LoseNothingAndAddUp) {
  std::int64_t stopped = 0;
  std::int64_t found = 0;
  int refused = 0;
  for (std::uint64_t seed = 0; seed < (kSanitized ? 300 : 1500); ++seed) {
    SCOPED_TRACE(seed);
    Draws draws(seed);
    const ClusterSetting setting = draw_cluster(draws);
    const std::vector<SimRequest> requests = draw_requests(draws);
    const SimOutcome outcome = run(setting, requests);
    ASSERT_EQ(outcome.records.size(), requests.size());
    double bytes = 0;
    std::int64_t prompts = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      check_record(requests[i], outcome.records[i]);
      refused += outcome.records[i].fits ? 0 : 1;
      if (outcome.records[i].fits) prompts += requests[i].prompt_tokens;
      if (!outcome.records[i].fits || requests[i].answer_tokens == 1) continue;
      bytes += requests[i].prompt_tokens * setting.model.layers * setting.kv.wire_bytes;
    }
    EXPECT_NEAR(outcome.wire_bytes, setting.prefill.count > 0 ? bytes : 0, 1 + 1e-9 * bytes);
    EXPECT_LE(outcome.prefill.found + outcome.decode.found, prompts);
    for (const GroupUse& use : {outcome.prefill, outcome.decode}) {
      EXPECT_LE(use.busy_most, 1 + 1e-9);
      EXPECT_LE(use.network, 1 + 1e-9);
      EXPECT_LE(use.blocks_peak, 1);
      stopped += use.stopped;
      found += use.found;
    }
    if (HasFailure()) return;
  }
  // Or nothing of all that was tried.
  EXPECT_GT(stopped, 100);
  EXPECT_GT(found, 10'000);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace kvlane
