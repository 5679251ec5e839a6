// The forward pass of devices on emulated threads: against transformers in double precision, and
// what it promises about batches and errors.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_forward.h"

#include <gmock/gmock.h>

#include <array>
#include <deque>
#include <map>

#include "base/bf16.h"
#include "base/test_results.h"
#include "model/checkpoint.h"
#include "model/emulated_accelerator.h"
#include "model/expected_fixture.h"
#include "model/forward_fixture.h"
#include "model/model.h"
#include "ops/sampling.h"

namespace kvlane {
namespace {

using expected_fixture::Errors;
using expected_fixture::Expected;
using expected_fixture::kModels;
using forward_fixture::random_tokens;
using ::testing::HasSubstr;

constexpr int kDeviceRowsMax = 256;
constexpr int kLogitsMax = 4;

// A checkpoint on an emulated device, with a pool and a forward pass.
struct DeviceRunner {
  explicit DeviceRunner(const std::string& name, int multiprocessors = 2)
      : checkpoint(take(Checkpoint::open(kModels / name))),
        device(multiprocessors),
        model(take(load())),
        memory(take(device.allocate(pool_bytes()))),
        pool(take(BlockPool::over(model.config().kv_shape(), {memory.get(), pool_bytes()},
                                  take(device.copies())))),
        forward(take(DeviceForward::create(model, device, kDeviceRowsMax, kLogitsMax))) {}

  std::size_t pool_bytes() const { return 32 * model.config().kv_shape().block_bytes(); }
  Result<DeviceModel> load() {
    const ModelConfig& config = checkpoint.config();
    constexpr int kPositions = 512;
    const RopeTable rope(rope_inverse_frequencies(config, kPositions), kPositions,
                         static_cast<float>(config.rope_scaling.attention_factor));
    return DeviceModel::load(
        config, model_layout(config),
        [&](const auto& tensor, const auto& shape) { return checkpoint.tensor(tensor, shape); },
        rope, kPositions, device,
        [&](std::uint64_t done, std::uint64_t total) {
          EXPECT_LE(done, total);
          loaded = static_cast<double>(done) / static_cast<double>(total);
        });
  }

  // Appends `tokens` in pieces of `chunk`; the logits after each piece.
  std::vector<std::vector<float>> run(BlockTable& table, std::span<const std::int32_t> tokens,
                                      std::size_t chunk) {
    EXPECT_TRUE(table.grow(table.tokens() + static_cast<int>(tokens.size())).ok());
    std::vector<std::vector<float>> logits;
    while (!tokens.empty()) {
      const auto piece = tokens.first(std::min(chunk, tokens.size()));
      tokens = tokens.subspan(piece.size());
      const ForwardSpan span{&table, piece, 1};
      const Status status = forward->run({&span, 1}, {});
      EXPECT_TRUE(status.ok()) << status.message();
      logits.push_back(row(0));
    }
    return logits;
  }
  std::vector<float> row(int index) const {
    const auto logits = forward->logits(index);
    return {logits.begin(), logits.end()};
  }

  Checkpoint checkpoint;
  EmulatedAccelerator device;
  double loaded = 0;
  DeviceModel model;
  Accelerator::Memory memory;
  BlockPool pool;
  std::unique_ptr<DeviceForward> forward;
};

const char* const kNames[] = {"llama-mha-bf16-tied", "llama-gqa-bf16-llama3-sharded",
                              "qwen3-gqa-bf16", "mistral-gqa-bf16", "phi3-gqa-bf16-longrope"};

// The last positions of each prompt by decode attention, all before them by prefill attention. The
// weights of values are rounded to BF16 by both, which the plain implementation does, too.
TEST(DeviceForward, LogitsEqualTransformersWithinTheErrorOfAPlainImplementation) {
  for (const char* const name : kNames) {
    SCOPED_TRACE(name);
    const Expected expected(kModels / name);
    DeviceRunner runner(name);
    EXPECT_EQ(runner.loaded, 1);
    const std::size_t vocab = runner.model.config().vocab;
    Errors errors;
    const auto& prompts = expected.prompts();
    for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
      const std::vector<std::int32_t>& tokens = prompts[prompt];
      const std::span<const std::int32_t> all(tokens);
      const std::size_t head = all.size() - expected.positions(prompt);
      BlockTable table(runner.pool);
      if (head > 0) runner.run(table, all.first(head), head);
      const auto logits = runner.run(table, all.subspan(head), 1);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        errors.add(logits[i], expected.logits(prompt) + i * vocab);
      }
    }
    expected.expect_at_most(errors, 1.25, "bfloat16");
  }
}

// Emulated products do not depend on the number of rows, so here nothing does.
TEST(DeviceForward, ASequenceHasTheSameBitsInAnyChunkingAndCompany) {
  DeviceRunner runner("llama-gqa-bf16-llama3-sharded", 132);
  const auto tokens = random_tokens(150, 96, 1);
  const std::span<const std::int32_t> all(tokens);
  BlockTable whole(runner.pool);
  const auto prompt = runner.run(whole, all.first(149), 149).back();
  const auto next = runner.run(whole, all.last(1), 1).back();
  for (const std::size_t chunk : {7, 64, 100}) {
    BlockTable table(runner.pool);
    EXPECT_EQ(runner.run(table, all.first(149), chunk).back(), prompt) << chunk;
  }

  // With a prompt before it and a decoding sequence behind it.
  BlockTable table(runner.pool), other(runner.pool), third(runner.pool);
  runner.run(table, all.first(149), 149);
  runner.run(other, all.first(40), 40);
  ASSERT_TRUE(table.grow(150).ok() && other.grow(41).ok() && third.grow(80).ok());
  const ForwardSpan batch[] = {{&third, all.subspan(50, 80), true},
                               {&table, all.last(1), true},
                               {&other, all.subspan(7, 1), false}};
  ASSERT_TRUE(runner.forward->run(batch, {}).ok());
  EXPECT_EQ(runner.row(1), next);
  const auto of_third = runner.row(0);
  EXPECT_EQ(table.tokens(), 150);
  EXPECT_EQ(other.tokens(), 41);
  EXPECT_EQ(third.tokens(), 80);
  BlockTable alone(runner.pool);
  EXPECT_EQ(runner.run(alone, all.subspan(50, 80), 80).back(), of_third);
}

// A lane that waits for a layer's mark finds the layer's rows, though the pass has not ended and
// nobody has waited for it; one that does not wait finds what was there before.
TEST(DeviceForward, RowsOfALayerCanBeReadFromItsMarkOn) {
  DeviceRunner runner(kNames[1]);
  const auto tokens = random_tokens(20, 96, 5);
  const KvShape shape = runner.model.config().kv_shape();
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(20).ok());
  const auto slab_of = [&](int layer) {
    return reinterpret_cast<const std::byte*>(runner.pool.slab(table.id(0), layer));
  };
  const auto early = take(runner.device.lane()), waiting = take(runner.device.lane());
  std::vector<Bytes> read;
  const ForwardSpan span{&table, tokens, 0};
  const auto read_layer = [&](int layer, const std::shared_ptr<const DeviceMark>& mark) {
    ASSERT_EQ(layer, static_cast<int>(read.size()));
    Bytes before(shape.slab_bytes()), after(shape.slab_bytes());
    ASSERT_TRUE(early->copy(before.data(), slab_of(layer), before.size()).ok());
    ASSERT_TRUE(early->finish().ok());
    EXPECT_EQ(before, Bytes(before.size(), std::byte{0xFF})) << layer;
    ASSERT_TRUE(waiting->wait(*mark).ok());
    ASSERT_TRUE(waiting->copy(after.data(), slab_of(layer), after.size()).ok());
    ASSERT_TRUE(waiting->finish().ok());
    EXPECT_NE(after, before) << layer;
    read.push_back(std::move(after));
  };
  const Status done = runner.forward->run({&span, 1}, {.on_layer = read_layer});
  ASSERT_TRUE(done.ok()) << done.message();
  ASSERT_EQ(static_cast<int>(read.size()), shape.layers);
  for (int layer = 0; layer < shape.layers; ++layer) {
    Bytes now(shape.slab_bytes());
    ASSERT_TRUE(early->copy(now.data(), slab_of(layer), now.size()).ok());
    ASSERT_TRUE(early->finish().ok());
    EXPECT_EQ(now, read[layer]) << layer;
  }
}

TEST(DeviceForward, NoLogitsWhereNobodyWantsThem) {
  DeviceRunner runner(kNames[0]);
  const auto tokens = random_tokens(70, 96, 2);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(71).ok());
  const ForwardSpan span{&table, tokens, 0};
  ASSERT_TRUE(runner.forward->run({&span, 1}, {}).ok());
  EXPECT_EQ(table.tokens(), 70);
}

// K and V of the first layers are those of a pass through all of them, whatever the parts, and
// later layers are left alone.
TEST(DeviceForward, StopsBehindKAndVOfALayer) {
  DeviceRunner runner(kNames[1]);
  const auto tokens = random_tokens(100, 96, 6);
  const std::span<const std::int32_t> all(tokens);
  const KvShape shape = runner.model.config().kv_shape();
  const auto lane = take(runner.device.lane());
  const auto slab_of = [&](const BlockTable& table, int block, int layer) {
    Bytes slab(shape.slab_bytes());
    EXPECT_TRUE(
        lane->copy(slab.data(), runner.pool.slab_memory(table.id(block), layer), slab.size()).ok());
    EXPECT_TRUE(lane->finish().ok());
    return slab;
  };
  BlockTable whole(runner.pool), part(runner.pool);
  runner.run(whole, all.first(64), 64);
  ASSERT_TRUE(part.grow(64).ok());
  for (const int at : {0, 40}) {
    const ForwardSpan span{&part, all.subspan(at, at == 0 ? 40 : 24), 0};
    ASSERT_TRUE(runner.forward->run({&span, 1}, {.kv_layers = 1}).ok());
  }
  EXPECT_EQ(part.tokens(), 64);
  EXPECT_EQ(slab_of(part, 0, 0), slab_of(whole, 0, 0));
  ASSERT_GT(shape.layers, 1);
  EXPECT_EQ(slab_of(part, 0, 1), Bytes(shape.slab_bytes(), std::byte{0xFF}));
  const ForwardSpan wrong{&part, all.subspan(64, 1), 1};
  EXPECT_EQ(runner.forward->run({&wrong, 1}, {.kv_layers = 1}).code(), Code::kInternal);
  EXPECT_EQ(runner.forward->run({&wrong, 1}, {.kv_layers = shape.layers + 1}).code(),
            Code::kInternal);
}

// Fetches what passes keep on a lane of its own, and ends it when it is asked.
class Fetched {
 public:
  explicit Fetched(DeviceRunner& runner) : runner_(runner), lane_(take(runner.device.lane())) {}

  PassHooks hooks(std::span<const ForwardSpan> spans) {
    spans_ = {spans.begin(), spans.end()};
    return {.on_kept = [this](const KeptRows& kept) { return fetch(kept); }};
  }
  // Rows of a sequence so far, of each layer.
  std::map<int, Bytes> rows_of(const BlockTable& table) {
    EXPECT_TRUE(lane_->finish().ok());
    std::map<int, Bytes> rows;
    for (const Part& part : parts_) {
      if (part.table == &table) append_bytes(rows[part.layer], part.rows);
    }
    return rows;
  }
  bool answers = true;  // where it will have read them

 private:
  struct Part {
    const BlockTable* table;
    int layer;
    Bytes rows;
  };
  static void append_bytes(Bytes& to, const Bytes& more) {
    to.insert(to.end(), more.begin(), more.end());
  }

  std::shared_ptr<const DeviceMark> fetch(const KeptRows& kept) {
    const std::size_t row = runner_.model.config().hidden * sizeof(bf16);
    EXPECT_TRUE(lane_->wait(*kept.there).ok());
    for (int i = 0; i < kept.layers; ++i) {
      for (std::size_t span = 0; span < spans_.size(); ++span) {
        parts_.push_back(
            {spans_[span].table, kept.layer + i, Bytes(spans_[span].tokens.size() * row)});
        Part& part = parts_.back();
        const std::byte* const from = kept.rows + i * kept.layer_bytes + kept.first[span] * row;
        EXPECT_TRUE(lane_->copy(part.rows.data(), from, part.rows.size()).ok());
      }
    }
    return answers ? take(lane_->mark()) : nullptr;
  }

  DeviceRunner& runner_;
  const std::unique_ptr<DeviceLane> lane_;
  std::vector<ForwardSpan> spans_;
  std::deque<Part> parts_;
};

// Every layer keeps rows, or the last one.
void keep_layers(DeviceRunner& runner, int first, bool replays = true) {
  runner.forward =
      take(DeviceForward::create(runner.model, runner.device, kDeviceRowsMax, kLogitsMax, replays,
                                 {}, {first, runner.model.config().layers}));
}

// Prompts and decoding sequences side by side, in another order than the device has, then passes
// that are launched as a whole: each sequence has the rows that it has alone.
TEST(DeviceForward, KeptRowsAreThoseOfTheirSequences) {
  const auto tokens = random_tokens(150, 96, 8);
  const std::span<const std::int32_t> all(tokens);
  for (const int first : {0, 1}) {
    DeviceRunner runner(kNames[1]);
    keep_layers(runner, first);
    Fetched fetched(runner);
    BlockTable prompt(runner.pool), a(runner.pool), b(runner.pool);
    BlockTable* const tables[] = {&prompt, &a, &b};
    const int starts[] = {0, 60, 100};
    for (BlockTable* table : tables) ASSERT_TRUE(table->grow(50).ok());
    const auto pass = [&](std::array<int, 3> counts) {
      std::vector<ForwardSpan> spans;
      for (int i = 0; i < 3; ++i) {
        if (counts[i] == 0) continue;
        spans.push_back({tables[i], all.subspan(starts[i] + tables[i]->tokens(), counts[i]), 1});
      }
      const Status status = runner.forward->run(spans, fetched.hooks(spans));
      ASSERT_TRUE(status.ok()) << status.message();
    };
    pass({0, 9, 0});
    pass({0, 1, 7});
    pass({20, 1, 1});
    for (int i = 0; i < 4; ++i) pass({1, 1, 1});
    EXPECT_GT(runner.device.replays(), 1);
    for (int i = 0; i < 3; ++i) {
      DeviceRunner alone(kNames[1]);
      keep_layers(alone, first, false);
      Fetched expected(alone);
      BlockTable table(alone.pool);
      ASSERT_TRUE(table.grow(50).ok());
      // In the same parts: prompts and single tokens go through different kernels.
      for (int at = 0; at < tables[i]->tokens();) {
        const int part = at > 0 ? 1 : std::array{20, 9, 7}[i];
        const ForwardSpan span{&table, all.subspan(starts[i] + at, part), 1};
        ASSERT_TRUE(alone.forward->run({&span, 1}, expected.hooks({&span, 1})).ok());
        at += part;
      }
      const auto rows = fetched.rows_of(*tables[i]);
      EXPECT_EQ(rows.size(), std::size_t(runner.model.config().layers - first));
      EXPECT_TRUE(rows == expected.rows_of(table)) << first << " " << i;
    }
  }
}

// A lane that is late reads what its pass has kept, if the next one is told of it.
TEST(DeviceForward, PassesWaitForWhoReadsWhatTheLastOneKept) {
  const auto tokens = random_tokens(90, 96, 9);
  const std::span<const std::int32_t> all(tokens);
  DeviceRunner runner(kNames[1]);
  keep_layers(runner, 1);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(90).ok());
  const ForwardSpan span{&table, all.first(40), 0};
  Fetched truth(runner);
  ASSERT_TRUE(runner.forward->run({&span, 1}, truth.hooks({&span, 1})).ok());
  const auto expected = truth.rows_of(table);
  for (const bool answers : {true, false}) {
    Fetched fetched(runner);
    fetched.answers = answers;
    table.clear();
    ASSERT_TRUE(table.grow(90).ok());
    ASSERT_TRUE(runner.forward->run({&span, 1}, fetched.hooks({&span, 1})).ok());
    BlockTable other(runner.pool);
    ASSERT_TRUE(other.grow(50).ok());
    const ForwardSpan over{&other, all.subspan(40), 0};
    if (answers) {
      // Where the device cannot wait there is no pass, and the next one waits.
      runner.device.fail_call(1);
      EXPECT_EQ(runner.forward->run({&over, 1}, {}).code(), Code::kInternal);
      EXPECT_EQ(other.tokens(), 0);
      runner.device.fail_call(0);
    }
    ASSERT_TRUE(runner.forward->run({&over, 1}, {}).ok());
    EXPECT_EQ(fetched.rows_of(table) == expected, answers);
  }
}

TEST(DeviceForward, RefusesHooksOfTheCpu) {
  DeviceRunner runner(kNames[1]);
  const auto tokens = random_tokens(5, 96, 3);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(5).ok());
  const ForwardSpan span{&table, tokens, 1};
  const PassHooks refused[] = {{.on_input = [](int, std::span<const float>) {}},
                               {.on_queries = [](int, std::span<const std::uint16_t>, int) {}},
                               {.on_normed = [](int, ByteView) {}},
                               {.before_attention = [](int) {}}};
  for (const PassHooks& hooks : refused) {
    EXPECT_EQ(runner.forward->run({&span, 1}, hooks).code(), Code::kUnsupported);
    EXPECT_EQ(table.tokens(), 0);
  }
  EXPECT_TRUE(runner.forward->run({&span, 1}, {}).ok());
}

TEST(DeviceForward, APassThatDoesNotFitChangesNothing) {
  DeviceRunner runner(kNames[1]);
  const auto tokens = random_tokens(kDeviceRowsMax + 1, 96, 3);
  BlockTable table(runner.pool);
  ASSERT_TRUE(table.grow(kDeviceRowsMax + 1).ok());
  const ForwardSpan span{&table, tokens, 1};
  EXPECT_EQ(runner.forward->run({&span, 1}, {}).code(), Code::kInternal);
  EXPECT_EQ(runner.forward->run({}, {}).code(), Code::kInternal);
  EXPECT_EQ(table.tokens(), 0);
}

// Whichever call of the device fails: the tables stay, and the pass after it is right.
TEST(DeviceForward, AnyCallOfTheDeviceMayFail) {
  const auto tokens = random_tokens(150, 96, 4);
  const std::span<const std::int32_t> all(tokens);
  const auto begin = [&](DeviceRunner& runner, BlockTable& prompt, BlockTable& answer) {
    runner.run(prompt, all.first(3), 3);
    runner.run(answer, all.subspan(30, 5), 5);
    ASSERT_TRUE(prompt.grow(5).ok() && answer.grow(6).ok());
  };
  DeviceRunner runner(kNames[1]);
  DeviceRunner other(kNames[1]);
  BlockTable prompt(runner.pool), answer(runner.pool);
  begin(runner, prompt, answer);
  const ForwardSpan pass[] = {{&prompt, all.subspan(90, 2), true},
                              {&answer, all.subspan(130, 1), true}};
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    // Without memory yet for inputs and states.
    runner.device.fail_call(0);
    runner.forward =
        take(DeviceForward::create(runner.model, runner.device, kDeviceRowsMax, kLogitsMax));
    runner.device.fail_call(failed + 1);
    const Status status = runner.forward->run(pass, {});
    done = runner.device.calls() <= failed;
    EXPECT_EQ(status.code(), done ? Code::kOk : Code::kInternal) << failed;
    EXPECT_EQ(prompt.tokens(), done ? 5 : 3);
    EXPECT_EQ(answer.tokens(), done ? 6 : 5);
    if (failed % 8 != 0 || done) continue;
    runner.device.fail_call(0);
    BlockTable third(runner.pool), same(other.pool);
    EXPECT_EQ(runner.run(third, all.last(5), 5), other.run(same, all.last(5), 5)) << failed;
  }
  EXPECT_GT(failed, 12 * runner.model.config().layers);
  BlockTable other_prompt(other.pool), other_answer(other.pool);
  begin(other, other_prompt, other_answer);
  const ForwardSpan same[] = {{&other_prompt, pass[0].tokens, true},
                              {&other_answer, pass[1].tokens, true}};
  ASSERT_TRUE(other.forward->run(same, {}).ok());
  for (const int row : {0, 1}) EXPECT_EQ(runner.row(row), other.row(row));
}

// Decodes with a growing and shrinking number of sequences, past the ends of blocks.
std::vector<std::vector<float>> decode_some(DeviceRunner& runner) {
  const auto tokens = random_tokens(400, 96, 6);
  const std::span<const std::int32_t> all(tokens);
  std::vector<BlockTable> tables;
  for (const int length : {60, 3, 130, 61, 20}) {
    BlockTable& table = tables.emplace_back(runner.pool);
    runner.run(table, all.first(length), length);
    EXPECT_TRUE(table.grow(length + 20).ok());
  }
  std::vector<std::vector<float>> logits;
  std::size_t next = 200;
  for (const std::size_t count : {1, 1, 1, 3, 3, 3, 4, 4, 4, 2, 3, 3, 1}) {
    std::vector<ForwardSpan> spans;
    int wanted = 0;
    for (std::size_t i = 0; i < count; ++i) {
      // Not everybody's answer is wanted.
      spans.push_back({&tables[i], all.subspan(next++, 1), i != 1});
      wanted += i != 1 ? 1 : 0;
    }
    const Status status = runner.forward->run(spans, {});
    EXPECT_TRUE(status.ok()) << status.message();
    for (int i = 0; i < wanted; ++i) logits.push_back(runner.row(i));
  }
  return logits;
}

TEST(DeviceForward, ReplayedStepsHaveTheBitsOfThoseThatAreNot) {
  for (const char* const name : {kNames[1], kNames[2]}) {
    DeviceRunner plain(name), replaying(name);
    plain.forward =
        take(DeviceForward::create(plain.model, plain.device, kDeviceRowsMax, kLogitsMax, false));
    const auto expected = decode_some(plain);
    EXPECT_EQ(decode_some(replaying), expected) << name;
    EXPECT_EQ(plain.device.replays(), 0);
    EXPECT_GE(replaying.device.replays(), 5);
  }
}

// Where that is all that somebody wants, it comes instead of logits: in passes that are replayed
// and others.
TEST(DeviceForward, TellsTheMostLikelyTokenAsTheSamplerDoes) {
  DeviceRunner runner(kNames[1]);
  const auto tokens = random_tokens(100, 96, 7);
  const std::span<const std::int32_t> all(tokens);
  std::vector<BlockTable> tables, same;
  for (int i = 0; i < 4; ++i) {
    for (auto* const list : {&tables, &same}) {
      BlockTable& table = list->emplace_back(runner.pool);
      runner.run(table, all.subspan(10 * i, 5), 5);
      ASSERT_TRUE(table.grow(20).ok());
    }
  }
  for (int pass = 0; pass < 4; ++pass) {
    const std::size_t count = pass == 3 ? 2 : 1;  // prompts in the last one
    std::vector<ForwardSpan> spans, with_logits;
    for (int i = 0; i < 4; ++i) {
      const auto next = all.subspan(50 + 10 * i + pass, count);
      spans.push_back({&tables[i], next, i != 2, i % 2 == 1});
      with_logits.push_back({&same[i], next, i != 2});
    }
    ASSERT_TRUE(runner.forward->run(with_logits, {}).ok());
    std::vector<std::vector<float>> logits;
    for (int i = 0; i < 3; ++i) {
      logits.push_back(runner.row(i));
      EXPECT_EQ(runner.forward->best(i), std::nullopt);
    }
    ASSERT_TRUE(runner.forward->run(spans, {}).ok());
    EXPECT_EQ(runner.row(0), logits[0]) << pass;
    EXPECT_EQ(runner.forward->best(0), std::nullopt);
    for (const int i : {1, 2}) {  // the second and the fourth span
      EXPECT_EQ(runner.forward->best(i), sample_token(logits[i], {.temperature = 0}, {}, 0));
    }
  }
  EXPECT_GE(runner.device.replays(), 2);
}

// Then it goes on kernel by kernel, and nobody is told.
TEST(DeviceForward, GoesOnWhereTheDeviceKeepsNoWork) {
  DeviceRunner plain(kNames[1]), refusing(kNames[1]);
  const auto expected = decode_some(plain);
  refusing.device.refuse_captures();
  EXPECT_EQ(decode_some(refusing), expected);
  EXPECT_EQ(refusing.device.replays(), 0);
}

TEST(DevicePass, PadsToFewCounts) {
  const int expected[] = {0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24};
  for (int count = 0; count < 18; ++count) EXPECT_EQ(padded_count(count), expected[count]);
  for (int count = 1; count < 5000; ++count) {
    EXPECT_GE(padded_count(count), count);
    EXPECT_LT(padded_count(count), 1.5 * count) << count;
    EXPECT_EQ(padded_count(padded_count(count)), padded_count(count));
  }
}

TEST(DeviceForward, IsNotMadeWithoutItsMemory) {
  DeviceRunner runner(kNames[0]);
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    runner.device.fail_call(failed + 1);
    const auto forward =
        DeviceForward::create(runner.model, runner.device, kDeviceRowsMax, kLogitsMax);
    done = runner.device.calls() <= failed;
    EXPECT_EQ(forward.status().code(), done ? Code::kOk : Code::kInternal) << failed;
  }
  EXPECT_GT(failed, 2);
}

TEST(DeviceModel, IsNotLoadedWhenAnyCallOfTheDeviceFails) {
  DeviceRunner runner(kNames[0]);
  int failed = 0;
  for (bool done = false; !done; ++failed) {
    runner.device.fail_call(failed + 1);
    const auto model = runner.load();
    done = runner.device.calls() <= failed;
    EXPECT_EQ(model.status().code(), done ? Code::kOk : Code::kInternal) << failed;
  }
  EXPECT_GT(failed, 10 * runner.model.config().layers);
}

TEST(DeviceModel, LayersThatAreNotLlamasAreRefusedByName) {
  EmulatedAccelerator device;
  for (const auto& [name, reason] : {std::pair{"qwen2-gqa-bf16", "biases"},
                                     {"falcon-gqa-bf16", "layer norms"},
                                     {"mistral-gqa-bf16-window", "sliding window, 70 tokens"},
                                     {"opt-mha-bf16", "layer norms"}}) {
    const auto model = Model::load(kModels / name, {.isa = best_isa(), .device = &device});
    ASSERT_FALSE(model.ok()) << name;
    EXPECT_EQ(model.status().code(), Code::kUnsupported);
    EXPECT_THAT(model.status().message(), HasSubstr(reason));
  }
}

TEST(DeviceModel, WeightsOfOtherTypesAreRefusedByName) {
  for (const char* const name : {"llama-mqa-f32", "llama-gqa-f16"}) {
    const Checkpoint checkpoint = take(Checkpoint::open(kModels / name));
    EmulatedAccelerator device;
    const RopeTable rope(rope_inverse_frequencies(checkpoint.config(), 8), 8);
    const auto model = DeviceModel::load(
        checkpoint.config(), model_layout(checkpoint.config()),
        [&](const auto& tensor, const auto& shape) { return checkpoint.tensor(tensor, shape); },
        rope, 8, device, {});
    ASSERT_FALSE(model.ok());
    EXPECT_EQ(model.status().code(), Code::kUnsupported);
    EXPECT_THAT(model.status().message(), HasSubstr("model.embed_tokens.weight"));
  }
}

}  // namespace
}  // namespace kvlane
