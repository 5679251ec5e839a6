// Any bytes are a safetensors file to us: what is accepted must lie inside them and match its
// shape.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const kvlane::ByteView file = std::as_bytes(std::span(data, size));
  const auto tensors = kvlane::parse_safetensors(file);
  if (!tensors.ok()) {
    if (tensors.status().message().empty()) __builtin_trap();
    return 0;
  }
  std::size_t covered = 0;
  for (const auto& [name, tensor] : *tensors) {
    const std::byte* const begin = tensor.bytes.data();
    const std::byte* const end = begin + tensor.bytes.size();
    if (begin < file.data() + 8 || end > file.data() + size) __builtin_trap();
    std::uint64_t bytes = kvlane::element_bytes(tensor.type);
    for (const std::int64_t dimension : tensor.shape)
      bytes *= static_cast<std::uint64_t>(dimension);
    if (bytes != tensor.bytes.size()) __builtin_trap();
    covered += tensor.bytes.size();
  }
  if (covered > size) __builtin_trap();
  return 0;
}
