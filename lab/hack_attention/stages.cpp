// Cycles of the stages of attention on codes: scores, weights, output. One tier's kernels are
// included whole, since their stages are nobody else's business.
// SPDX-License-Identifier: Apache-2.0
#include KERNELS  // "attention/hack_page_avx512_bf16.cpp", and TIER Avx512

#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "quant/hack_format.h"

using namespace kvlane;
using namespace kvlane::hack_pages;

using Tier = kvlane::TIER;

constexpr int kHeadDim = 128;
constexpr int kPages = 32;  // 155 KB of 2-bit codes: in the L2 cache

// Of the time stamp counter for a token: the lower quartile of 41 rounds.
template <class Body>
double cycles(const Body& body) {
  std::vector<double> all;
  for (int round = 0; round < 41; ++round) {
    const auto start = __rdtsc();
    for (int i = 0; i < 20; ++i) body();
    all.push_back(static_cast<double>(__rdtsc() - start) / 20 / kPages / kBlockTokens);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 4];
}

struct Cache {
  explicit Cache(const char* name) {
    KvFormatContext context;
    context.shape = {1, 1, kHeadDim, ElementType::kBf16};
    context.isa = best_isa();
    format = std::dynamic_pointer_cast<const HackFormat>(*make_kv_format(name, context));
    slabs = static_cast<std::byte*>(std::aligned_alloc(64, kPages * format->slab_bytes()));
    std::vector<std::uint16_t> rows(2 * kBlockTokens * kHeadDim);
    for (int i = 0; i < kPages; ++i) {
      for (auto& x : rows) x = to_bf16(gauss(engine)).bits;
      (void)format->seal({0, 0}, rows.data(), slabs + i * format->slab_bytes());
    }
  }
  ~Cache() { std::free(slabs); }

  std::mt19937 engine{1};
  std::normal_distribution<float> gauss;
  std::shared_ptr<const HackFormat> format;
  std::byte* slabs;
};

void measure(Cache& cache, const char* name, int group) {
  const HackFormat& format = *cache.format;
  const HackShape shape{format.options().k, format.options().v, format.layout(),
                        kHeadDim,           kHeadDim,           format.options().mix};
  std::vector<std::uint16_t> q(std::size_t(group) * kHeadDim);
  for (auto& x : q) x = to_bf16(cache.gauss(cache.engine)).bits;
  PageQuery rows{};
  for (int i = 0; i < group; ++i) rows.q[i] = &q[std::size_t(i) * kHeadDim];
  rows.parts = 1;
  rows.scale = 0.1F;
  const auto query = std::make_unique<HackQuery>();
  prepare(shape, rows, group, *query);
  StateTile tile;
  tile.reset(group, kHeadDim);
  std::vector<HackItem> items;
  for (int i = 0; i < kPages; ++i) {
    items.push_back({query.get(), cache.slabs + i * format.slab_bytes(), {}, &tile});
  }
  alignas(64) static Scores scores, kept;
  static Weights weights;
  Prefetch none{{}};
  const double score = cycles([&] {
    for (const HackItem& item : items) score_item<Tier>(shape, item, none, scores);
  });
  std::memcpy(kept, scores, sizeof(scores));
  // Weighing overwrites scores, with AVX2.
  const auto restore = [&] {
    std::memcpy(scores, kept, sizeof(scores[0]) * group);
    asm volatile("" ::: "memory");
  };
  const double restoring = cycles([&] {
    for (int i = 0; i < kPages; ++i) restore();
  });
  const double weigh = cycles([&] {
    for (const HackItem& item : items) {
      restore();
      weigh_batch<Tier>(shape, next_batch(&item, &item + 1, 1), scores, none, weights);
    }
  });
  const double add = cycles([&] {
    for (const HackItem& item : items) add_item<Tier>(shape, item, weights, 0, none);
  });
  const double all = cycles([&] { attend<Tier>(shape, items); });
  std::printf("| `%s` | %d | %.1f | %.1f | %.1f | %.1f |\n", name, group, score, weigh - restoring,
              add, all);
}

int main() {
  std::puts("| format | rows | scores | weights | output | whole |\n|---|---|---|---|---|---|");
  for (const char* name : {"hack", "hack:paper", "hack:k=4,v=4", "hack:k=8,v=8"}) {
    Cache cache(name);
    for (const int group : {1, 4, 8, 16}) measure(cache, name, group);
  }
}
