// What GPUs can do, from their makers' sheets, and which share of it programs get.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvlane/status.h"

namespace kvlane {

// Dense rates; a second means operations or bytes a second, memory and links in one direction.
struct Gpu {
  std::string name;
  double memory_bytes = 0;
  double memory_rate = 0;
  double matrix_rate = 0;       // of products in 16 bits on matrix units
  double matrix_int8_rate = 0;  // 0: it has none for 8 bits
  double vector_rate = 0;       // FP32, what is not a product
  double peer_rate = 0;   // to each other GPU of its server; over PCIe where there is no NVLink
  double peer_delay = 0;  // seconds that an exchange takes beside its bytes
  // Shares of these rates that kernels reach; gpu.cpp says which were measured, and which are those
  // of a similar GPU or assumed.
  double memory_share = 0;
  double matrix_share = 0;     // of large products
  double attention_share = 0;  // of matrix_rate, in prefill attention of 16 bits
};

std::span<const Gpu> known_gpus();
// Looks in `others` first. kNotFound names all there are.
Result<Gpu> find_gpu(std::string_view name, std::span<const Gpu> others = {});

}  // namespace kvlane
