// Profiles of a small model: what is measured is there and plausible, and a plan comes of it.
// SPDX-License-Identifier: Apache-2.0
#include "bench/restore_profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/temporary_directory.h"
#include "base/test_results.h"
#include "bench/read_rate.h"
#include "model/expected_fixture.h"

namespace kvlane {
namespace {

ProfileOptions quick() {
  ProfileOptions options;
  options.tokens_max = 200;
  options.repeats = 1;
  options.file_bytes = 1;
  return options;
}

TEST(RestoreProfile, HasAllThatAPlanWants) {
  const auto model = take(Model::load(expected_fixture::kModels / "llama-gqa-f16", {}));
  const TemporaryDirectory directory;
  ProfileOptions options = quick();
  options.directories = {directory.path(), directory.path()};
  const MachineProfile profile = take(measure_restore_profile(*model, nullptr, options));
  EXPECT_EQ(profile.model, model->identity());
  EXPECT_EQ(profile.kv_format, "bf16");
  EXPECT_EQ(profile.layers, 2);
  for (const auto& points : {profile.prefill, profile.project}) {
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(points[0].tokens, 64);
    EXPECT_EQ(points[1].tokens, 128);
    EXPECT_GT(points[0].seconds, 0);
  }
  ASSERT_EQ(profile.forms.size(), 5U);
  // One head of 64 dimensions for K and V, in BF16; 32 values of hidden states, in F32.
  EXPECT_EQ(profile.forms[0].name, "kv");
  EXPECT_EQ(profile.forms[0].bytes, 4 * 64);
  EXPECT_EQ(profile.forms[1].name, "kv+splitzip");
  EXPECT_LT(profile.forms[1].bytes, 4 * 64);
  EXPECT_EQ(profile.forms[3].name, "hidden");
  EXPECT_EQ(profile.forms[3].bytes, 4 * 32);
  EXPECT_EQ(profile.forms[4].bytes, 4 + 32);
  ASSERT_EQ(profile.directories.size(), 2U);
  EXPECT_GT(profile.directories[1].read_rate, 0);
  EXPECT_GT(profile.read_rate, 0);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));

  const RestoreCosts costs = restore_costs(profile, 1000, profile.read_rate);
  EXPECT_EQ(costs.pieces, 2);
  EXPECT_DOUBLE_EQ(costs.forms[0].layers[1].bytes, 256000);
  EXPECT_DOUBLE_EQ(costs.forms[0].layers[1].read, 256000 / profile.read_rate);
  const RestoreChoice choice = plan_restore(costs);
  EXPECT_GT(choice.best.seconds, 0);
  EXPECT_LE(choice.best.seconds, choice.from_tokens.seconds);
}

TEST(RestoreProfile, OfACodedCacheHasItsSlabs) {
  const auto model = take(Model::load(expected_fixture::kModels / "llama-gqa-f16", {}));
  const auto format = take(
      make_kv_format("int8:recent=1", {.shape = model->config().kv_shape(), .isa = model->isa()}));
  const MachineProfile profile = take(measure_restore_profile(*model, format.get(), quick()));
  EXPECT_EQ(profile.kv_format, format->name());
  ASSERT_EQ(profile.forms.size(), 3U);
  EXPECT_EQ(profile.forms[0].name, format->slab_name());
  // 64 codes and a scale of 16 bits for K, and for V.
  EXPECT_EQ(profile.forms[0].bytes, 2 * (64 + 2));
  EXPECT_EQ(profile.read_rate, 0);
}

TEST(RestoreProfile, RefusesWhatCannotBeMeasured) {
  const auto model =
      take(Model::load(expected_fixture::kModels / "llama-gqa-f16", {.context_max = 63}));
  EXPECT_EQ(measure_restore_profile(*model, nullptr, quick()).status().code(),
            Code::kInvalidArgument);
}

TEST(ReadRate, NamesTheDirectoryThatIsNotThere) {
  const std::filesystem::path missing[] = {"/nonexistent/directory"};
  const auto rates = measure_read_rates(missing, 1);
  EXPECT_FALSE(rates.ok());
  EXPECT_NE(rates.status().message().find("/nonexistent/directory"), std::string::npos);
}

}  // namespace
}  // namespace kvlane
