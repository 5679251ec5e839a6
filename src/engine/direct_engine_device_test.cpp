// Engines on a device, one of emulated threads, whose sequences come back from the disk past the
// host's memory, by a library that tests provide: the answers of one engine that never forgot
// anything, whatever is damaged, refused, short or late.
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/temporary_directory.h"
#include "engine/device_fixture.h"
#include "gpu/cufile_abi.h"
#include "gpu/fake_cufile.h"
#include "quant/kv_format.h"
#include "store/direct_files.h"
#include "store/store.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class DirectEngineTest : public testing::Test {
 protected:
  DirectEngineTest() {
    fake_.with_memory = [](const std::function<void()>& touch) { device().with_memory(touch); };
  }
  void SetUp() override {
    if (!reads_past_caches(directory_.path())) GTEST_SKIP() << "no direct reads in /tmp here";
  }
  ~DirectEngineTest() override {
    fake_.reset();
    device().fail_call(0);
  }

  // Nothing is kept in memory.
  std::shared_ptr<Store> open_store(StoreOptions options = {}) const {
    options.create = true;
    options.directories.push_back({directory_.path(), 0});
    const auto storage =
        take(gpu::DirectStorage::open([] { return device().use_on_this_thread(); }, kFakeCufile));
    return take(Store::open(options, direct_files(take(open_store_files({})), storage, {})));
  }
  static EngineOptions options_with(std::shared_ptr<Store> store,
                                    const std::string& format = "bf16") {
    const Model& model = model_on_host();
    EngineOptions options;
    options.kv_bytes = std::size_t{1} << 23;
    options.kv_format = take(make_kv_format(
        format, {.shape = model.config().kv_shape(), .rope = &model.rope(), .isa = model.isa()}));
    options.state.store = std::move(store);
    options.state.direct_bytes = std::size_t{4} << 20;
    options.state.needs_direct = options.state.store != nullptr;
    return options;
  }
  static std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
    return take(Engine::create(model_on_device(), fixture_tokenizer(), nullptr, options));
  }
  static std::vector<std::int32_t> answer_of(Engine& engine, const GenerationRequest& request,
                                             Finish* finish = nullptr) {
    Answer answer;
    EXPECT_TRUE(engine.submit(request, answer.on_update()).ok());
    EXPECT_TRUE(answer.wait().error.ok()) << answer.wait().error.message();
    if (finish != nullptr) *finish = answer.finish();
    engine.wait_idle();
    return answer.tokens();
  }
  // By an engine that saves them, and is gone.
  std::vector<std::int32_t> saved(const GenerationRequest& request,
                                  const std::string& format = "bf16") const {
    return answer_of(*make_engine(options_with(open_store(), format)), request);
  }
  // A bit in a page of each segment: of a header, which nobody reads again, or of a part.
  void damage(int page, int bit) const {
    for (const auto& entry : fs::directory_iterator(directory_.path() / "segments")) {
      const auto at = static_cast<std::streamoff>(page * kExtentPageBytes + 100 * bit + 3);
      if (static_cast<std::uintmax_t>(at) >= fs::file_size(entry.path())) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at);
      const int value = file.get() ^ 1 << bit;
      file.seekp(at);
      file.put(static_cast<char>(value));
    }
  }

  FakeCuFile& fake_ = fake_cufile();
  const TemporaryDirectory directory_;
  const GenerationRequest request_ = make_request(200, 5, 6);
};

TEST_F(DirectEngineTest, SequencesComeBackPastTheHost) {
  for (const char* const format : {"bf16", "hack:p=64"}) {
    SCOPED_TRACE(format);
    const auto expected = answer_of(*make_engine(options_with(nullptr, format)), request_);
    EXPECT_EQ(saved(request_, format), expected);
    const auto store = open_store();
    const auto engine = make_engine(options_with(store, format));
    Finish finish;
    EXPECT_EQ(answer_of(*engine, request_, &finish), expected);
    EXPECT_EQ(finish.cached_tokens, 192);
    EXPECT_EQ(engine->load().restores, 1);
    EXPECT_EQ(engine->load().restores_failed, 0);
    EXPECT_GT(store->figures().device_reads, 0U);
    EXPECT_EQ(store->figures().device_reads, store->figures().reads);
  }
}

// Codecs and keys are the host's: the store has a way for each.
TEST_F(DirectEngineTest, WhatIsCodedOrEncryptedComesThroughTheHost) {
  for (const bool encrypted : {false, true}) {
    const GenerationRequest request = make_request(200, 5, encrypted ? 7 : 8);
    const StoreOptions with_key{.key = AesKey{}};
    const auto open = [&] { return encrypted ? open_store(with_key) : open_store(); };
    EngineOptions options = options_with(open());
    options.state.codec = encrypted ? "none" : "splitzip";
    const auto expected = answer_of(*make_engine(options), request);
    options.state.store = nullptr;
    const auto store = open();
    Finish finish;
    EXPECT_EQ(answer_of(*make_engine(options_with(store)), request, &finish), expected);
    EXPECT_EQ(finish.cached_tokens, 192);
    EXPECT_GT(store->figures().reads, 0U);
    EXPECT_EQ(store->figures().device_reads, 0U);
  }
}

// Wherever a bit has changed, it is found on the device, or was nobody's.
TEST_F(DirectEngineTest, DamageCostsTimeAndNothingElse) {
  for (const char* const format : {"bf16", "hack:p=64"}) {
    const auto expected = saved(request_, format);
    int found = 0;
    for (int i = 0; i < 8; ++i) {
      SCOPED_TRACE(std::string(format) + " " + std::to_string(i));
      damage(i, i);
      const auto store = open_store();
      const auto engine = make_engine(options_with(store, format));
      EXPECT_EQ(answer_of(*engine, request_), expected);
      EXPECT_GT(store->figures().device_reads, 0U);
      const std::uint64_t damaged = store->figures().damaged;
      EXPECT_EQ(engine->load().restores_failed, damaged > 0 ? 1 : 0);
      found += damaged > 0 ? 1 : 0;
    }
    EXPECT_GT(found, 3);
    // What was damaged was computed and saved again.
    const auto engine = make_engine(options_with(open_store(), format));
    Finish finish;
    EXPECT_EQ(answer_of(*engine, request_, &finish), expected);
    EXPECT_EQ(finish.cached_tokens, 192);
    EXPECT_EQ(engine->load().restores_failed, 0);
  }
}

// Garbage that the library calls a success.
TEST_F(DirectEngineTest, ALibraryThatBringsTheWrongBytesIsFoundOut) {
  const auto expected = saved(request_);
  fake_.lies = true;
  const auto store = open_store();
  const auto engine = make_engine(options_with(store));
  Finish finish;
  EXPECT_EQ(answer_of(*engine, request_, &finish), expected);
  EXPECT_EQ(finish.cached_tokens, 0);
  EXPECT_EQ(engine->load().restores_failed, 1);
  EXPECT_GT(store->figures().damaged, 0U);
}

TEST_F(DirectEngineTest, ReadsThatFailCostTimeAndNothingElse) {
  const auto expected = saved(request_);
  for (const int code : {-1, -gpu::cufile::kFileRefused}) {
    for (const int failing : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(code) + " " + std::to_string(failing));
      fake_.reads = 0;
      fake_.outcome = [&](int number, std::size_t bytes) {
        return number == failing ? code : static_cast<ssize_t>(bytes);
      };
      const auto store = open_store();
      {
        const auto engine = make_engine(options_with(store));
        EXPECT_EQ(answer_of(*engine, request_), expected);
        EXPECT_EQ(engine->load().restores_failed, 1);
        EXPECT_EQ(store->figures().damaged, 0U);
      }
      // A file that was refused is the host's from then on.
      const std::uint64_t reads = store->figures().device_reads;
      Finish finish;
      EXPECT_EQ(answer_of(*make_engine(options_with(store)), request_, &finish), expected);
      EXPECT_EQ(finish.cached_tokens, 192);
      EXPECT_EQ(store->figures().device_reads == reads, code != -1);
    }
  }
}

// What finds no room goes through the host: slabs of one layer come in both ways.
TEST_F(DirectEngineTest, RoomsMayBeFew) {
  const GenerationRequest request = make_request(450, 5, 6);
  const auto expected = saved(request);
  const auto store = open_store();
  EngineOptions options = options_with(store);
  options.state.direct_bytes = 1;  // which a page of a GPU's memory is, four blocks here
  Finish finish;
  EXPECT_EQ(answer_of(*make_engine(options), request, &finish), expected);
  EXPECT_EQ(finish.cached_tokens, 448);
  const StoreFigures figures = store->figures();
  EXPECT_GT(figures.device_reads, 0U);
  EXPECT_LT(figures.device_reads, figures.reads);
}

TEST_F(DirectEngineTest, WhatIsInMemoryComesFromThere) {
  const auto expected = saved(request_);
  const auto store = open_store({.memory_bytes_max = std::uint64_t{64} << 20});
  store->prefetch(store->all());
  while (store->figures().prefetched < store->all().size()) std::this_thread::yield();
  EXPECT_EQ(answer_of(*make_engine(options_with(store)), request_), expected);
  EXPECT_GT(store->figures().memory_reads, 0U);
  EXPECT_EQ(store->figures().device_reads, 0U);
}

// Whichever call beside the line of passes fails: what cannot be brought back is computed.
TEST_F(DirectEngineTest, AnyCallMayFail) {
  const auto expected = saved(request_);
  int failed = 0;
  for (int n = 1;; n += 2) {
    const auto engine = make_engine(options_with(open_store()));
    device().fail_call(n, EmulatedAccelerator::Counted::kBesideTheLine);
    EXPECT_EQ(answer_of(*engine, request_), expected) << n;
    const bool over = device().calls() < n;
    device().fail_call(0);
    EXPECT_EQ(engine->load().restores_failed, over ? 0 : 1) << n;
    failed += over ? 0 : 1;
    if (over) break;
  }
  EXPECT_GT(failed, 3);
}

TEST_F(DirectEngineTest, ARequestMayEndWhileItComesBack) {
  (void)saved(request_);
  fake_.outcome = [](int, std::size_t bytes) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    return static_cast<ssize_t>(bytes);
  };
  Answer answer, cut;  // longer than the engine
  const auto engine = make_engine(options_with(open_store()));
  const RequestId id = take(engine->submit(request_, answer.on_update()));
  engine->abort(id);
  EXPECT_EQ(answer.wait().error.code(), Code::kAborted);
  // And so may the engine.
  ASSERT_TRUE(engine->submit(request_, cut.on_update()).ok());
}

// Who must have the direct way is told why there is none; others do without.
TEST_F(DirectEngineTest, EnginesWithoutTheDirectWayUseTheHosts) {
  const auto expected = saved(request_);
  const auto refusal = [&](const EngineOptions& options) {
    return Engine::create(model_on_device(), fixture_tokenizer(), nullptr, options).status();
  };
  fake_.memory_error = gpu::cufile::kNotPinned;
  {
    EngineOptions options = options_with(open_store());
    EXPECT_THAT(refusal(options).message(), HasSubstr("no room to make so much"));
    options.state.needs_direct = false;
    Status told;
    options.state.on_no_direct = [&](const Status& why) { told = why; };
    EXPECT_EQ(answer_of(*make_engine(options), request_), expected);
    EXPECT_EQ(options.state.store->figures().device_reads, 0U);
    EXPECT_THAT(told.message(), HasSubstr("no room to make so much"));
  }
  StoreOptions plain{.create = true};
  plain.directories.push_back({directory_.path(), 0});
  EngineOptions options = options_with(take(Store::open(plain, take(open_store_files({})))));
  EXPECT_EQ(refusal(options).code(), Code::kInvalidArgument);
  options.state.needs_direct = false;
  EXPECT_EQ(answer_of(*make_engine(options), request_), expected);
}

}  // namespace
}  // namespace kvlane
