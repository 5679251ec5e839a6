// XXH3-64 of many pieces of memory, each by a block of threads: device code.
//
// The sum goes through blocks of 1024 bytes. What a block adds to the eight accumulators depends on
// its bytes alone, so blocks are added up by many threads at once, four for each; what is done to
// the accumulators behind a block depends on all before it, and is left to eight threads, which
// are a round behind.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_code.h"
#include "gpu/xxh3_batch.h"

namespace kvlane::gpu {

inline constexpr int kXxh3Threads = 256;  // at most

namespace xxh3 {

inline constexpr int kAccumulators = 8;
inline constexpr int kStripeBytes = 64;
inline constexpr int kStripes = 16;  // of a block
inline constexpr int kBlockBytes = kStripeBytes * kStripes;
inline constexpr int kSecretWords = 24;
inline constexpr int kGroup = 4;  // threads that have a block, each two accumulators
inline constexpr int kRoundBlocks = kXxh3Threads / kGroup;

inline constexpr std::uint32_t kPrime32 = 0x9E3779B1U;
inline constexpr std::uint64_t kPrime64 = 0x9E3779B185EBCA87U;

// Word i of the default secret.
KVLANE_DEVICE constexpr std::uint64_t secret_word(int i) {
  constexpr std::uint64_t kWords[kSecretWords] = {
      0xBE4BA423396CFEB8U, 0x1CAD21F72C81017CU, 0xDB979083E96DD4DEU, 0x1F67B3B7A4A44072U,
      0x78E5C0CC4EE679CBU, 0x2172FFCC7DD05A82U, 0x8E2443F7744608B8U, 0x4C263A81E69035E0U,
      0xCB00C391BB52283CU, 0xA32E531B8B65D088U, 0x4EF90DA297486471U, 0xD8ACDEA946EF1938U,
      0x3F349CE33F76FAA8U, 0x1D4F0BC7C7BBDCF9U, 0x3159B4CD4BE0518AU, 0x647378D9C97E9FC8U,
      0xC3EBD33483ACC5EAU, 0xEB6313FAFFA081C5U, 0x49DAF0B751DD0D17U, 0x9E68D429265516D3U,
      0xFCA1477D58BE162BU, 0xCE31D07AD1B8F88FU, 0x280416958F3ACB45U, 0x7E404BBBCAFBD7AFU};
  return kWords[i];
}

KVLANE_DEVICE constexpr std::uint64_t first_accumulator(int i) {
  constexpr std::uint64_t kFirst[kAccumulators] = {
      0xC2B2AE3DU,         kPrime64,    0xC2B2AE3D27D4EB4FU, 0x165667B19E3779F9U,
      0x85EBCA77C2B2AE63U, 0x85EBCA77U, 0x27D4EB2F165667C5U, kPrime32};
  return kFirst[i];
}

KVLANE_DEVICE std::uint64_t word_of(std::uint32_t low, std::uint32_t high) {
  return std::uint64_t{high} << 32 | low;
}
KVLANE_DEVICE std::uint64_t low_times_high(std::uint64_t x) {
  return std::uint64_t{static_cast<std::uint32_t>(x)} * (x >> 32);
}

// Both halves of a product of 128 bits, one on the other.
KVLANE_DEVICE std::uint64_t folded_product(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = static_cast<std::uint32_t>(a), a1 = a >> 32;
  const std::uint64_t b0 = static_cast<std::uint32_t>(b), b1 = b >> 32;
  const std::uint64_t low = a0 * b0, left = a1 * b0, right = a0 * b1;
  const std::uint64_t middle =
      (low >> 32) + static_cast<std::uint32_t>(left) + static_cast<std::uint32_t>(right);
  return (a1 * b1 + (left >> 32) + (right >> 32) + (middle >> 32)) ^ a * b;
}

struct Shared {
  std::uint64_t secret[kSecretWords];
  std::uint64_t added[2][kRoundBlocks][kAccumulators];  // by the blocks of a round, and of the next
  std::uint64_t accumulators[kAccumulators];

  // The secret's eight bytes from any byte on.
  KVLANE_DEVICE std::uint64_t secret_from(int byte) const {
    const int shift = byte % 8 * 8;
    const std::uint64_t low = secret[byte / 8];
    return shift == 0 ? low : low >> shift | secret[byte / 8 + 1] << (64 - shift);
  }
};

// By one thread, word by word: tables that are indexed at run time would lie in local memory.
template <int kWord = 0>
KVLANE_DEVICE void place_constants(Shared& shared) {
  constexpr std::uint64_t kSecret = secret_word(kWord);
  shared.secret[kWord] = kSecret;
  if constexpr (kWord < kAccumulators) {
    constexpr std::uint64_t kFirst = first_accumulator(kWord);
    shared.accumulators[kWord] = kFirst;
  }
  if constexpr (kWord + 1 < kSecretWords) place_constants<kWord + 1>(shared);
}

// A quarter of a block: 16 bytes of each stripe.
KVLANE_DEVICE void load_quarter(const std::byte* block, int pair, Words4 (&words)[kStripes]) {
  KVLANE_UNROLL
  for (int i = 0; i < kStripes; ++i) words[i] = load_once(block + i * kStripeBytes + 16 * pair);
}

// What a block adds to accumulators 2 pair and 2 pair + 1.
KVLANE_DEVICE void add_quarter(const Words4 (&words)[kStripes], int pair,
                               const std::uint64_t* secret, std::uint64_t* added) {
  std::uint64_t even = 0, odd = 0;
  KVLANE_UNROLL
  for (int i = 0; i < kStripes; ++i) {
    const std::uint64_t first = word_of(words[i].w[0], words[i].w[1]);
    const std::uint64_t second = word_of(words[i].w[2], words[i].w[3]);
    even += low_times_high(first ^ secret[i + 2 * pair]) + second;
    odd += low_times_high(second ^ secret[i + 2 * pair + 1]) + first;
  }
  added[2 * pair] = even;
  added[2 * pair + 1] = odd;
}

KVLANE_DEVICE std::uint64_t scrambled(std::uint64_t accumulator, std::uint64_t secret) {
  return (accumulator ^ accumulator >> 47 ^ secret) * kPrime32;
}

KVLANE_DEVICE std::uint64_t load_word(const std::byte* at) {
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= std::uint64_t{load_byte(at + i)} << 8 * i;
  return word;
}

// What a stripe adds to one accumulator. `secret`: the byte where the stripe's part of it begins.
KVLANE_DEVICE std::uint64_t stripe_word(const std::byte* stripe, int i, const Shared& shared,
                                        int secret) {
  const std::uint64_t own = load_word(stripe + 8 * i), other = load_word(stripe + 8 * (i ^ 1));
  return low_times_high(own ^ shared.secret_from(secret + 8 * i)) + other;
}

KVLANE_DEVICE std::uint64_t merged(const Shared& shared, std::uint64_t bytes) {
  std::uint64_t sum = bytes * kPrime64;
  for (int i = 0; i < kAccumulators; i += 2) {
    sum += folded_product(shared.accumulators[i] ^ shared.secret_from(11 + 8 * i),
                          shared.accumulators[i + 1] ^ shared.secret_from(19 + 8 * i));
  }
  sum = (sum ^ sum >> 37) * 0x165667919E3779F9U;
  return sum ^ sum >> 32;
}

}  // namespace xxh3

using Xxh3Shared = xxh3::Shared;

// By all threads of a block, at most kXxh3Threads.
template <class Thread>
KVLANE_DEVICE void sum_xxh3(Thread& t, const Xxh3Task& task, Xxh3Shared& shared) {
  using namespace xxh3;
  if (t.index() == 0) place_constants(shared);
  t.sync_block();
  // The last stripe is not of the last block, be it whole.
  const std::uint64_t blocks = (task.bytes - 1) / kBlockBytes;
  const bool accumulates = t.index() < kAccumulators;
  std::uint64_t accumulator = accumulates ? shared.accumulators[t.index()] : 0;
  const std::uint64_t step = t.threads() / kGroup;
  int half = 0;
  KVLANE_NO_UNROLL
  for (std::uint64_t first = 0; first < blocks; first += step, half ^= 1) {
    const std::uint64_t own = t.index() / kGroup;
    const int pair = t.index() % kGroup;
    const bool wanted = first + own < blocks;
    Words4 words[kStripes] = {};
    if (wanted) load_quarter(task.data + (first + own) * kBlockBytes, pair, words);
    // All are on their way before the first is needed.
    t.sync_warp();
    if (wanted) add_quarter(words, pair, shared.secret, shared.added[half][own]);
    // Who accumulates comes here again before the others write this half again.
    t.sync_block();
    const std::uint64_t count = blocks - first < step ? blocks - first : step;
    for (std::uint64_t block = 0; accumulates && block < count; ++block) {
      accumulator = scrambled(accumulator + shared.added[half][block][t.index()],
                              shared.secret[kStripes + t.index()]);
    }
  }
  if (accumulates) {
    const std::byte* const rest = task.data + blocks * kBlockBytes;
    const int stripes = static_cast<int>((task.bytes - 1) % kBlockBytes / kStripeBytes);
    for (int stripe = 0; stripe < stripes; ++stripe) {
      accumulator += stripe_word(rest + stripe * kStripeBytes, t.index(), shared, 8 * stripe);
    }
    const std::byte* const last = task.data + task.bytes - kStripeBytes;
    shared.accumulators[t.index()] = accumulator + stripe_word(last, t.index(), shared, 121);
  }
  t.sync_block();
  if (t.index() == 0) *task.sum = merged(shared, task.bytes);
}

}  // namespace kvlane::gpu
