// How fast one core reads pages of 32 KiB from memory, by the order of pages, the distance and
// place of prefetches and the operations between two lines: the limit of attention over rows.
//
//   reading [ROUNDS]
//
// Prints GB/s, medians of interleaved rounds by the thread's processor time. SLAB: 8 pages that lie
// together are read one after the other; PAGE: every page is 512 KiB from the one before.
// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

constexpr std::size_t kPage = 32 << 10;
constexpr std::size_t kPages = 8192;  // 256 MiB

enum Place { kNone, kWithEachLine, kFourAtOnce };

double thread_seconds() {
  std::timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Reads a page, and asks for as much of `next`. The compiler would gather prefetches: so assembly.
template <Place kPlace, int kOperations>
void read_page(const char* page, const char* next) {
  for (std::size_t i = 0; i < kPage; i += 256) {
#pragma GCC unroll 4
    for (int k = 0; kPlace == kFourAtOnce && k < 4; ++k) {
      asm volatile("prefetcht1 (%0)" ::"r"(next + i + 64 * k));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      asm volatile("vmovups (%0), %%zmm16" ::"r"(page + i + 64 * k) : "xmm16");
      if (kPlace == kWithEachLine) asm volatile("prefetcht1 (%0)" ::"r"(next + i + 64 * k));
#pragma GCC unroll 16
      for (int j = 0; j < kOperations; ++j) {
        asm volatile(
            ".if %c0 %% 4 == 0\n vfmadd231ps %%zmm17, %%zmm17, %%zmm18\n"
            ".elseif %c0 %% 4 == 1\n vfmadd231ps %%zmm17, %%zmm17, %%zmm19\n"
            ".elseif %c0 %% 4 == 2\n vfmadd231ps %%zmm17, %%zmm17, %%zmm20\n"
            ".else\n vfmadd231ps %%zmm17, %%zmm17, %%zmm21\n.endif" ::"i"(j)
            : "xmm18", "xmm19", "xmm20", "xmm21");
      }
    }
  }
}

struct Variant {
  const char* name;
  void (*read)(const char* page, const char* next);
  std::vector<double> seconds[2];
};

// The page that is read as number i. Both orders read 16 neighbours in turns of 8 or of one.
std::size_t place(std::size_t i, bool slabs) {
  const std::size_t together = slabs ? 8 : 1;
  const std::size_t rest = i % (kPages / 16 * together);
  return rest / together * 16 + rest % together + i / (kPages / 16 * together) * together;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  const std::size_t bytes = kPage * kPages;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (rounds < 1 || memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_HUGEPAGE);
  char* pages = static_cast<char*>(memory);
  std::fill_n(pages, bytes, 0);
  Variant variants[] = {
      {"no prefetch", read_page<kNone, 0>, {}},
      {"no prefetch, 4 operations a line", read_page<kNone, 4>, {}},
      {"four prefetches at once", read_page<kFourAtOnce, 0>, {}},
      {"four at once, 4 operations", read_page<kFourAtOnce, 4>, {}},
      {"one with each line", read_page<kWithEachLine, 0>, {}},
      {"one with each line, 4 operations", read_page<kWithEachLine, 4>, {}},
      {"one with each line, 8 operations", read_page<kWithEachLine, 8>, {}},
      {"one with each line, 16 operations", read_page<kWithEachLine, 16>, {}},
  };
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants) {
      for (const bool slabs : {false, true}) {
        const double start = thread_seconds();
        for (std::size_t i = 0; i < kPages; ++i) {
          variant.read(pages + kPage * place(i, slabs),
                       pages + kPage * place((i + 1) % kPages, slabs));
        }
        variant.seconds[slabs].push_back(thread_seconds() - start);
      }
    }
  }
  std::printf("%-36s %6s %6s\n", "GB/s", "PAGE", "SLAB");
  for (Variant& variant : variants) {
    std::printf("%-36s", variant.name);
    for (auto& seconds : variant.seconds) {
      std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
      std::printf(" %6.1f", 1e-9 * static_cast<double>(bytes) / seconds[rounds / 2]);
    }
    std::printf("\n");
  }
}
