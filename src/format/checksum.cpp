// Names of libxxhash that choose a kernel when they run, where it has them.
// SPDX-License-Identifier: Apache-2.0
#include "format/checksum.h"

#include <xxhash.h>
#if KVLANE_XXHASH_DISPATCH
#include <xxh_x86dispatch.h>  // gives the plain names to the functions that choose
#endif

#include <cstring>

namespace kvlane {
namespace {

XXH3_state_t* state_of(void* state) { return static_cast<XXH3_state_t*>(state); }

}  // namespace

std::uint64_t xxh3_64(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

Xxh3Of128::Xxh3Of128() : state_(XXH3_createState()) {
  if (ok()) restart();
}

void Xxh3Of128::restart() { XXH3_128bits_reset(state_of(state_.get())); }

void Xxh3Of128::add(ByteView piece) {
  XXH3_128bits_update(state_of(state_.get()), piece.data(), piece.size());
}

std::array<std::byte, 16> Xxh3Of128::digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_of(state_.get())));
  std::array<std::byte, 16> bytes;
  static_assert(sizeof(canonical.digest) == sizeof(bytes));
  std::memcpy(bytes.data(), canonical.digest, sizeof(bytes));
  return bytes;
}

void Xxh3Of128::Free::operator()(void* state) const { XXH3_freeState(state_of(state)); }

}  // namespace kvlane
