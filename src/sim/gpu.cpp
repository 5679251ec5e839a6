// Sheets of NVIDIA, dense rates without sparsity. Shares: of A100, H100 and A40 as Vidur (Agrawal
// et al., MLSys'24) profiled products of Llama-2-70B's layers and exchanges, of decoding as
// DistServe (Zhong et al., OSDI'24) fitted it; of H200 measured (bench/gpu/h200.json: attention in
// decode 4.05 of 4.8 TB/s, in prefill 381 of 989 TFLOP/s). Others stand in for these: L4, L20, T4,
// V100 and A10G have A40's, RTX 4090 too; A30 has A100's. That prefill attention reaches half of
// the matrix units is assumed for all but H100 and H800, which have H200's.
// SPDX-License-Identifier: Apache-2.0
#include "sim/gpu.h"

#include <array>
#include <string>

namespace kvlane {
namespace {

constexpr double kGiga = 1e9;
constexpr double kTera = 1e12;

// Between GPUs without NVLink: a ring through pinned host memory behind PCIe 4; half on PCIe 3.
constexpr double kPcie4Peers = 8 * kGiga;
constexpr double kPcie3Peers = 4 * kGiga;
constexpr double kPcieDelay = 60e-6;

const std::array<Gpu, 12>& gpus() {
  // In the order of gpu.h: memory, its rate, products in 16 and in 8 bits, vectors, peers and their
  // delay; shares of memory, of products, of attention.
  static const std::array<Gpu, 12> kGpus = {{
      {"A10G", 24 * kGiga, 600 * kGiga, 70 * kTera, 140 * kTera, 31.2 * kTera, kPcie4Peers,
       kPcieDelay, 0.77, 0.75, 0.5},
      {"L4", 24 * kGiga, 300 * kGiga, 121 * kTera, 242 * kTera, 30.3 * kTera, kPcie4Peers,
       kPcieDelay, 0.77, 0.75, 0.5},
      {"T4", 16 * kGiga, 320 * kGiga, 65 * kTera, 130 * kTera, 8.1 * kTera, kPcie3Peers, kPcieDelay,
       0.77, 0.75, 0.5},
      {"V100-SXM2-16GB", 16 * kGiga, 900 * kGiga, 125 * kTera, 0, 15.7 * kTera, 75 * kGiga, 45e-6,
       0.77, 0.75, 0.5},
      {"A30", 24 * kGiga, 933 * kGiga, 165 * kTera, 330 * kTera, 10.3 * kTera, 50 * kGiga, 45e-6,
       0.78, 0.75, 0.5},
      {"A100-40GB-SXM", 40 * kGiga, 1555 * kGiga, 312 * kTera, 624 * kTera, 19.5 * kTera,
       180 * kGiga, 40e-6, 0.78, 0.75, 0.5},
      {"A100-80GB-SXM", 80 * kGiga, 2039 * kGiga, 312 * kTera, 624 * kTera, 19.5 * kTera,
       180 * kGiga, 40e-6, 0.78, 0.75, 0.5},
      {"H100-SXM", 80 * kGiga, 3350 * kGiga, 989.4 * kTera, 1978.9 * kTera, 66.9 * kTera,
       330 * kGiga, 30e-6, 0.86, 0.72, 0.385},
      {"H200-SXM", 141 * kGiga, 4800 * kGiga, 989.4 * kTera, 1978.9 * kTera, 66.9 * kTera,
       330 * kGiga, 30e-6, 0.84, 0.72, 0.385},
      {"H800-SXM", 80 * kGiga, 3350 * kGiga, 989.4 * kTera, 1978.9 * kTera, 66.9 * kTera,
       150 * kGiga, 30e-6, 0.86, 0.72, 0.385},
      {"RTX4090", 24 * kGiga, 1008 * kGiga, 165.2 * kTera, 660.6 * kTera, 82.6 * kTera, kPcie4Peers,
       kPcieDelay, 0.77, 0.75, 0.5},
      {"L20", 48 * kGiga, 864 * kGiga, 119.5 * kTera, 239 * kTera, 59.8 * kTera, kPcie4Peers,
       kPcieDelay, 0.77, 0.75, 0.5},
  }};
  return kGpus;
}

}  // namespace

std::span<const Gpu> known_gpus() { return gpus(); }

Result<Gpu> find_gpu(std::string_view name, std::span<const Gpu> others) {
  std::string names;
  for (const std::span<const Gpu> all : {others, known_gpus()}) {
    for (const Gpu& gpu : all) {
      if (gpu.name == name) return gpu;
      if (!names.empty()) names += ", ";
      names += gpu.name;
    }
  }
  return not_found("no GPU '" + std::string(name.substr(0, 40)) + "' is known; there are " + names);
}

}  // namespace kvlane
