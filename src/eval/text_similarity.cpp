// Counts of words, and the usual table of edit distances, a row at a time.
// SPDX-License-Identifier: Apache-2.0
#include "eval/text_similarity.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "model/utf8.h"

namespace kvlane {
namespace {

bool is_word(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte >= 0x80;
}

std::map<std::string, int> count_words(std::string_view text, int& total) {
  std::map<std::string, int> words;
  std::string word;
  total = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && is_word(text[i])) {
      word += text[i] >= 'A' && text[i] <= 'Z' ? static_cast<char>(text[i] - 'A' + 'a') : text[i];
    } else if (!word.empty()) {
      ++words[word];
      ++total;
      word.clear();
    }
  }
  return words;
}

std::vector<std::uint32_t> characters(std::string_view text) {
  std::vector<std::uint32_t> all;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    all.push_back(step.code_point);
    text.remove_prefix(step.bytes);
  }
  return all;
}

}  // namespace

double rouge1_f(std::string_view a, std::string_view b) {
  int total_a = 0;
  int total_b = 0;
  const auto words_a = count_words(a, total_a);
  const auto words_b = count_words(b, total_b);
  if (total_a + total_b == 0) return 1;
  int common = 0;
  for (const auto& [word, count] : words_a) {
    const auto other = words_b.find(word);
    if (other != words_b.end()) common += std::min(count, other->second);
  }
  // The harmonic mean of common / total_a and common / total_b.
  return 2.0 * common / (total_a + total_b);
}

double edit_similarity(std::string_view a, std::string_view b) {
  const auto from = characters(a);
  const auto to = characters(b);
  const std::size_t longer = std::max(from.size(), to.size());
  if (longer == 0) return 1;
  // row[j]: the distance of what was read of `from` to the first j characters of `to`.
  std::vector<int> row(to.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < from.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const int replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return 1 - row.back() / static_cast<double>(longer);
}

}  // namespace kvlane
