// The forward pass over a text, and counting what it leaves in the cache.
// SPDX-License-Identifier: Apache-2.0
#include "calib/calibrate_codebook.h"

#include <algorithm>
#include <vector>

#include "codec/exponents.h"
#include "model/forward.h"

namespace kvlane {
namespace {

constexpr std::size_t kPassTokens = 256;  // computed at once

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
  if (tokens.empty()) return invalid_argument("calibration needs at least one token");
  const KvShape shape = model.config().kv_shape();
  const auto length = static_cast<std::size_t>(std::min(model.context(), kCalibrationSequence));
  KVLANE_ASSIGN(BlockPool pool, BlockPool::create(shape, blocks_for(static_cast<int>(length)) *
                                                             shape.block_bytes()));
  KVLANE_ASSIGN(const auto forward, Forward::create(model, static_cast<int>(kPassTokens), 1));
  std::vector<ExponentCounts> counts(std::size_t{2} * shape.layers);
  for (std::size_t start = 0; start < tokens.size(); start += length) {
    const auto sequence = tokens.subspan(start, std::min(length, tokens.size() - start));
    BlockTable table(pool);
    KVLANE_TRY(table.grow(static_cast<int>(sequence.size())));
    for (std::size_t done = 0; done < sequence.size(); done += kPassTokens) {
      const auto part = sequence.subspan(done, std::min(kPassTokens, sequence.size() - done));
      const ForwardSpan span{&table, part, false};
      KVLANE_TRY(forward->run({&span, 1}, {}));
      if (progress) progress(start + done + part.size(), tokens.size());
    }
    count_sequence(table, counts);
  }
  CodebookFile file{.model = model.identity(), .tokens = tokens.size()};
  for (const ExponentCounts& each : counts) {
    const Codebook book = codebook_of(shape.type, each);
    file.books.push_back({book, coverage(shape.type, book, each)});
  }
  return file;
}

}  // namespace kvlane
