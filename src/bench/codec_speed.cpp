// Loops over planes.
// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_speed.h"

#include <atomic>
#include <cstring>
#include <numeric>

#include "cpu/parallel.h"

namespace kvlane {
namespace {

constexpr std::size_t kAlignment = 64;  // of coded planes, as in frames

}  // namespace

Status CodingMemory::reserve(std::size_t coded_bytes, std::size_t copy_bytes) {
  if (coded_.bytes() < coded_bytes) {
    KVLANE_ASSIGN(coded_, PageBuffer::allocate(coded_bytes));
  }
  if (copy_.bytes() < copy_bytes) {
    KVLANE_ASSIGN(copy_, PageBuffer::allocate(copy_bytes));
  }
  return {};
}

std::size_t CodedSet::plane_room() const {
  return (coder_.bound(set_.shape()) + kAlignment - 1) / kAlignment * kAlignment;
}

void CodedSet::encode(const CodingMemory& memory) {
  const std::size_t room = plane_room();
  const ParallelScope threads(coder_.parallel ? parallel_threads() : 1);
  parallel_for(static_cast<std::int64_t>(set_.planes()), [&](std::int64_t i) {
    const Codebook* const book = books_.empty() ? nullptr : &books_[set_.source(i)];
    sizes_[i] = coder_.encode(set_.shape(), set_.plane(i), book, {memory.coded() + i * room, room});
  });
}

bool CodedSet::decode(const CodingMemory& memory) const {
  const std::size_t room = plane_room();
  const std::size_t bytes = set_.shape().bytes();
  std::atomic<bool> good = true;
  const ParallelScope threads(coder_.parallel ? parallel_threads() : 1);
  parallel_for(static_cast<std::int64_t>(set_.planes()), [&](std::int64_t i) {
    const Status status = coder_.decode(set_.shape(), {memory.coded() + i * room, sizes_[i]},
                                        {memory.copy() + i * bytes, bytes});
    if (!status.ok()) good = false;
  });
  return good;
}

bool CodedSet::comes_back(const CodingMemory& memory) {
  std::memset(memory.copy(), 0xA5, set_.bytes());
  encode(memory);
  return decode(memory) && std::memcmp(memory.copy(), set_.data(), set_.bytes()) == 0;
}

double CodedSet::ratio() const {
  const std::size_t coded = std::accumulate(sizes_.begin(), sizes_.end(), std::size_t{0});
  return static_cast<double>(set_.bytes()) / static_cast<double>(coded);
}

}  // namespace kvlane
