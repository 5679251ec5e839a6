// Gradients of K and V against differences of the text's probability, in double precision, for
// every family; and the pass itself against transformers.
// SPDX-License-Identifier: Apache-2.0
#include "calib/kv_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/test_results.h"
#include "base/test_sanitizers.h"
#include "calib/calibration_fixture.h"
#include "cpu/parallel.h"
#include "model/expected_fixture.h"
#include "model/gguf_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using calibration_fixture::tokens_of;
using expected_fixture::Expected;

std::unique_ptr<Model> load_as_computed(const std::string& name) {
  // What was computed of this one is of a context that asks for its short rotations.
  const int context_max = name == "phi3-f32-window-short" ? 256 : 0;
  return take(Model::load(expected_fixture::kModels / name,
                          {.isa = best_isa(), .context_max = context_max}));
}

std::vector<std::string> all_models() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(expected_fixture::kModels)) {
    if (fs::exists(entry.path() / "expected.json")) names.push_back(entry.path().filename());
  }
  std::ranges::sort(names);
  return names;
}

// Numbers around 0, other ones for other seeds.
Matrix<double> direction(const Matrix<double>& like, std::uint64_t seed) {
  Matrix<double> values(like.rows(), like.cols());
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    const auto dice = philox4x32(seed, {static_cast<std::uint32_t>(i), 0, 0, 0});
    values.data()[i] = dice[0] * 0x1p-32 + dice[1] * 0x1p-32 - 1;
  }
  return values;
}

class KvGradientsOf : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, KvGradientsOf, testing::ValuesIn(all_models()),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// K and V of one layer moved along a direction, a little to either side.
TEST_P(KvGradientsOf, AreDifferences) {
  const auto model = load_as_computed(GetParam());
  const auto gradients = take(KvGradients<double>::create(*model));
  const std::vector<std::int32_t> tokens =
      tokens_of(*model, std::min(model->context(), kSanitized ? 70 : 250));
  // Shorter where it must not reach the bend of a ReLU.
  const double step_size = model->config().activation == Activation::kRelu ? 1e-7 : 1e-5;
  std::vector<Matrix<double>> by_keys(model->config().layers), by_values(model->config().layers);
  const auto keep = [&](int layer, const Matrix<double>& keys, const Matrix<double>& values) {
    by_keys[layer] = keys;
    by_values[layer] = values;
  };
  take(gradients.run(tokens, {.on_gradients = keep, .on_rows = {}, .progress = {}}));
  const int layers = model->config().layers;
  for (int layer = kSanitized ? layers - 1 : 0; layer < layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const Matrix<double>& by = is_key ? by_keys[layer] : by_values[layer];
      const Matrix<double> along = direction(by, std::uint64_t(2 * layer) + (is_key ? 1 : 0));
      const auto loss_at = [&](double step) {
        const auto move = [&](int at, Matrix<double>& keys, Matrix<double>& values) {
          if (at == layer) (is_key ? keys : values) += step * along;
        };
        return take(gradients.run(tokens, {.on_gradients = {}, .on_rows = move, .progress = {}}));
      };
      const double expected = (loss_at(step_size) - loss_at(-step_size)) / (2 * step_size);
      const double actual = by.cwiseProduct(along).sum();
      EXPECT_NEAR(actual, expected, 1e-6 * by.norm() * along.norm() / std::sqrt(by.size()) + 1e-7)
          << (is_key ? "K" : "V") << " of layer " << layer;
      EXPECT_GT(by.norm(), 1e-3);
    }
  }
}

// The last positions of each prompt: what transformers computed in double precision.
TEST_P(KvGradientsOf, AreOfTheModelThatTransformersComputes) {
  const auto model = load_as_computed(GetParam());
  const Expected expected(expected_fixture::kModels / GetParam());
  const auto gradients = take(KvGradients<double>::create(*model));
  const int vocab = model->config().vocab;
  for (std::size_t prompt = 0; prompt < (kSanitized ? 1 : expected.prompts().size()); ++prompt) {
    const std::vector<std::int32_t>& tokens = expected.prompts()[prompt];
    const int positions = expected.positions(prompt);
    const float* logits = expected.logits(prompt);
    const std::span<const std::int32_t> all(tokens);
    // Of tokens that were predicted from the last positions but the very last.
    const auto first = all.size() - static_cast<std::size_t>(positions);
    double sum = 0;
    for (std::size_t i = first; i + 1 < all.size(); ++i, logits += vocab) {
      const double most = *std::max_element(logits, logits + vocab);
      const double total =
          std::transform_reduce(logits, logits + vocab, 0.0, std::plus<>(),
                                [most](float logit) { return std::exp(double{logit} - most); });
      sum += most + std::log(total) - logits[all[i + 1]];
    }
    const double before = take(gradients.run(all.first(first + 1), {}));
    const double whole = take(gradients.run(all, {}));
    EXPECT_NEAR(whole - before, sum, 1e-5 * std::max(1.0, sum)) << "prompt " << prompt;
  }
}

TEST(KvGradients, FloatsAreCloseAndDoNotDependOnThreads) {
  const auto model = load_as_computed("qwen3-gqa-bf16");
  const std::vector<std::int32_t> tokens = tokens_of(*model, 300);
  std::vector<Matrix<double>> exact;
  take(take(KvGradients<double>::create(*model))
           .run(tokens, {.on_gradients =
                             [&](int, const Matrix<double>& keys, const Matrix<double>& values) {
                               exact.push_back(keys);
                               exact.push_back(values);
                             },
                         .on_rows = {},
                         .progress = {}}));
  const auto floats = take(KvGradients<float>::create(*model));
  const auto run = [&](int threads) {
    const ParallelScope scope(threads);
    std::vector<Matrix<float>> all;
    take(floats.run(tokens, {.on_gradients =
                                 [&](int, const Matrix<float>& keys, const Matrix<float>& values) {
                                   all.push_back(keys);
                                   all.push_back(values);
                                 },
                             .on_rows = {},
                             .progress = {}}));
    return all;
  };
  const std::vector<Matrix<float>> one = run(1), three = run(3);
  ASSERT_EQ(one.size(), exact.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i], three[i]);
    EXPECT_LT((one[i].cast<double>() - exact[i]).norm(), 1e-4 * exact[i].norm());
  }
}

// Rows that a GGUF file has in another order, and in several parts.
TEST(KvGradients, OfGgufFilesAreThoseOfTheirCheckpoints) {
  const std::pair<const char*, const char*> files[] = {
      {"llama", "llama-gqa-f16"},
      {"llama31", "llama-gqa-bf16-llama3-sharded"},
      {"mistral", "mistral-gqa-bf16-window"},
      {"phi3", "phi3-gqa-bf16-longrope"},
      {"falcon", "falcon-gqa-bf16"},
      {"split/model-00001-of-00003", "llama-mha-bf16-tied"}};
  for (const auto& [file, checkpoint] : files) {
    const auto gguf = take(
        Model::load(gguf_fixture::kFiles / (std::string(file) + ".gguf"), {.isa = best_isa()}));
    const auto plain = load_as_computed(checkpoint);
    std::vector<Matrix<float>> by[2];
    double losses[2];
    for (const int i : {0, 1}) {
      const Model& model = i == 0 ? *gguf : *plain;
      const auto keep = [&](int, const Matrix<float>& keys, const Matrix<float>& values) {
        by[i].push_back(keys);
        by[i].push_back(values);
      };
      losses[i] = take(
          take(KvGradients<float>::create(model))
              .run(tokens_of(*plain, 130), {.on_gradients = keep, .on_rows = {}, .progress = {}}));
    }
    EXPECT_EQ(losses[0], losses[1]) << file;
    EXPECT_TRUE(by[0] == by[1]) << file;
  }
}

TEST(KvGradients, TellHowFarTheyAre) {
  const auto model = load_as_computed("llama-gqa-f16");
  const auto gradients = take(KvGradients<float>::create(*model));
  std::vector<int> done;
  const auto progress = [&](int layers, int total) {
    EXPECT_EQ(total, 2 * model->config().layers);
    done.push_back(layers);
  };
  const auto ignore = [](int, const Matrix<float>&, const Matrix<float>&) {};
  take(gradients.run(tokens_of(*model, 5),
                     {.on_gradients = ignore, .on_rows = {}, .progress = progress}));
  ASSERT_EQ(done.size(), 2 * std::size_t(model->config().layers));
  for (std::size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i], static_cast<int>(i) + 1);
}

// A text of one token says nothing of K and V, one of none is an error.
TEST(KvGradients, ShortTexts) {
  const auto model = load_as_computed("opt-mha-f32");
  const auto gradients = take(KvGradients<float>::create(*model));
  int layers = 0;
  const auto zero = [&](int, const Matrix<float>& keys, const Matrix<float>& values) {
    EXPECT_TRUE(keys.isZero(0) && values.isZero(0));
    ++layers;
  };
  EXPECT_EQ(take(gradients.run(tokens_of(*model, 1),
                               {.on_gradients = zero, .on_rows = {}, .progress = {}})),
            0);
  EXPECT_EQ(layers, model->config().layers);
  const std::string limits = "gradients are of sequences of 1 to 512 tokens, not ";
  EXPECT_EQ(gradients.run({}, {}).status().message(), limits + "0");
  EXPECT_EQ(gradients.run(tokens_of(*model, 513), {}).status().message(), limits + "513");
}

TEST(KvGradients, WhatIsNotFiniteIsAnError) {
  const auto model = load_as_computed("llama-mqa-f32");
  const auto gradients = take(KvGradients<float>::create(*model));
  const auto ignore = [](int, const Matrix<float>&, const Matrix<float>&) {};
  // The first layer is computed on the way there, and once more on the way back.
  const auto message_when = [&](int spoilt) {
    int calls = 0;
    const auto spoil = [&](int layer, Matrix<float>&, Matrix<float>& values) {
      if (layer == 0 && calls++ == spoilt) values(3, 4) = std::numeric_limits<float>::quiet_NaN();
    };
    return std::string(
        gradients
            .run(tokens_of(*model, 70), {.on_gradients = ignore, .on_rows = spoil, .progress = {}})
            .status()
            .message());
  };
  EXPECT_EQ(message_when(0), "the model gives the text no probability that is a finite number");
  EXPECT_EQ(message_when(1), "the model's layer 0 has gradients that are not finite numbers");
  EXPECT_EQ(message_when(2), "");
}

}  // namespace
}  // namespace kvlane
