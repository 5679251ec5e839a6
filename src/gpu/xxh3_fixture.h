// What tests of checksums share: bytes, what libxxhash says of them, and the device code on
// emulated threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "gpu/emulated_block.h"
#include "gpu/xxh3_device.h"

namespace kvlane::gpu::xxh3_fixture {

// The last ones of each kind and the first ones of the next: stripes have 64 bytes, blocks 1024, a
// round of 64 threads 16 blocks, of kXxh3Threads 64.
inline constexpr std::size_t kLengths[] = {241,  255,   256,   257,   319,   320,   321,   1023,
                                           1024, 1025,  1087,  1088,  1089,  2047,  2048,  2049,
                                           4099, 16383, 16384, 16385, 65536, 65537, 66559, 131073};

inline Bytes content(std::size_t bytes) {
  Bytes content(bytes);
  std::uint32_t state = 1;
  for (std::byte& byte : content) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return content;
}

// XXH3_64bits() of content(), by libxxhash 0.8.1.
struct Known {
  std::size_t bytes;
  std::uint64_t sum;
};
inline constexpr Known kKnown[] = {
    {241, 0xD6AFAC6F8FA85B01U},    {256, 0x9E6593BAB96413DAU},   {257, 0xC7F456FFF4EACA08U},
    {1024, 0xBB9F0C3761CDFD54U},   {1025, 0x95EDCCC1ADC4D895U},  {1088, 0xE8391A3978CBCF06U},
    {1089, 0xB6E2A9BC2973E16AU},   {2048, 0x278F7A6A39416B51U},  {2049, 0x644272755E8980A0U},
    {4096, 0x436F521F6688C5EDU},   {65537, 0x49235290459C83CCU}, {262144, 0xF9F794B1EDE84940U},
    {1000003, 0x9031A6121D217151U}};

inline std::uint64_t sum_on_emulated_threads(ByteView bytes, int threads, std::uint64_t seed) {
  // As kernels get it: at a multiple of 16, with nothing behind it.
  struct alignas(16) Line {
    std::byte bytes[16];
  };
  const auto lines = std::make_unique<Line[]>((bytes.size() + 15) / 16);
  std::byte* const data = lines[0].bytes;
  std::memcpy(data, bytes.data(), bytes.size());
  std::uint64_t sum = 0;
  const auto shared = std::make_unique<Xxh3Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(Xxh3Shared));
  const Xxh3Task task{data, bytes.size(), &sum};
  run_block(threads, seed, [&](EmulatedThread& thread) { sum_xxh3(thread, task, *shared); });
  return sum;
}

}  // namespace kvlane::gpu::xxh3_fixture
