// Prefill on the ranks of one layout, decode on those of another, for every family of models, over
// every way that links go and in formats of every kind: the same tokens as in one process.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/test_sanitizers.h"
#include "engine/engine_fixture.h"
#include "engine/ranked_fixture.h"
#include "model/expected_fixture.h"
#include "quant/heads_together.h"
#include "ranks/ranks_fixture.h"
#include "transfer/tcp.h"
#include "transfer/ucx.h"

namespace kvlane {
namespace {

using expected_fixture::kModels;
using ranked_fixture::format_of;
using ranked_fixture::Layout;
using ranks_fixture::RankThreads;

constexpr std::size_t kPoolBytes = std::size_t{1} << 25;

// A worker whose model is computed by ranks, or by itself.
struct RankedWorker {
  RankedWorker(Network& network, const std::string& model, Layout layout, EngineOptions options,
               const std::string& format = "bf16") {
    // No more ranks than there are KV heads to share out.
    layout.ranks = std::min(layout.ranks, fixture_model(model).config().kv_heads);
    const bool alone = layout.stages * layout.ranks == 1;
    whole = take(Model::load(kModels / model, {.isa = best_isa(), .weights = alone}));
    if (!alone) {
      threads =
          std::make_unique<RankThreads>(kModels / model, layout.stages, layout.ranks,
                                        [](const Model& part, RankProcessOptions& process) {
                                          process.make_format = [&part](const std::string& wanted) {
                                            return Result(format_of(part, wanted));
                                          };
                                        });
      EXPECT_TRUE(threads->group->wait_for_ranks(*whole).ok());
      options.ranks = threads->group.get();
    }
    options.kv_format = format_of(*whole, format);
    worker = std::make_unique<Worker>(network, *whole, options);
  }

  std::unique_ptr<Model> whole;
  std::unique_ptr<RankThreads> threads;
  std::unique_ptr<Worker> worker;
};

// Of a prompt that is pushed from one to the other.
std::vector<std::int32_t> pushed_answer(Worker& prefill, Worker& decode,
                                        const GenerationRequest& request) {
  Push push(prefill, decode, request);
  EXPECT_EQ(push.prefilled.wait().finish.error.message(), "");
  EXPECT_EQ(push.answer.wait().error.message(), "");
  return push.answer.tokens();
}

struct RankedCase {
  std::string model;
  Layout prefill, decode;
  std::string codec;
  std::string format = "bf16";
};

void expect_the_same(Network& network, const RankedCase& tried) {
  RankedWorker prefill(network, tried.model, tried.prefill,
                       {.kv_bytes = kPoolBytes, .chunk_tokens = 100, .kv_codec = tried.codec},
                       tried.format);
  RankedWorker decode(network, tried.model, tried.decode, {.kv_bytes = kPoolBytes}, tried.format);
  const Model& whole = fixture_model(tried.model);
  for (const int prompt : {1, 64, 200}) {
    const GenerationRequest request = make_mixed_request(prompt, 12, prompt);
    EXPECT_EQ(pushed_answer(*prefill.worker, *decode.worker, request),
              alone(whole, request,
                    {.kv_bytes = kPoolBytes, .kv_format = format_of(whole, tried.format)}))
        << prompt;
  }
  prefill.worker->expect_clean();
  decode.worker->expect_clean();
}

// All have two KV heads or more for ranks to share.
constexpr const char* kFamilies[] = {"llama-mha-bf16-tied",
                                     "llama-gqa-bf16-llama3-sharded",
                                     "llama-bf16-biases-linear",
                                     "llama-29-bf16",
                                     "mistral-grouped-bf16-window",
                                     "qwen2-grouped-bf16",
                                     "qwen3-gqa-bf16",
                                     "phi3-gqa-bf16-longrope",
                                     "falcon-gqa-bf16",
                                     "falcon-mha-f32-sequential",
                                     "opt-mha-bf16"};
const std::vector<std::string> kCodecs = {"none", "splitzip", "splitzip:channel"};

// The ways that links go, each with a network of its own; over UCX in ucx_test.
struct Links {
  struct Way {
    const char* name;
    std::unique_ptr<Network> network;
  };

  Links() {
    const auto add = [this](const char* name, const TcpOptions& options) {
      ways.push_back({name, take(make_tcp_network(options))});
    };
    add("TCP", {.shared_memory = false});
    add("three connections", {.streams = 3, .shared_memory = false});
    add("shared memory", {.shared_memory = true});
#ifdef KVLANE_TEST_UCX
    ways.push_back({"UCX", take(make_ucx_network({.devices = "lo"}))});
#endif
  }

  std::vector<Way> ways;
};

TEST(RankedDisaggregation, EveryFamilyGoesOverEveryLinkInEveryCodec) {
  const Links links;
  for (const char* const model : kFamilies) {
    for (const std::string& codec : every_other_if(kSanitized, kCodecs)) {
      for (const Links::Way& way : links.ways) {
        SCOPED_TRACE(std::string(model) + " " + codec + " over " + way.name);
        expect_the_same(*way.network, {model, {}, {}, codec});
      }
    }
  }
}

// Each with another codec and link; over all families each layout has every pair of these.
TEST(RankedDisaggregation, EveryFamilyFeedsOtherLayouts) {
  const Links links;
  const std::pair<Layout, Layout> layouts[] = {
      {{2, 2}, {1, 2}}, {{2, 2}, {1, 1}}, {{1, 2}, {2, 1}}, {{1, 1}, {2, 2}}};
  std::size_t family = 0;
  for (const char* const model : kFamilies) {
    std::size_t number = family++;
    for (const auto& [prefill, decode] : layouts) {
      const std::string& codec = kCodecs[number % kCodecs.size()];
      const Links::Way& way = links.ways[(number / kCodecs.size() + number) % links.ways.size()];
      ++number;
      SCOPED_TRACE(std::string(model) + " " + codec + " over " + way.name + ", " +
                   std::to_string(prefill.stages) + " x " + std::to_string(prefill.ranks) + " to " +
                   std::to_string(decode.stages) + " x " + std::to_string(decode.ranks));
      expect_the_same(*way.network, {model, prefill, decode, codec});
    }
  }
}

// One of each kind that needs no tables, on heads as each family has them.
TEST(RankedDisaggregation, EveryFamilyGoesInFormatsOfEveryKind) {
  const Links links;
  std::size_t number = 0;
  for (const char* const model : kFamilies) {
    for (const char* const format : {"int4", "fp8_e4m3", "mxfp4", "kivi:bits=2", "hack"}) {
      const std::string& codec = kCodecs[number % kCodecs.size()];
      const Links::Way& way = links.ways[(number / kCodecs.size() + number) % links.ways.size()];
      ++number;
      SCOPED_TRACE(std::string(model) + " in " + format + ", " + codec + " over " + way.name);
      expect_the_same(*way.network, {model, {}, {}, codec, format});
    }
    expect_the_same(*links.ways[0].network, {model, {2, 2}, {1, 1}, "none", "hack"});
  }
}

}  // namespace
}  // namespace kvlane
