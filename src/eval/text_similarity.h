// How alike two texts are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kvlane {

// ROUGE-1 as F measure: words that both have, as often as both have them, against the words of
// each. Words are runs of letters, digits and of whatever is not ASCII; case of ASCII letters does
// not matter; there is no stemming. 1 for two texts without words, 0 when only one has any.
double rouge1_f(std::string_view a, std::string_view b);

// 1 - (Levenshtein distance) / (length of the longer one), in characters; 1 for two empty texts.
// Takes time in proportion to the product of the lengths.
double edit_similarity(std::string_view a, std::string_view b);

}  // namespace kvlane
