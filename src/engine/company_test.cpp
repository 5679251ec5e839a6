// Every answer under load equals the answer alone, bit for bit, and nothing leaks: thousands of
// small requests over engines of random shape, with too little memory, shared prefixes, aborts and
// several workers.
//
// Runs for KVLANE_COMPANY_SECONDS (5) seconds; KVLANE_COMPANY_SEED repeats a run.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "engine/engine_fixture.h"
#include "quant/format_fixture.h"

namespace kvlane {
namespace {

std::uint32_t environment(const char* name, std::uint32_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : static_cast<std::uint32_t>(std::atoi(text));
}

// Random numbers with a seed that is told when something fails.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : engine_(seed) {}
  int between(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(engine_);
  }
  bool chance(double probability) { return std::bernoulli_distribution(probability)(engine_); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + between(0, static_cast<int>(values.size()) - 1));
  }

 private:
  std::mt19937 engine_;
};

// A request and what it answers alone.
struct CompanyCase {
  GenerationRequest request;
  std::vector<Answer::One> expected;
};

constexpr int kDocuments = 4;
constexpr int kPromptMax = 300;
constexpr int kTokensMax = 70;

GenerationRequest random_request(Dice& dice) {
  GenerationRequest request;
  // Most prompts begin with a part of a few documents, as conversations do.
  request.prompt = random_prompt(kPromptMax, dice.between(0, kDocuments - 1));
  request.prompt.resize(dice.one_of({1, 40, 63, 64, 65, 128, 129, 192, dice.between(1, 250)}));
  const std::vector<std::int32_t> own = random_prompt(50, 1000 + dice.between(0, 1 << 20));
  request.prompt.insert(request.prompt.end(), own.begin(), own.begin() + dice.between(0, 50));
  request.max_tokens = dice.between(1, kTokensMax);
  request.n = dice.chance(0.2) ? dice.between(2, 4) : 1;
  request.seed = dice.between(0, 1 << 30);
  request.ignore_eos = dice.chance(0.7);
  request.sampling.temperature = dice.chance(0.5) ? 0.0F : 1.1F;
  if (dice.chance(0.3)) request.sampling.top_p = 0.8F;
  if (dice.chance(0.2)) request.sampling.top_k = 7;
  if (dice.chance(0.2)) request.sampling.repetition_penalty = 1.3F;
  if (dice.chance(0.2)) request.sampling.frequency_penalty = 0.4F;
  if (dice.chance(0.2)) request.sampling.logit_bias = {{dice.between(3, 95), 3.0F}};
  if (dice.chance(0.2)) request.min_tokens = dice.between(0, request.max_tokens);
  if (dice.chance(0.2)) request.stop_tokens = {dice.between(3, 95)};
  if (dice.chance(0.2))
    request.stop = {std::string(1, static_cast<char>('a' + dice.between(0, 25)))};
  if (dice.chance(0.3)) request.logprobs = dice.between(0, 3);
  if (dice.chance(0.2)) request.cache_salt = "tenant";
  request.priority = dice.one_of({0, 0, 0, -1, 2});
  request.client = dice.one_of({"", "anna", "otto"});
  return request;
}

std::vector<CompanyCase> make_cases(Dice& dice, int count) {
  const auto engine = take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr,
                                          {.kv_bytes = std::size_t{1} << 24,
                                           .prefix_caching = false,
                                           .chunk_tokens = 1000,
                                           .sequences_max = 4}));
  std::vector<CompanyCase> cases;
  for (int i = 0; i < count; ++i) {
    CompanyCase made{random_request(dice), {}};
    // One answer at a time, so that not even the others of the request are company.
    Answer answers;
    EXPECT_TRUE(engine->submit(made.request, answers.on_update()).ok());
    EXPECT_TRUE(answers.wait().error.ok());
    made.expected = answers.all();
    cases.push_back(std::move(made));
  }
  return cases;
}

EngineOptions random_options(Dice& dice) {
  const std::size_t block = fixture_model().config().kv_shape().block_bytes();
  EngineOptions options;
  options.kv_bytes = block * dice.one_of({7, 8, 12, 20, 100});
  options.host_bytes = block * dice.one_of({0, 3, 40});
  options.prefix_caching = dice.chance(0.8);
  options.chunk_tokens = dice.one_of({1, 7, 16, 100, 512});
  options.slowdown_max = dice.one_of({1.1, 2.0, 10.0});
  options.sequences_max = dice.one_of({1, 2, 5, 16});
  options.kv_codec = dice.one_of({"none", "splitzip"});
  options.push_whole = dice.chance(0.3);
  return options;
}

// Now and then a coded cache whose slabs are the rows: the answers are the same.
std::shared_ptr<const KvFormat> maybe_format(Dice& dice) {
  if (!dice.chance(0.4)) return nullptr;
  const KvShape shape = fixture_model().config().kv_shape();
  const KvWindow window =
      dice.chance(0.5) ? KvWindow{} : KvWindow{dice.between(0, 2), dice.between(0, 2)};
  return std::make_shared<format_fixture::Identity>(shape, window);
}

EngineOptions options_for(Dice& dice, std::shared_ptr<const KvFormat> format) {
  EngineOptions options = random_options(dice);
  if (format == nullptr) return options;
  const KvShape& shape = format->shape();
  const KvWindow& window = format->window();
  options.kv_format = format;
  // At most half of it is for rows, so the other half holds the longest request, and the first half
  // the rows of a step.
  const std::size_t rows = blocks_for(options.chunk_tokens) + 1 + window.sink + window.recent;
  options.kv_bytes = 2 * std::max(options.kv_bytes, rows * shape.block_bytes());
  return options;
}

struct Totals {
  int requests = 0;
  int aborted = 0;
  EngineLoad load;

  void add(const EngineLoad& more) {
    load.preemptions += more.preemptions;
    load.prefix_hit_tokens += more.prefix_hit_tokens;
    load.host_hit_tokens += more.host_hit_tokens;
  }
};

void expect_clean(const Engine& engine) {
  const EngineLoad load = engine.load();
  EXPECT_EQ(load.blocks_free, load.blocks_total);
  EXPECT_EQ(load.running + load.queued, 0);
  EXPECT_EQ(load.queued_tokens, 0);
}

// What was told of an aborted request is the beginning of the right answer.
void expect_beginning(const Answer::One& told, const Answer::One& expected) {
  ASSERT_LE(told.tokens.size(), expected.tokens.size());
  EXPECT_TRUE(std::equal(told.tokens.begin(), told.tokens.end(), expected.tokens.begin()));
  EXPECT_TRUE(expected.text.starts_with(told.text));
}

void check(Answer& answers, const CompanyCase& expected, Totals& totals) {
  const Finish& finish = answers.wait();
  ++totals.requests;
  if (!finish.error.ok()) {
    ASSERT_EQ(finish.error.code(), Code::kAborted) << finish.error.message();
    ++totals.aborted;
    for (std::size_t i = 0; i < answers.all().size(); ++i) {
      expect_beginning(answers.all()[i], expected.expected[i]);
    }
    return;
  }
  ASSERT_EQ(answers.all().size(), expected.expected.size());
  for (std::size_t i = 0; i < answers.all().size(); ++i) {
    EXPECT_EQ(answers.all()[i].tokens, expected.expected[i].tokens) << "answer " << i;
    EXPECT_TRUE(answers.all()[i] == expected.expected[i]) << "answer " << i;
  }
}

// One engine, everything at once.
void one_engine(Dice& dice, const std::vector<CompanyCase>& cases, Totals& totals) {
  const auto engine = take(Engine::create(fixture_model(), fixture_tokenizer(), nullptr,
                                          options_for(dice, maybe_format(dice))));
  const int count = dice.between(1, 60);
  std::vector<std::unique_ptr<Answer>> answers;
  std::vector<const CompanyCase*> asked;
  for (int i = 0; i < count; ++i) {
    asked.push_back(&cases[dice.between(0, static_cast<int>(cases.size()) - 1)]);
    answers.push_back(std::make_unique<Answer>());
    const RequestId id = take(engine->submit(asked.back()->request, answers.back()->on_update()));
    if (dice.chance(0.1))
      std::this_thread::sleep_for(std::chrono::microseconds(dice.between(1, 3000)));
    if (dice.chance(0.2)) engine->abort(id);
  }
  for (int i = 0; i < count; ++i) check(*answers[i], *asked[i], totals);
  engine->wait_idle();
  expect_clean(*engine);
  totals.add(engine->load());
}

// One request on its way over two workers.
struct Journey {
  const CompanyCase* asked = nullptr;
  Answer answers;
  Prefilled prefilled;
  explicit Journey(const CompanyCase& some) : asked(&some) {}
};

// Several prefill workers push to several decode workers over a network that delays and reorders,
// loses now and then; decode workers have little memory, so KV waits where it was computed.
void several_workers(Dice& dice, const std::vector<CompanyCase>& cases, Totals& totals) {
  const bool loses = dice.chance(0.3);
  TestFaults faults;
  faults.seed = static_cast<std::uint64_t>(dice.between(0, 1 << 30));
  faults.delay_min = Seconds(0);
  faults.delay_max = Seconds(dice.chance(0.5) ? 0.002 : 0);
  faults.loss = loses ? 0.02 : 0;
  faults.reorder = dice.chance(0.5) ? 0.2 : 0;
  const auto network =
      TestNetwork::create({.drive = TestNetwork::Drive::kThread, .faults = faults});
  // All workers have the same.
  const std::shared_ptr<const KvFormat> format = maybe_format(dice);
  std::vector<std::unique_ptr<Worker>> prefill, decode;
  for (int i = dice.between(1, 2); i > 0; --i) {
    prefill.push_back(
        std::make_unique<Worker>(*network, fixture_model(), options_for(dice, format)));
  }
  for (int i = dice.between(1, 2); i > 0; --i) {
    decode.push_back(
        std::make_unique<Worker>(*network, fixture_model(), options_for(dice, format)));
  }
  std::vector<std::unique_ptr<Journey>> journeys;
  for (int i = dice.between(1, 25); i > 0; --i) {
    journeys.push_back(
        std::make_unique<Journey>(cases[dice.between(0, static_cast<int>(cases.size()) - 1)]));
    Journey& journey = *journeys.back();
    const GenerationRequest& request = journey.asked->request;
    Worker& from = *prefill[dice.between(0, static_cast<int>(prefill.size()) - 1)];
    Worker& to = *decode[dice.between(0, static_cast<int>(decode.size()) - 1)];
    const TransferId transfer = random_transfer_id();
    const RequestId decoding = take(to.engine->reserve(request, transfer));
    ASSERT_TRUE(to.engine->attach(decoding, journey.answers.on_update()).ok());
    const RequestId prefilling = take(from.engine->prefill_and_push(
        request, to.endpoint->address(), transfer, journey.prefilled.on_prefilled()));
    if (dice.chance(0.1))
      std::this_thread::sleep_for(std::chrono::microseconds(dice.between(1, 3000)));
    if (dice.chance(0.1)) to.engine->abort(decoding);
    if (dice.chance(0.1)) {  // as a gateway would: on both sides
      from.engine->abort(prefilling);
      to.engine->abort(decoding);
    }
  }
  for (const auto& journey : journeys) {
    check(journey->answers, *journey->asked, totals);
    const Finish& prefilled = journey->prefilled.wait().finish;
    // That DONE may get lost for good is the one thing a sender cannot know.
    if (journey->answers.wait().error.ok() && !loses) {
      EXPECT_TRUE(prefilled.error.ok()) << prefilled.error.message();
    }
  }
  for (const auto* workers : {&prefill, &decode}) {
    for (const auto& worker : *workers) {
      worker->engine->wait_idle();
      expect_clean(*worker->engine);
      totals.add(worker->engine->load());
    }
  }
}

TEST(Company, ChangesNoBitOfAnyAnswer) {
  const std::uint32_t seed = environment("KVLANE_COMPANY_SEED", std::random_device{}());
  SCOPED_TRACE("KVLANE_COMPANY_SEED=" + std::to_string(seed));
  const Seconds limit(environment("KVLANE_COMPANY_SECONDS", 5));
  Dice dice(seed);
  const std::vector<CompanyCase> cases = make_cases(dice, 60);
  Totals totals;
  // Preemption and shared prefixes must have happened, however slow the machine is.
  const auto seen_all = [&] {
    return totals.load.preemptions > 0 && totals.load.prefix_hit_tokens > 0;
  };
  const TimePoint start = SteadyClock::now();
  while ((Seconds(seconds_since(start)) < limit || !seen_all()) && !HasFailure()) {
    if (dice.chance(0.5)) {
      one_engine(dice, cases, totals);
    } else {
      several_workers(dice, cases, totals);
    }
  }
  std::cout << totals.requests << " requests, " << totals.aborted << " aborted, "
            << totals.load.preemptions << " preemptions, tokens from the prefix cache "
            << totals.load.prefix_hit_tokens << ", of these from host memory "
            << totals.load.host_hit_tokens << '\n';
}

}  // namespace
}  // namespace kvlane
