// Files of profiles: back as they were, and nothing else is taken.
// SPDX-License-Identifier: Apache-2.0
#include "bench/profile_file.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace kvlane {
namespace {

MachineProfile profile_of(int byte) {
  MachineProfile profile;
  profile.model.fill(static_cast<std::byte>(byte));
  profile.machine = "a processor, 2 of 2 cores";
  profile.kv_format = "bf16";
  profile.layers = 6;
  profile.prefill = {{64, 0.001}, {128, 0.00225}};
  profile.project = {{64, 0.0001}};
  profile.forms = {{"hidden", RestoreSource::kHidden, 512, 1e-6},
                   {"kv", RestoreSource::kSlabs, 1024, 0}};
  profile.directories = {{"/a \"directory\"", 2e9}};
  profile.read_rate = 2e9;
  return profile;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

TEST(ProfileFile, ComesBackAsItWas) {
  const std::vector<MachineProfile> profiles = {profile_of(1), profile_of(2)};
  const std::string text = to_json(profiles);
  auto read = parse_profile_file(text);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(to_json(*read), text);
  const MachineProfile* const found =
      find_profile(*read, profiles[1].model, profiles[1].machine, "bf16");
  ASSERT_EQ(found, &(*read)[1]);
  EXPECT_EQ(found->prefill[1].tokens, 128);
  EXPECT_EQ(found->prefill[1].seconds, 0.00225);
  EXPECT_EQ(found->forms[0].source, RestoreSource::kHidden);
  EXPECT_EQ(found->directories[0].path, "/a \"directory\"");
  EXPECT_EQ(find_profile(*read, profiles[1].model, profiles[1].machine, "hack"), nullptr);
  EXPECT_EQ(find_profile(*read, profiles[1].model, "another", "bf16"), nullptr);
  EXPECT_EQ(find_profile(*read, ModelIdentity{}, profiles[1].machine, "bf16"), nullptr);
  EXPECT_TRUE(parse_profile_file(to_json({})).ok());
}

TEST(ProfileFile, RefusesWhatNoMeasurementGives) {
  const std::pair<const char*, const char*> changes[] = {
      {"\"kvlane_profiles\": 1", "\"kvlane_profiles\": -1"},
      {"\"profiles\": [", "\"others\": ["},
      {"\"model\": \"01", "\"model\": \"0x"},
      {"\"layers\": 6", "\"layers\": 0"},
      {"\"layers\": 6", "\"layers\": 513"},
      {"\"layers\": 6", "\"layers\": 1.5"},
      {"\"tokens\": 64", "\"tokens\": 128"},
      {"\"tokens\": 64", "\"tokens\": 0"},
      {"\"seconds\": 0.001", "\"seconds\": -0.001"},
      {"\"seconds\": 0.001", "\"seconds\": null"},
      {"\"seconds\": 0.001", "\"seconds\": 1e999"},
      {"\"source\": \"slabs\"", "\"source\": \"tape\""},
      {"\"read_rate\"", "\"rate\""},
      {"\"machine\"", "\"computer\""},
      {"]\n}", "]"},
  };
  for (const auto& [from, to] : changes) {
    std::string text = to_json({profile_of(1)});
    replace(text, from, to);
    const auto read = parse_profile_file(text);
    EXPECT_EQ(read.status().code(), Code::kCorrupt) << from << " " << to;
    EXPECT_FALSE(read.status().message().empty());
  }
  std::string newer = to_json({profile_of(1)});
  replace(newer, "\"kvlane_profiles\": 1", "\"kvlane_profiles\": 2");
  EXPECT_EQ(parse_profile_file(newer).status().code(), Code::kUnsupported);
  MachineProfile empty = profile_of(1);
  empty.project.clear();
  EXPECT_EQ(parse_profile_file(to_json({empty})).status().message(),
            "profile 0: \"project\" is no list of 1 to 256 entries");
}

TEST(ProfileFile, RefusesWhatIsTooMuch) {
  EXPECT_EQ(parse_profile_file(std::string(kProfileFileBytesMax + 1, ' ')).status().code(),
            Code::kCorrupt);
  EXPECT_EQ(parse_profile_file(std::string(100, '[')).status().message(), "it is nested too deep");
  MachineProfile profile = profile_of(1);
  profile.forms.resize(kProfileListMax + 1, profile.forms[0]);
  EXPECT_EQ(parse_profile_file(to_json({profile})).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace kvlane
