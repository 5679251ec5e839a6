// Sequences restored from hidden states: K and V as the forward pass wrote them, bit for bit, and
// the answer that an uninterrupted sequence gives.
// SPDX-License-Identifier: Apache-2.0
#include "model/hidden_restorer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "cpu/parallel.h"
#include "model/expected_fixture.h"
#include "model/sequence_fixture.h"
#include "quant/format_fixture.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using namespace sequence_fixture;
using Values = HiddenFormat::Values;

std::vector<std::byte> encoded(const HiddenFormat& format, ByteView rows) {
  std::vector<std::byte> bytes(kTokens * format.stored_bytes());
  EXPECT_TRUE(format.encode(rows, kTokens, bytes.data()).ok());
  return bytes;
}

// All layers, their blocks in calls of at most `call` tokens. Layer 0 from tokens.
void restore(const Model& model, const KvFormat* format, const HiddenFormat& hidden, int rows_max,
             int call, const std::vector<std::vector<std::byte>>& rows,
             std::span<const std::int32_t> tokens, Sequence& sequence) {
  const auto restorer = take(HiddenRestorer::create(model, hidden, rows_max, format));
  sequence.begin_restore();
  for (int layer = 0; layer < model.config().layers; ++layer) {
    const auto stored = encoded(hidden, rows[layer]);
    for (int first = 0; first < kTokens; first += call) {
      const RestoreSpan span{&sequence.table, kTokens, first, std::min(call, kTokens - first)};
      const std::size_t bytes = hidden.stored_bytes();
      // In two pieces, where there are as many rows.
      const ByteView all = ByteView(stored).subspan(first * bytes, span.count * bytes);
      const std::size_t cut = std::min<std::size_t>(span.count, 100) * bytes;
      const ByteView pieces[] = {all.first(cut), all.subspan(cut)};
      const Status status =
          layer == 0 ? restorer->restore_embedded(span, tokens.subspan(first, span.count))
                     : restorer->restore(span, layer, pieces);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  sequence.table.set_tokens(kTokens);
}

void expect_restored(const fs::path& directory, Isa isa, std::span<const char* const> formats) {
  const auto model = take(Model::load(directory, {.isa = isa}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const HiddenFormat hidden = take(HiddenFormat::parse("hidden", *model));
  for (const char* name : formats) {
    if (std::string_view(name).starts_with("hack") && model->config().head_dim % 16 != 0) continue;
    const auto format = make_format(*model, name);
    const std::string what =
        directory.filename().string() + " " + std::string(isa_name(isa)) + " " + std::string(name);
    Sequence computed(*model, format.get());
    const auto rows = computed.compute(tokens, 100);
    Sequence restored(*model, format.get());
    restore(*model, format.get(), hidden, 128, kTokens, rows, tokens, restored);
    restored.expect_same(computed, what);
    restored.expect_same_answer(computed, what);
  }
}

TEST(HiddenRestorer, BundledModelsGoOnAsIfUninterrupted) {
  const char* const formats[] = {"bf16", "hack", "hack:sink=1,recent=1", "kivi",
                                 "zack:keep=0.6+hack"};
  for (const char* name : {"kvlane-tiny", "kvlane-tiny-gqa", "kvlane-small"}) {
    expect_restored(kBundled / name, best_isa(), formats);
  }
}

// Norms of K, weights of other types, heads whose weights cannot be cut from packed ones, tiers.
TEST(HiddenRestorer, AllKindsOfModelsOnAllTiers) {
  const char* const formats[] = {"bf16", "int8", "hack:p=32,round=sr,mix=1,recent=1", "mxfp4"};
  const char* const of_16[] = {"zack:keep=0.5,sink=1,recent=1"};
  for (const Isa isa : kAllIsas) {
    if (!isa_supported(isa)) continue;
    for (const auto& entry : fs::directory_iterator(expected_fixture::kModels)) {
      expect_restored(entry.path(), isa, formats);
    }
    expect_restored(expected_fixture::kModels / "qwen3-gqa-bf16", isa, of_16);
  }
}

TEST(HiddenRestorer, PartsAndThreadsChangeNoBit) {
  const auto model = take(Model::load(kBundled / "kvlane-tiny", {.isa = best_isa()}));
  const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
  const HiddenFormat hidden = take(HiddenFormat::parse("hidden", *model));
  const auto format = make_format(*model, "hack:recent=1");
  Sequence computed(*model, format.get());
  const auto rows = computed.compute(tokens, 64);
  for (const int threads : {1, 3}) {
    set_parallel_threads(threads);
    for (const auto& [rows_max, call] : {std::pair{64, kTokens}, {512, 64}, {128, 192}}) {
      Sequence restored(*model, format.get());
      restore(*model, format.get(), hidden, rows_max, call, rows, tokens, restored);
      restored.expect_same(computed, std::to_string(rows_max) + " " + std::to_string(call));
    }
  }
  set_parallel_threads(2);
}

// The mean square of differences of K and V of all tokens, over that of the values.
double relative_error(const Sequence& a, const Sequence& b) {
  double off = 0;
  double square = 0;
  for (int token = 0; token < kTokens; ++token) {
    const auto x = a.row(token, a.shape().layers);
    const auto y = b.row(token, b.shape().layers);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = to_float(bf16{y[i]});
      off += std::pow(to_float(bf16{x[i]}) - exact, 2);
      square += exact * exact;
    }
  }
  return std::sqrt(off / square);
}

// The noise of 8 bits has no direction, and weights are trained for what they read: K and V lose
// less than hidden states do, here relative to the size of both.
TEST(HiddenRestorer, EightBitsCostKAndVNoMoreThanTheyCostHiddenStates) {
  for (const char* name : {"kvlane-tiny", "kvlane-tiny-gqa", "kvlane-small"}) {
    const auto model = take(Model::load(kBundled / name, {.isa = best_isa()}));
    const auto tokens = random_tokens(kTokens, model->config().vocab, 5);
    const HiddenFormat hidden = take(HiddenFormat::parse("hidden:int8", *model));
    Sequence computed(*model, nullptr);
    const auto rows = computed.compute(tokens, kRowsMax);
    double off = 0;
    double square = 0;
    for (int layer = 1; layer < model->config().layers; ++layer) {
      std::vector<std::byte> back(rows[layer].size());
      ASSERT_TRUE(hidden.decode(encoded(hidden, rows[layer]), kTokens, back.data()).ok());
      for (std::size_t i = 0; i < back.size(); i += sizeof(bf16)) {
        bf16 exact, coded;
        std::memcpy(&exact, &rows[layer][i], sizeof(bf16));
        std::memcpy(&coded, &back[i], sizeof(bf16));
        off += std::pow(to_float(coded) - to_float(exact), 2);
        square += std::pow(to_float(exact), 2);
      }
    }
    Sequence restored(*model, nullptr);
    restore(*model, nullptr, hidden, 320, kTokens, rows, tokens, restored);
    const double lost = std::sqrt(off / square);
    const double error = relative_error(restored, computed);
    RecordProperty(std::string(name) + " hidden", std::to_string(lost));
    RecordProperty(std::string(name) + " kv", std::to_string(error));
    EXPECT_GT(error, 0);
    EXPECT_LT(error, lost) << name;
  }
}

TEST(HiddenRestorer, RefusesWhatIsNoPartOfASequence) {
  const auto model = take(Model::load(expected_fixture::kModels / "qwen3-gqa-bf16", {}));
  const HiddenFormat hidden = take(HiddenFormat::parse("hidden", *model));
  EXPECT_EQ(HiddenRestorer::create(*model, hidden, 100).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HiddenRestorer::create(*model, hidden, 0).status().code(), Code::kInvalidArgument);
  const auto restorer = take(HiddenRestorer::create(*model, hidden, 64));
  Sequence sequence(*model, nullptr);
  sequence.begin_restore();
  const auto of = [&](int first, int count, int layer, std::size_t bytes) {
    const std::vector<std::byte> stored(bytes);
    const ByteView piece(stored);
    return restorer->restore({&sequence.table, kTokens, first, count}, layer, {&piece, 1}).code();
  };
  const std::size_t row = hidden.stored_bytes();
  EXPECT_EQ(of(0, 64, 1, 64 * row), Code::kOk);
  EXPECT_EQ(of(0, 64, 1, 64 * row - 1), Code::kCorrupt);
  EXPECT_EQ(of(0, 63, 1, 63 * row), Code::kInternal);
  EXPECT_EQ(of(32, 32, 1, 32 * row), Code::kInternal);
  EXPECT_EQ(of(256, 64, 1, 64 * row), Code::kInternal);
  EXPECT_EQ(of(0, 64, 2, 64 * row), Code::kInternal);
  EXPECT_EQ(of(-64, 64, 0, 64 * row), Code::kInternal);
}

TEST(HiddenRestorer, ASlabThatCannotBeSealedIsAnError) {
  const auto model = take(Model::load(expected_fixture::kModels / "qwen3-gqa-bf16", {}));
  const format_fixture::Failing format(model->config().kv_shape(), {1, 128});
  const HiddenFormat hidden = take(HiddenFormat::parse("hidden", *model));
  const auto restorer = take(HiddenRestorer::create(*model, hidden, 256, &format));
  Sequence sequence(*model, &format);
  sequence.begin_restore();
  const std::vector<std::byte> stored(kTokens * hidden.stored_bytes());
  const RestoreSpan all{&sequence.table, kTokens, 0, kTokens};
  const ByteView piece(stored);
  EXPECT_TRUE(restorer->restore(all, 0, {&piece, 1}).ok());
  EXPECT_EQ(restorer->restore(all, 1, {&piece, 1}).message(), "this slab is bad");
}

}  // namespace
}  // namespace kvlane
