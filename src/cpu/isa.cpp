// Asks the processor what it can do.
// SPDX-License-Identifier: Apache-2.0
#include "cpu/isa.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace kvlane {
namespace {

#ifdef __x86_64__

// clang 14 does not know this name.
bool supports_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool supports_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && supports_f16c();
}

bool supports_avx512() {
  return supports_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

bool supports_avx512_bf16() {
  return supports_avx512() && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("avx512bf16");
}
#else
bool supports_avx2() { return false; }
bool supports_avx512() { return false; }
bool supports_avx512_bf16() { return false; }
#endif

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512_bf16";
  }
  return "unknown";
}

bool isa_supported(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return true;
    case Isa::kAvx2: return supports_avx2();
    case Isa::kAvx512: return supports_avx512();
    case Isa::kAvx512Bf16: return supports_avx512_bf16();
  }
  return false;
}

Isa best_isa() {
  Isa best = Isa::kScalar;
  for (const Isa isa : kAllIsas) {
    if (isa_supported(isa)) best = isa;
  }
  return best;
}

Result<Isa> select_isa(std::string_view name) {
  if (name == "auto") return best_isa();
  for (const Isa isa : kAllIsas) {
    if (isa_name(isa) != name) continue;
    if (isa_supported(isa)) return isa;
    return unsupported("this processor cannot run the kernels of tier " + std::string(name));
  }
  return invalid_argument("unknown CPU tier \"" + std::string(name) +
                          "\"; known are auto, scalar, avx2, avx512, avx512_bf16");
}

}  // namespace kvlane
