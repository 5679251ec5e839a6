// Axes of a prompt's own: rows against the best that so many dimensions can be; engines that make
// rows again in every pass: answers, accounts, company, memory, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "engine/online_axes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "cpu/parallel.h"
#include "engine/engine_fixture.h"
#include "ops/eigenvectors.h"

namespace kvlane {
namespace {

constexpr KvShape kAxesShape{.layers = 2, .kv_heads = 2, .head_dim = 48};
constexpr int kAxesTokens = 150;  // two blocks and an open one
constexpr int kAxesBlocks = 3;

// A pool and a table of kAxesTokens tokens, whose memory is all random rows: channels of falling
// sizes, mixed with their neighbours.
struct AxesCache {
  AxesCache() {
    EXPECT_TRUE(table.grow(kAxesTokens).ok());
    table.set_tokens(kAxesTokens);
    std::vector<float> row(kAxesShape.head_dim);
    for (int block = 0; block < kAxesBlocks; ++block) {
      for (int layer = 0; layer < kAxesShape.layers; ++layer) {
        std::uint16_t* at = table.rows(block, layer);
        const std::size_t rows = kAxesShape.slab_bytes() / 2 / kAxesShape.head_dim;
        for (std::uint32_t r = 0; r < rows; ++r) {
          for (std::uint32_t i = 0; i < row.size(); ++i) {
            const auto die = philox4x32(
                7, {i, r, static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(layer)})[0];
            row[i] = static_cast<float>((die * 0x1p-31 - 1) * std::pow(0.95, i));
          }
          for (std::uint32_t i = 0; i < row.size(); ++i) {
            *at++ = to_bf16(row[i] + row[(i + 5) % row.size()]).bits;
          }
        }
      }
    }
  }

  std::vector<std::uint16_t> all(int layer) const {
    std::vector<std::uint16_t> copy;
    for (int block = 0; block < kAxesBlocks; ++block) {
      const std::uint16_t* const rows = table.rows(block, layer);
      copy.insert(copy.end(), rows, rows + kAxesShape.slab_bytes() / 2);
    }
    return copy;
  }

  BlockPool pool = take(BlockPool::create(kAxesShape, kAxesBlocks* kAxesShape.block_bytes()));
  BlockTable table{pool};
};

// Row `token` of K (0) or V (1) of a head in what AxesCache::all() gave.
const std::uint16_t* row_in(const std::vector<std::uint16_t>& all, int token, int head, int side) {
  const int plane = (token / kBlockTokens * kAxesShape.kv_heads + head) * 2 + side;
  return &all[plane * kAxesShape.page_plane_elements() +
              token % kBlockTokens * kAxesShape.head_dim];
}

double at(const std::uint16_t* row, int i) { return to_float(bf16{row[i]}); }

// What one plane lost, what it had, and what its values along the last axes had, as squares.
struct Loss {
  double lost = 0;
  double all = 0;
  double dropped = 0;
};

Loss loss_of(const std::vector<std::uint16_t>& before, const std::vector<std::uint16_t>& after,
             int head, int side, int width) {
  const int d = kAxesShape.head_dim;
  Loss loss;
  std::vector<double> gram(std::size_t(d) * d);
  for (int token = 0; token < kAxesTokens; ++token) {
    const std::uint16_t* const x = row_in(before, token, head, side);
    const std::uint16_t* const y = row_in(after, token, head, side);
    for (int i = 0; i < d; ++i) {
      loss.all += at(x, i) * at(x, i);
      loss.lost += (at(x, i) - at(y, i)) * (at(x, i) - at(y, i));
      for (int j = i; j < d; ++j) gram[i * d + j] += at(x, i) * at(x, j);
    }
  }
  const Eigenvectors found = take(eigenvectors_of(gram, d));
  for (int i = width; i < d; ++i) loss.dropped += found.values[i];
  return loss;
}

// Coefficients round by at most 2^-9 of themselves and so do values: together less than 2^-8 of a
// row's length, by the triangle inequality the most by which the loss differs from that of the best
// approximation, the values along the axes that are left out.
TEST(OnlineAxes, RowsAreTheBestThatSoManyDimensionsCanBe) {
  for (const double keep : {1.0, 0.5, 0.34}) {
    const int width = keep == 1 ? 48 : 32;  // rounded up: 24 and 16.3
    for (const Isa isa : {Isa::kScalar, best_isa()}) {
      const AxesCache cache;
      const std::vector<std::uint16_t> other = cache.all(0);
      const std::vector<std::uint16_t> before = cache.all(1);
      const OnlineAxes axes = take(OnlineAxes::decompose(cache.table, keep, isa));
      EXPECT_EQ(cache.all(1), before);
      axes.restore_rows(cache.table, 1);
      EXPECT_EQ(cache.all(0), other) << "another layer";
      const std::vector<std::uint16_t> after = cache.all(1);
      for (int plane = 0; plane < 2 * kAxesShape.kv_heads; ++plane) {
        const Loss loss = loss_of(before, after, plane / 2, plane % 2, width);
        EXPECT_NEAR(std::sqrt(loss.lost), std::sqrt(loss.dropped), 0x1p-8 * std::sqrt(loss.all));
        EXPECT_EQ(std::sqrt(loss.dropped) > 0x1p-5 * std::sqrt(loss.all), keep < 1) << plane;
      }
    }
  }
}

TEST(OnlineAxes, RestoringTwiceOrOnOtherThreadsGivesTheSameRowsAndTouchesNoOthers) {
  const AxesCache cache;
  const std::vector<std::uint16_t> before = cache.all(0);
  const OnlineAxes axes = take(OnlineAxes::decompose(cache.table, 0.5, best_isa()));
  axes.restore_rows(cache.table, 0);
  const std::vector<std::uint16_t> once = cache.all(0);
  EXPECT_NE(once, before);
  {
    const ParallelScope one(1);
    const AxesCache again;
    take(OnlineAxes::decompose(again.table, 0.5, best_isa())).restore_rows(again.table, 0);
    EXPECT_EQ(again.all(0), once);
  }
  axes.restore_rows(cache.table, 0);
  EXPECT_EQ(cache.all(0), once);
  // Behind the prompt's last token an answer's rows will stand.
  for (int plane = 0; plane < 2 * kAxesShape.kv_heads; ++plane) {
    const std::size_t bytes = (kAxesBlocks * kBlockTokens - kAxesTokens) * kAxesShape.head_dim * 2;
    EXPECT_EQ(std::memcmp(row_in(once, kAxesTokens, plane / 2, plane % 2),
                          row_in(before, kAxesTokens, plane / 2, plane % 2), bytes),
              0);
  }
}

// The engine: head_dim 32, so that half of it is 16.
const Model& model() { return fixture_model("qwen3-gqa-bf16"); }

EngineOptions online_options(double keep, int blocks) {
  return {.kv_bytes = blocks * model().config().kv_shape().block_bytes(), .online_axes = keep};
}

struct Asked {
  Answer::One answer;
  TimeAccount account;
};

Asked ask_with_account(Engine& engine, const GenerationRequest& request) {
  Answer answer;
  EXPECT_TRUE(engine.submit(request, answer.on_update()).ok());
  EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
  return {answer.all()[0], answer.finish().account};
}

// The first token comes from the prompt's own rows. For the second they are made again: how likely
// it is has moved by rounding where all dimensions stay, and by more where half of them do.
TEST(OnlineEngine, AllDimensionsAreTheSameAnswerWithinRounding) {
  double moved_all = 0;
  double moved_half = 0;
  const auto rows = make_engine(online_options(0, 20), model());
  const auto all = make_engine(online_options(1, 20), model());
  const auto half = make_engine(online_options(0.5, 20), model());
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    GenerationRequest request = make_request(200, 2, seed);
    request.logprobs = 0;
    // Always the same two tokens, whatever is likely.
    request.sampling.logit_bias = {{static_cast<std::int32_t>(5 + seed), 100.0F}};
    const Asked expected = ask_with_account(*rows, request);
    ASSERT_EQ(expected.answer.logprobs.size(), 2U);
    const auto moved = [&](Engine& engine) {
      const Asked asked = ask_with_account(engine, request);
      EXPECT_EQ(asked.answer.tokens, expected.answer.tokens);
      EXPECT_EQ(asked.answer.logprobs[0], expected.answer.logprobs[0]);
      const double by = asked.answer.logprobs[1].logprob - expected.answer.logprobs[1].logprob;
      return std::abs(by);
    };
    moved_all += moved(*all);
    moved_half += moved(*half);
  }
  EXPECT_GT(moved_all, 0) << "rows are rounded twice";
  EXPECT_LT(10 * moved_all, moved_half);
}

TEST(OnlineEngine, TellsWhatAxesAndRowsTook) {
  for (const double keep : {0.0, 0.5}) {
    const auto engine = make_engine(online_options(keep, 20), model());
    const TimeAccount account = ask_with_account(*engine, make_request(200, 20, 3)).account;
    EXPECT_EQ(account.prefill_quantise > 0, keep > 0);
    EXPECT_EQ(account.decode_dequantise > 0, keep > 0);
    EXPECT_EQ(account.prefill_dequantise, 0);
    EXPECT_LT(account.prefill_attention + account.prefill_quantise, account.prefill);
    EXPECT_LT(account.decode_attention + account.decode_dequantise, account.decode);
  }
}

TEST(OnlineEngine, CompanyChunksAndShortMemoryChangeNoAnswer) {
  const auto alone = make_engine(online_options(0.5, 40), model());
  EngineOptions options = online_options(0.5, 9);
  options.chunk_tokens = 70;
  const auto crowded = make_engine(options, model());
  std::vector<Answer> answers(10);
  std::vector<GenerationRequest> requests;
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    requests.push_back(make_mixed_request(40 + 31 * static_cast<int>(i), 50, i));
    // Later ones are more urgent: those that run have to stop.
    requests.back().priority = -static_cast<int>(i);
    ASSERT_TRUE(crowded->submit(requests[i], answers[i].on_update()).ok());
    if (i % 3 == 0) answers[i].wait_for_tokens(5);
  }
  for (std::uint32_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].wait().error.ok()) << answers[i].wait().error.message();
    EXPECT_EQ(answers[i].all()[0], ask_with_account(*alone, requests[i]).answer) << i;
  }
  crowded->wait_idle();
  EXPECT_GT(crowded->load().preemptions, 0);
  EXPECT_EQ(crowded->load().blocks_free, 9);
  EXPECT_EQ(alone->load().prefix_hit_tokens, 0) << "nobody shares";
}

TEST(OnlineEngine, SeveralAnswersToOnePromptShareItsAxes) {
  // Few: room for one at a time.
  expect_answers_in_any_room(
      [](int blocks) { return make_engine(online_options(0.5, blocks), model()); }, 40, 4);
}

TEST(OnlineEngine, AnAbortedAnswerGivesItsBlocksBack) {
  const auto engine = make_engine(online_options(0.5, 20), model());
  const GenerationRequest after = make_request(200, 10, 4);
  const Answer::One expected = ask_with_account(*engine, after).answer;
  Answer answer;
  const RequestId id = take(engine->submit(make_request(200, 300, 3), answer.on_update()));
  answer.wait_for_tokens(3);
  engine->abort(id);
  EXPECT_EQ(answer.wait().error.code(), Code::kAborted);
  engine->wait_idle();
  EXPECT_EQ(engine->load().blocks_free, 20);
  EXPECT_EQ(ask_with_account(*engine, after).answer, expected);
}

TEST(OnlineEngine, RefusesWhatCannotBe) {
  const std::string sentence =
      "prompts have axes of their own in caches in bf16 that keep all tokens, where one process "
      "computes prompt and answer on the CPU";
  const auto refused = [](Endpoint* endpoint, const EngineOptions& options) {
    return Engine::create(model(), fixture_tokenizer(), endpoint, options).status().message();
  };
  const auto network = TestNetwork::create({.drive = TestNetwork::Drive::kThread});
  EndpointOptions door;
  door.model = model().identity();
  door.codecs = codec_names();
  const auto endpoint = take(Endpoint::start(*network, door));
  EXPECT_EQ(refused(endpoint.get(), online_options(0.5, 10)), sentence);
  EngineOptions coded = online_options(0.5, 80);
  coded.kv_format = take(make_kv_format("int8", {.shape = model().config().kv_shape()}));
  EXPECT_EQ(refused(nullptr, coded), sentence);
  EngineOptions evicting = online_options(0.5, 10);
  evicting.eviction = take(make_eviction_rule("h2o:keep=0.5"));
  EXPECT_EQ(refused(nullptr, evicting), sentence);
  for (const double keep : {-0.5, 1.5, std::nan("")}) {
    EXPECT_EQ(refused(nullptr, online_options(keep, 10)),
              "online_axes is a share above 0 and at most 1 of dimensions, or 0");
  }
}

}  // namespace
}  // namespace kvlane
