// Takes names of formats apart.
// SPDX-License-Identifier: Apache-2.0
#include "format/cache_format.h"

#include <algorithm>
#include <array>

namespace kvlane {

namespace {

// What decides which blocks are sealed, or what attention does with blocks.
constexpr std::array<std::string_view, 7> kNotOfSlabs = {
    "sink=", "recent=", "compute=", "sums=", "ktail=", "rqe=", "diag="};

bool concerns_slabs(std::string_view parameter) {
  return std::ranges::none_of(kNotOfSlabs,
                              [&](std::string_view key) { return parameter.starts_with(key); });
}

}  // namespace

std::string slab_format(std::string_view cache_format) {
  // FORMAT+CODES: each for itself.
  if (const std::size_t plus = cache_format.find('+'); plus != std::string_view::npos) {
    return slab_format(cache_format.substr(0, plus)) + "+" +
           slab_format(cache_format.substr(plus + 1));
  }
  const std::size_t colon = std::min(cache_format.find(':'), cache_format.size());
  std::string name(cache_format.substr(0, colon));
  std::string_view rest = cache_format.substr(std::min(colon + 1, cache_format.size()));
  char separator = ':';
  while (!rest.empty()) {
    const std::string_view parameter = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), parameter.size() + 1));
    if (!concerns_slabs(parameter)) continue;
    name.append(1, separator).append(parameter);
    separator = ',';
  }
  return name;
}

}  // namespace kvlane
