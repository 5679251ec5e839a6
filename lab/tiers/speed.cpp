// Pages of every coded format on every tier: sealed, opened, attended to.
// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "attention/sealed_kernel.h"
#include "base/bf16.h"
#include "ops/rope_table.h"
#include "quant/tables_fixture.h"

using namespace kvlane;

constexpr int kHeadDim = 128;
constexpr int kPages = 8;  // in the L2 cache
constexpr const char* kFormats[] = {"fp8_e4m3",
                                    "fp8_e5m2",
                                    "mxfp8_e4m3",
                                    "mxfp6_e2m3",
                                    "mxfp4",
                                    "int8:sym=1",
                                    "int8:sym=0",
                                    "int4:sym=0",
                                    "kivi:bits=2",
                                    "kivi:bits=4",
                                    "kvquant:bits=2",
                                    "kvquant:bits=4",
                                    "cachegen:level=2",
                                    "cachegen:form=paper",
                                    "hack",
                                    "hack:compute=bf16",
                                    "hack:compute=dequantise",
                                    "hack:k=4,v=4,compute=bf16",
                                    "hack:k=8,v=8,compute=bf16",
                                    "hack:p=64",
                                    "hack:p=64,compute=bf16",
                                    "hack:p=64,compute=dequantise",
                                    "hack:p=64,compute=complete",
                                    "hack:p=64,compute=complete,sums=computed"};

struct Lines {
  explicit Lines(std::size_t bytes)
      : at(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))) {}
  ~Lines() { std::free(at); }
  std::byte* at;
};

// One layer of one KV head, and what formats with tables want of it.
struct World {
  World() : angles(tables_fixture::inverse_frequencies(kHeadDim), kPages * kBlockTokens) {
    rows = tables_fixture::to_bits(tables_fixture::plain_rows(shape, 2));
    tables_fixture::add_cachegen_tables(
        shape, {tables_fixture::to_bits(tables_fixture::plain_rows(shape, 1))}, tables);
    tables_fixture::add_kvquant_tables(shape, tables);
    std::mt19937 engine(1);
    std::normal_distribution<float> gauss;
    for (auto& q : queries) q = to_bf16(gauss(engine)).bits;
  }

  KvShape shape{1, 1, kHeadDim, ElementType::kBf16};
  RopeTable angles;
  KvTables tables;
  std::vector<std::uint16_t> rows;
  std::vector<std::uint16_t> queries = std::vector<std::uint16_t>(kTileRows * kHeadDim);
};

// A format on one tier.
class Subject {
 public:
  Subject(const World& world, const char* name, Isa isa)
      : world_(world),
        format_(*make_kv_format(name, {world.shape, &world.angles, &world.tables, isa})),
        kernel_(sealed_kernel(*format_, isa)),
        slabs_(kPages * format_->slab_bytes()),
        page_(world.shape.page_bytes()) {
    seal();
  }

  void seal() {
    for (int i = 0; i < kPages; ++i) {
      const Status sealed = format_->seal(place(i), world_.rows.data(), slab(i));
      if (!sealed.ok()) std::printf("%s\n", sealed.message().c_str());
    }
  }
  void open() {
    for (int i = 0; i < kPages; ++i) {
      format_->open_page(place(i), slab(i), 0, reinterpret_cast<std::uint16_t*>(page_.at));
    }
  }
  void attend(int rows) {
    query_.rows = {};
    for (int row = 0; row < rows; ++row) {
      query_.rows.q[row] = world_.queries.data() + row * kHeadDim;
      query_.rows.visible[row] = kBlockTokens;
    }
    query_.rows.parts = 1;
    query_.rows.part_stride = query_.rows.key_dim = kHeadDim;
    query_.rows.tokens = kBlockTokens;
    query_.rows.scale = static_cast<float>(1.4426950408889634 / std::sqrt(kHeadDim));
    kernel_->prepare(0, 0, rows, query_);
    tile_.reset(rows, kHeadDim);
    SealedItem items[kPages];
    for (int i = 0; i < kPages; ++i) items[i] = {place(i), slab(i), 0, {}, &query_, &tile_};
    kernel_->attend(items);
  }

 private:
  SlabPlace place(int i) const { return {0, i * kBlockTokens}; }
  std::byte* slab(int i) { return slabs_.at + i * format_->slab_bytes(); }

  const World& world_;
  std::shared_ptr<const KvFormat> format_;
  std::unique_ptr<const SealedKernel> kernel_;
  Lines slabs_;
  Lines page_;
  SealedQuery query_;
  StateTile tile_;
};

// Nanoseconds of this thread's own processor time.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e9 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec);
}

// Nanoseconds of a token and KV head.
template <class Body>
double once(int times, const Body& body) {
  const double start = now();
  for (int i = 0; i < times; ++i) body();
  return (now() - start) / times / kPages / kBlockTokens;
}

double lower_quartile(std::vector<double>& all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 4];
}

void measure(const World& world, const char* name, int rounds) {
  constexpr int kWhat = 4;  // seal, open, attend with 1 and with 4 rows
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const Isa isa : kAllIsas) subjects.push_back(std::make_unique<Subject>(world, name, isa));
  std::vector<double> times[kWhat][kAllIsas.size()];
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t tier = 0; tier < kAllIsas.size(); ++tier) {
      Subject& of = *subjects[tier];
      const int n = kAllIsas[tier] == Isa::kScalar ? 1 : 10;
      times[0][tier].push_back(once(n, [&] { of.seal(); }));
      times[1][tier].push_back(once(n, [&] { of.open(); }));
      times[2][tier].push_back(once(n, [&] { of.attend(1); }));
      times[3][tier].push_back(once(n, [&] { of.attend(4); }));
    }
  }
  std::printf("| `%s` |", name);
  for (auto& of_what : times) {
    for (auto& of_tier : of_what) std::printf(" %.3g |", lower_quartile(of_tier));
  }
  std::printf("\n");
  std::fflush(stdout);
}

int main(int argc, char** argv) {
  if (best_isa() != Isa::kAvx512Bf16) {
    std::printf("this processor lacks AVX-512 with BF16\n");
    return 1;
  }
  const World world;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  for (const char* name : kFormats) measure(world, name, rounds);
  return 0;
}
