// Prefill on the ranks of one layout, decode on those of another, for every family of models, over
// every way that links go: the same tokens as in one process.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_fixture.h"
#include "model/expected_fixture.h"
#include "ranks/ranks_fixture.h"
#include "transfer/tcp.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using ranks_fixture::RankThreads;

struct Layout {
  int stages = 1;
  int ranks = 1;  // of each stage; 1 x 1: one process
};

// A worker whose model is computed by ranks, or by itself.
struct RankedWorker {
  RankedWorker(Network& network, const std::string& model, Layout layout, EngineOptions options) {
    // No more ranks than there are KV heads to share out.
    layout.ranks = std::min(layout.ranks, fixture_model(model).config().kv_heads);
    const bool alone = layout.stages * layout.ranks == 1;
    whole = take(Model::load(kModels / model, {.isa = best_isa(), .weights = alone}));
    if (!alone) {
      threads = std::make_unique<RankThreads>(kModels / model, layout.stages, layout.ranks);
      EXPECT_TRUE(threads->group->wait_for_ranks(*whole).ok());
      options.ranks = threads->group.get();
    }
    worker = std::make_unique<Worker>(network, *whole, options);
  }

  std::unique_ptr<Model> whole;
  std::unique_ptr<RankThreads> threads;
  std::unique_ptr<Worker> worker;
};

// Pushes a prompt from one to the other.
std::vector<std::int32_t> answer_of(Worker& prefill, Worker& decode,
                                    const GenerationRequest& request) {
  const TransferId transfer = random_transfer_id();
  const RequestId reserved = take(decode.engine->reserve(request, transfer));
  Answer answer;
  EXPECT_TRUE(decode.engine->attach(reserved, answer.on_update()).ok());
  Prefilled prefilled;
  const auto pushed = prefill.engine->prefill_and_push(request, decode.endpoint->address(),
                                                       transfer, prefilled.on_prefilled());
  EXPECT_TRUE(pushed.ok()) << pushed.status().message();
  EXPECT_TRUE(prefilled.wait().finish.error.ok()) << prefilled.wait().finish.error.message();
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  return answer.tokens();
}

struct Case {
  std::string model;
  Layout prefill, decode;
  std::string codec;
  TcpOptions links;
};

void expect_the_same(const Case& tried) {
  SCOPED_TRACE(tried.model + " " + tried.codec + ", " + std::to_string(tried.links.streams) +
               (tried.links.shared_memory ? " shared" : " TCP"));
  const auto network = take(make_tcp_network(tried.links));
  RankedWorker prefill(*network, tried.model, tried.prefill,
                       {.chunk_tokens = 100, .kv_codec = tried.codec});
  RankedWorker decode(*network, tried.model, tried.decode, {});
  for (const int prompt : {1, 64, 200}) {
    const GenerationRequest request = make_mixed_request(prompt, 12, prompt);
    EXPECT_EQ(answer_of(*prefill.worker, *decode.worker, request),
              alone(fixture_model(tried.model), request))
        << prompt;
  }
  prefill.worker->expect_clean();
  decode.worker->expect_clean();
}

TEST(RankedDisaggregation, EveryFamilyFeedsOtherLayouts) {
  const std::vector<std::string> codecs = {"none", "splitzip", "splitzip:channel"};
  const std::vector<TcpOptions> links = {
      {.shared_memory = false}, {.streams = 3, .shared_memory = false}, {.shared_memory = true}};
  const std::vector<std::pair<Layout, Layout>> layouts = {
      {{2, 2}, {1, 2}}, {{2, 2}, {1, 1}}, {{1, 2}, {2, 1}}, {{1, 1}, {2, 2}}};
  std::size_t number = 0;
  const auto try_next = [&](const char* model) {
    const auto& [prefill, decode] = layouts[number % layouts.size()];
    expect_the_same(
        {model, prefill, decode, codecs[number % codecs.size()], links[number / 2 % links.size()]});
    ++number;
  };
  for (const char* model :
       {"llama-mha-bf16-tied", "llama-f32-yarn", "llama-bf16-biases-linear",
        "mistral-gqa-bf16-window", "qwen2-gqa-bf16", "qwen3-gqa-bf16", "phi3-gqa-bf16-longrope",
        "falcon-gqa-bf16", "falcon-mha-f32-sequential", "opt-mha-bf16"}) {
    try_next(model);
  }
  for (int i = 0; i < 4; ++i) try_next("llama-gqa-bf16-llama3-sharded");
}

}  // namespace
}  // namespace kvlane
