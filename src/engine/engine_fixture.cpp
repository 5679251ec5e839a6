// The model and the tokenizer that engine tests share.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_fixture.h"

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/test_paths.h"

namespace kvlane {

const Model& fixture_model(const std::string& name, const std::string& tier) {
  static std::map<std::pair<std::string, std::string>, std::unique_ptr<Model>> models;
  auto& model = models[{name, tier}];
  if (!model) {
    const auto directory = std::filesystem::path(kSourceDir) / "tests/fixtures/models" / name;
    model = take(Model::load(directory, {.isa = take(select_isa(tier))}));
  }
  return *model;
}

const Tokenizer& fixture_tokenizer() {
  static const Tokenizer tokenizer = [] {
    nlohmann::json vocab = {{"<eos>", 2}};
    int printable_id = 0;
    int other_id = 96;
    int renamed = 0;  // bytes without a glyph of their own are named U+0100 and up
    for (int byte = 0; byte < 256; ++byte) {
      const bool glyph = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      const int name = glyph ? byte : 256 + renamed++;
      const std::string key = name < 128 ? std::string(1, static_cast<char>(name))
                                         : std::string{static_cast<char>(0xc0 | name >> 6),
                                                       static_cast<char>(0x80 | (name & 0x3f))};
      if (printable_id == 2) ++printable_id;
      vocab[key] = byte >= 32 && byte <= 126 ? printable_id++ : other_id++;
    }
    const nlohmann::json json = {
        {"added_tokens",
         {{{"id", 2},
           {"content", "<eos>"},
           {"single_word", false},
           {"lstrip", false},
           {"rstrip", false},
           {"normalized", false},
           {"special", true}}}},
        {"normalizer", nullptr},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
        {"post_processor", nullptr},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
    return take(Tokenizer::parse(json.dump()));
  }();
  return tokenizer;
}

}  // namespace kvlane
