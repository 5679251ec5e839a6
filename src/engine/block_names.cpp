// One digest a block.
// SPDX-License-Identifier: Apache-2.0
#include "engine/block_names.h"

#include <array>
#include <bit>
#include <string>

#include "base/bytes.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tokens are hashed as they lie in memory");

constexpr std::string_view kDomain = "kvlane block name 1";

ByteView bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

void update_length(Sha256& hash, std::size_t length) {
  const auto length32 = static_cast<std::uint32_t>(length);
  hash.update({reinterpret_cast<const std::byte*>(&length32), sizeof length32});
}

}  // namespace

Result<BlockName> BlockNames::root(const ModelIdentity& model, std::string_view format,
                                   std::string_view salt) {
  Sha256 hash;
  hash.update(bytes_of(kDomain));
  hash.update(model);
  update_length(hash, format.size());
  hash.update(bytes_of(format));
  update_length(hash, salt.size());
  hash.update(bytes_of(salt));
  return hash.finish();
}

Status BlockNames::extend(std::span<const std::int32_t> tokens) {
  const std::size_t complete = tokens.size() / kBlockTokens;
  names_.reserve(complete);
  for (std::size_t block = names_.size(); block < complete; ++block) {
    Sha256 hash;
    hash.update(last_);
    hash.update({reinterpret_cast<const std::byte*>(tokens.data() + block * kBlockTokens),
                 kBlockTokens * sizeof(std::int32_t)});
    KVLANE_ASSIGN(last_, hash.finish());
    names_.push_back(last_);
  }
  return {};
}

}  // namespace kvlane
