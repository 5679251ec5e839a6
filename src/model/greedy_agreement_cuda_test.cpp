// Whether bundled models say on a GPU what they say on the CPU: of text that a model has made, what
// comes next is asked at every token, of the CPU, of decoding steps on the GPU, and of prefill
// there.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <random>
#include <span>
#include <vector>

#include "base/test_paths.h"
#include "cpu/isa.h"
#include "gpu/gpu_fixture.h"
#include "model/device_forward.h"
#include "model/forward.h"
#include "model/gpu_accelerator.h"
#include "model/model.h"

namespace kvlane {
namespace {

using gpu_fixture::check;

constexpr int kSequences = 24;
constexpr int kGreedyTokens = 432;  // of a sequence: 10,368 in all
// Which is as likely as another but for a tenth: BF16 between layers moves logits by less.
constexpr float kNearTie = 0.1F;
constexpr double kAgreement = 0.95;

int best_of(std::span<const float> logits) {
  return static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Of one model: its text, [sequence][token], and what the CPU says behind each token.
struct Text {
  std::vector<std::vector<std::int32_t>> tokens;
  std::vector<std::vector<std::vector<float>>> logits;
};

std::vector<BlockTable> new_tables(BlockPool& pool) {
  std::vector<BlockTable> tables;
  for (int i = 0; i < kSequences; ++i) check(tables.emplace_back(pool).grow(kGreedyTokens));
  return tables;
}

// Tokens as likely as the model finds them, from another first one in each sequence.
Text text_of(const Model& model) {
  const KvShape shape = model.config().kv_shape();
  BlockPool pool =
      take(BlockPool::create(shape, kSequences * blocks_for(kGreedyTokens) * shape.block_bytes()));
  const auto forward = take(Forward::create(model, kSequences, kSequences));
  std::vector<BlockTable> tables = new_tables(pool);
  std::mt19937 random(1);
  Text text{std::vector<std::vector<std::int32_t>>(kSequences),
            std::vector<std::vector<std::vector<float>>>(kSequences)};
  for (int i = 0; i < kSequences; ++i) text.tokens[i].push_back(300 + i);
  for (int t = 0; t < kGreedyTokens; ++t) {
    std::vector<ForwardSpan> spans;
    for (int i = 0; i < kSequences; ++i) spans.push_back({&tables[i], {&text.tokens[i][t], 1}, 1});
    check(forward->run(spans, {}));
    for (int i = 0; i < kSequences; ++i) {
      const auto row = forward->logits(i);
      text.logits[i].emplace_back(row.begin(), row.end());
      if (t + 1 == kGreedyTokens) continue;
      const double most = row[best_of(row)];
      std::vector<double> weights;
      for (const float x : row) weights.push_back(std::exp(x - most));
      text.tokens[i].push_back(
          std::discrete_distribution<std::int32_t>(weights.begin(), weights.end())(random));
    }
  }
  return text;
}

using Choices = std::vector<std::vector<int>>;  // [sequence][token]

// A token of every sequence in each pass; the device chooses.
Choices decoded(ForwardPass& forward, BlockPool& pool, const Text& text) {
  std::vector<BlockTable> tables = new_tables(pool);
  Choices choices(kSequences);
  for (int t = 0; t < kGreedyTokens; ++t) {
    std::vector<ForwardSpan> spans;
    for (int i = 0; i < kSequences; ++i) {
      spans.push_back({&tables[i], {&text.tokens[i][t], 1}, 1, true});
    }
    check(forward.run(spans, {}));
    for (int i = 0; i < kSequences; ++i) choices[i].push_back(forward.best(i).value());
  }
  return choices;
}

// A sequence in each pass, and all of its rows of logits.
Choices prefilled(ForwardPass& forward, BlockPool& pool, const Text& text) {
  std::vector<BlockTable> tables = new_tables(pool);
  Choices choices(kSequences);
  for (int i = 0; i < kSequences; ++i) {
    const ForwardSpan span{&tables[i], text.tokens[i], kGreedyTokens};
    check(forward.run({&span, 1}, {}));
    for (int t = 0; t < kGreedyTokens; ++t) choices[i].push_back(best_of(forward.logits(t)));
  }
  return choices;
}

void expect_agreement(const Text& text, const Choices& choices) {
  int same = 0;
  float widest = 0;
  for (int i = 0; i < kSequences; ++i) {
    for (int t = 0; t < kGreedyTokens; ++t) {
      const std::vector<float>& logits = text.logits[i][t];
      const float behind = logits[best_of(logits)] - logits[choices[i][t]];
      same += behind == 0;
      widest = std::max(widest, behind);
      EXPECT_LE(behind, kNearTie) << "sequence " << i << ", token " << t;
    }
  }
  const double share = same / double{kSequences * kGreedyTokens};
  EXPECT_GE(share, kAgreement);
  std::cout << "the same choice in " << 100 * share << " % of " << kSequences * kGreedyTokens
            << " tokens, else at most " << widest << " behind\n";
}

class GreedyAgreementGpuTest : public gpu_fixture::GpuTest {};

TEST_F(GreedyAgreementGpuTest, BundledModelsSayWhatTheySayOnTheCpu) {
  const auto device = take(gpu_accelerator(kDevice));
  for (const char* const name : {"kvlane-tiny", "kvlane-tiny-gqa", "kvlane-small"}) {
    SCOPED_TRACE(name);
    const auto directory = std::filesystem::path(kSourceDir) / "models" / name;
    const Text text = text_of(*take(Model::load(directory, {.isa = best_isa()})));
    const auto model = take(Model::load(directory, {.isa = best_isa(), .device = device.get()}));
    const KvShape shape = model->config().kv_shape();
    const std::size_t bytes = kSequences * blocks_for(kGreedyTokens) * shape.block_bytes();
    const auto memory = take(device->allocate(bytes));
    BlockPool pool = take(BlockPool::over(shape, {memory.get(), bytes}, take(device->copies())));
    const auto forward =
        take(DeviceForward::create(model->on_device(), *device, kGreedyTokens, kGreedyTokens));
    expect_agreement(text, decoded(*forward, pool, text));
    expect_agreement(text, prefilled(*forward, pool, text));
  }
}

}  // namespace
}  // namespace kvlane
