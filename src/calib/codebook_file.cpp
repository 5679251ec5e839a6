// Codebook files as JSON.
// SPDX-License-Identifier: Apache-2.0
#include "calib/codebook_file.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "crypto/sha256.h"
#include "model/json_depth.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCodebookVersion = 1;
constexpr std::uint64_t kCountedTokensMax = std::uint64_t{1} << 53;

Json to_json(const CalibratedCodebook& calibrated) {
  return {{"exponents", calibrated.book.exponents}, {"coverage", calibrated.coverage}};
}

// The member, or null when there is none.
const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(name);
  return at == object.end() ? nullptr : &*at;
}

Result<CalibratedCodebook> parse_codebook(const Json& layer, const char* part) {
  const Json* const object = member(layer, part);
  const Json* const exponents = object ? member(*object, "exponents") : nullptr;
  const Json* const coverage = object ? member(*object, "coverage") : nullptr;
  const std::string name = std::string("\"") + part + "\"";
  if (!exponents || !exponents->is_array() || exponents->size() != Codebook::kExponentsMax) {
    return corrupt(name + " has no array of 16 exponents");
  }
  CalibratedCodebook parsed;
  int last = -1;
  for (std::size_t i = 0; i < exponents->size(); ++i) {
    const Json& exponent = (*exponents)[i];
    const bool is_byte = exponent.is_number_unsigned() && exponent.get<std::uint64_t>() <= 255;
    if (!is_byte || exponent.get<int>() <= last) {
      return corrupt("the exponents of " + name + " are not 16 ascending numbers from 0 to 255");
    }
    last = exponent.get<int>();
    parsed.book.exponents[i] = static_cast<std::uint8_t>(last);
  }
  if (!coverage || !coverage->is_number()) return corrupt(name + " has no coverage");
  parsed.coverage = coverage->get<double>();
  if (!(parsed.coverage >= 0 && parsed.coverage <= 1)) {
    return corrupt("the coverage of " + name + " is not from 0 to 1");
  }
  return parsed;
}

Status parse_head(const Json& root, const ModelIdentity& model, const KvShape& shape,
                  CodebookFile& file) {
  const Json* const version = member(root, "kvlane_codebook");
  if (!version || !version->is_number_unsigned()) {
    return corrupt("this is no codebook file: it has no number \"kvlane_codebook\"");
  }
  if (version->get<std::uint64_t>() != kCodebookVersion) {
    return unsupported("version " + version->dump() + " of codebook files is not known, 1 is");
  }
  const Json* const identity = member(root, "model");
  const Json* const type = member(root, "element_type");
  const Json* const tokens = member(root, "tokens");
  if (!identity || !identity->is_string()) return corrupt("\"model\" is no string");
  if (!type || !type->is_string()) return corrupt("\"element_type\" is no string");
  if (!tokens || !tokens->is_number_unsigned() || tokens->get<std::uint64_t>() < 1 ||
      tokens->get<std::uint64_t>() > kCountedTokensMax) {
    return corrupt("\"tokens\" is no number from 1 to 2^53");
  }
  if (identity->get<std::string>() != to_hex(model)) {
    return invalid_argument("the codebooks belong to another model: to " +
                            identity->get<std::string>().substr(0, 16) + ", not to " +
                            to_hex(model).substr(0, 16));
  }
  if (type->get<std::string>() != element_name(shape.type)) {
    return unsupported("the codebooks are for " + type->get<std::string>().substr(0, 16) +
                       " values, this cache has " + element_name(shape.type));
  }
  file.model = model;
  file.tokens = tokens->get<std::uint64_t>();
  return {};
}

}  // namespace

// One line for each layer: people look at this.
std::string to_json(const CodebookFile& file) {
  const Json head = {{"kvlane_codebook", kCodebookVersion},
                     {"model", to_hex(file.model)},
                     {"element_type", element_name(ElementType::kBf16)},
                     {"tokens", file.tokens}};
  std::string text = head.dump(1);
  text.replace(text.size() - 2, 2, ",\n \"layers\": [");
  for (std::size_t i = 0; i + 1 < file.books.size(); i += 2) {
    const Json layer = {{"k", to_json(file.books[i])}, {"v", to_json(file.books[i + 1])}};
    text += (i == 0 ? "\n  " : ",\n  ") + layer.dump();
  }
  return text + "\n ]\n}\n";
}

Result<CodebookFile> parse_codebook_file(std::string_view text, const ModelIdentity& model,
                                         const KvShape& shape) {
  if (text.size() > kCodebookFileBytesMax) {
    return corrupt("it has " + std::to_string(text.size()) + " bytes, at most " +
                   std::to_string(kCodebookFileBytesMax) + " are allowed");
  }
  if (json_depth(text) > kJsonDepthMax) return corrupt("it is nested too deep");
  const Json root = Json::parse(text, nullptr, false);
  if (root.is_discarded()) return corrupt("it is not valid JSON");
  CodebookFile file;
  KVLANE_TRY(parse_head(root, model, shape, file));
  const Json* const layers = member(root, "layers");
  if (!layers || !layers->is_array() || layers->size() != static_cast<std::size_t>(shape.layers)) {
    return corrupt("\"layers\" is no array of " + std::to_string(shape.layers) + " layers");
  }
  for (std::size_t i = 0; i < layers->size(); ++i) {
    for (const char* part : {"k", "v"}) {
      auto parsed = parse_codebook((*layers)[i], part);
      if (!parsed.ok()) return parsed.status().with_context("layer " + std::to_string(i));
      file.books.push_back(*parsed);
    }
  }
  return file;
}

}  // namespace kvlane
