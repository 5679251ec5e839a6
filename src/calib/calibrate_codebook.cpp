// Counts what a text leaves in the cache.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_codebook.h"

#include <algorithm>
#include <vector>

#include "codec/exponents.h"

namespace kvlane {
namespace {

// Adds K and V of a sequence to `counts`, two a layer.
void count_sequence(const BlockTable& table, std::vector<ExponentCounts>& counts) {
  const BlockPool& pool = table.pool();
  const KvShape& shape = pool.shape();
  for (int block = 0; block < table.blocks(); ++block) {
    const int rows = std::min(kBlockTokens, table.tokens() - block * kBlockTokens);
    const std::size_t values = std::size_t(rows) * shape.head_dim;
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        const std::uint16_t* const k = pool.page(table.id(block), layer, head);
        const std::uint16_t* const v = k + shape.page_plane_elements();
        count_exponents(shape.type, std::as_bytes(std::span(k, values)), counts[2 * layer]);
        count_exponents(shape.type, std::as_bytes(std::span(v, values)), counts[2 * layer + 1]);
      }
    }
  }
}

}  // namespace

Result<CodebookFile> calibrate_codebooks(const Model& model, std::span<const std::int32_t> tokens,
                                         const OnCalibrated& progress) {
  const KvShape shape = model.config().kv_shape();
  std::vector<ExponentCounts> counts(std::size_t{2} * shape.layers);
  KVLANE_TRY(run_sequences(
      model, tokens, [&](const BlockTable& table) { count_sequence(table, counts); }, progress));
  CodebookFile file{.model = model.identity(), .tokens = tokens.size()};
  for (const ExponentCounts& each : counts) {
    const Codebook book = codebook_of(shape.type, each);
    file.books.push_back({book, coverage(shape.type, book, each)});
  }
  return file;
}

}  // namespace kvlane
