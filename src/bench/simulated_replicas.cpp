// Reads and tells groups of replicas.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_replicas.h"

#include <charconv>
#include <cstdio>

#include "quant/format_text.h"

namespace kvlane {
namespace {

constexpr int kReplicasMax = 10'000;
constexpr int kParallelMax = 64;
constexpr int kNetMaxGbits = 10'000;
constexpr int kNetGbits = 100;
constexpr double kBytesInGbit = 1e9 / 8;

}  // namespace

Result<ReplicaGroup> parse_replicas(std::string_view text, std::span<const Gpu> gpus) {
  if (text.find('+') != text.npos) {
    return invalid_argument("a group of replicas is COUNTxGPU:tp=...,pp=...,net=..., not '" +
                            std::string(text.substr(0, 80)) + "'");
  }
  KVLANE_ASSIGN(FormatText parsed, FormatText::parse(text, "group of replicas"));
  ReplicaGroup group;
  group.count = 1;
  std::string_view name = parsed.name();
  const std::size_t digits = name.find_first_not_of("0123456789");
  if (digits != name.npos && digits > 0 && name[digits] == 'x') {
    const auto [end, error] = std::from_chars(name.data(), name.data() + digits, group.count);
    if (error != std::errc() || group.count < 1 || group.count > kReplicasMax) {
      return invalid_argument("a group has from 1 to " + std::to_string(kReplicasMax) +
                              " replicas, not " + std::string(name.substr(0, digits)));
    }
    name.remove_prefix(digits + 1);
  }
  KVLANE_ASSIGN(group.gpu, find_gpu(name, gpus));
  KVLANE_ASSIGN(group.parallel.tensor, parsed.within("tp", 1, kParallelMax, 1));
  KVLANE_ASSIGN(group.parallel.pipeline, parsed.within("pp", 1, kParallelMax, 1));
  KVLANE_ASSIGN(const int net,
                parsed.decimal("net", 1, kNetMaxGbits * kShareParts, kNetGbits * kShareParts));
  group.network_rate = kBytesInGbit * net / kShareParts;
  KVLANE_TRY(parsed.finish());
  return group;
}

std::string describe(const ReplicaGroup& group) {
  char text[160];
  std::snprintf(text, sizeof(text), "%d %s of %d %.60s (tp=%d, pp=%d), %g Gbit/s", group.count,
                group.count == 1 ? "replica" : "replicas", group.parallel.gpus(),
                group.gpu.name.c_str(), group.parallel.tensor, group.parallel.pipeline,
                group.network_rate / kBytesInGbit);
  return text;
}

}  // namespace kvlane
