// The steps, each from one string into the next.
// SPDX-License-Identifier: Apache-2.0
#include "model/text_normalizer.h"

#include "model/nfc.h"

namespace kvlane {
namespace {

Status check_size(std::size_t bytes) {
  if (bytes <= kNormalizedBytesMax) return {};
  return exhausted("the text has more than " + std::to_string(kNormalizedBytesMax) +
                   " bytes after normalisation");
}

Result<std::string> run(const TextNormalizer::Prepend& step, std::string_view text) {
  return text.empty() ? std::string() : step.text + std::string(text);
}

Result<std::string> run(const TextNormalizer::Replace& step, std::string_view text) {
  std::string replaced;
  replaced.reserve(text.size());
  std::size_t done = 0;
  for (std::size_t at = text.find(step.from); at != std::string_view::npos;
       at = text.find(step.from, done)) {
    replaced.append(text.substr(done, at - done)).append(step.to);
    KVLANE_TRY(check_size(replaced.size()));
    done = at + step.from.size();
  }
  replaced.append(text.substr(done));
  return replaced;
}

Result<std::string> run(TextNormalizer::Nfc /*step*/, std::string_view text) {
  return to_nfc(text);
}

}  // namespace

Result<std::string> TextNormalizer::apply(std::string_view text) const {
  std::string normal(text);
  for (const Step& step : steps_) {
    KVLANE_ASSIGN(normal, std::visit([&](const auto& s) { return run(s, normal); }, step));
    KVLANE_TRY(check_size(normal.size()));
  }
  return normal;
}

}  // namespace kvlane
