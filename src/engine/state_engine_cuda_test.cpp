// An engine with a state store on a GPU: after a restart sequences go on from what was saved.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/temporary_directory.h"
#include "base/test_paths.h"
#include "engine/engine_fixture.h"
#include "gpu/device.h"
#include "model/gpu_accelerator.h"
#include "store/store.h"

namespace kvlane {
namespace {

TEST(StateEngineGpuTest, AConversationGoesOnAfterARestart) {
  const auto found = gpu::devices();
  if (!found.ok()) GTEST_SKIP() << "no GPU: " << found.status().message();
  const auto device = gpu_accelerator(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  const auto model = take(Model::load(
      std::filesystem::path(kSourceDir) / "tests/fixtures/models/llama-gqa-bf16-llama3-sharded",
      {.isa = best_isa(), .device = device->get()}));
  const GenerationRequest request = make_request(400, 5, 1);
  const std::pair<const char*, const char*> cases[] = {
      {"kv", "none"}, {"kv", "splitzip"}, {"kv", "splitzip:channel"}, {"hidden", "none"}};
  for (const auto& [form, codec] : cases) {
    SCOPED_TRACE(std::string(form) + " " + codec);
    const TemporaryDirectory directory;
    std::vector<std::int32_t> answers[2];
    for (const bool again : {false, true}) {
      StoreOptions store{.create = true};
      store.directories.push_back({directory.path(), 0});
      EngineOptions options;
      options.kv_bytes = std::size_t{1} << 24;
      // Passes of the same shapes in both turns: the second begins behind what is brought back.
      options.chunk_tokens = 384;
      options.state.store = take(Store::open(store, take(open_store_files({}))));
      options.state.codec = codec;
      options.state.forms = take(make_state_forms(form, model->config().layers, nullptr, 0));
      const auto engine = take(Engine::create(*model, fixture_tokenizer(), nullptr, options));
      Answer answer;
      ASSERT_TRUE(engine->submit(request, answer.on_update()).ok());
      ASSERT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
      EXPECT_EQ(answer.finish().cached_tokens, again ? 384 : 0);
      answers[again] = answer.tokens();
    }
    EXPECT_EQ(answers[1].size(), answers[0].size());
    // Products of K and V alone may be another kernel's than those of Q, K and V.
    if (std::string(form) == "kv") {
      EXPECT_EQ(answers[1], answers[0]);
    }
  }
}

}  // namespace
}  // namespace kvlane
