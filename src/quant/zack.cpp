// Slabs of narrow rows, and the format made from tables.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "quant/slab_rows.h"
#include "quant/table_lookup.h"

namespace kvlane {
namespace {

constexpr std::string_view kName = "zack";
constexpr int kUsualKeep = kShareParts / 2;

// K[64][k], then V[64][v].
std::size_t page_bytes(HeadWidths widths) {
  return std::size_t{kBlockTokens} * (widths.k + widths.v) * sizeof(std::uint16_t);
}

SlabSizes slab_sizes(const KvShape& shape, const zack::Ranks& ranks) {
  std::vector<std::size_t> bytes(shape.layers);
  for (std::size_t i = 0; i < ranks.widths.size(); ++i) {
    bytes[i / shape.kv_heads] += page_bytes(ranks.widths[i]);
  }
  return SlabSizes(bytes);
}

// rows[64][from] to rows[64][to]: what fits, and zeros behind it.
void copy_columns(const std::uint16_t* rows, int from, std::uint16_t* out, int to) {
  const int columns = std::min(from, to);
  for (int token = 0; token < kBlockTokens; ++token, rows += from, out += to) {
    std::copy_n(rows, columns, out);
    std::fill(out + columns, out + to, std::uint16_t{0});
  }
}

}  // namespace

ZackFormat::ZackFormat(std::string name, const KvShape& shape, const KvWindow& window,
                       zack::Ranks ranks, std::vector<float> rotations, std::uint64_t tables)
    : KvFormat(std::move(name), shape, window, kvlane::slab_sizes(shape, ranks), tables),
      ranks_(std::move(ranks)),
      rotations_(std::move(rotations)) {
  for (std::size_t i = 0; i < ranks_.widths.size(); ++i) {
    const bool first = i % shape.kv_heads == 0;
    const std::size_t offset = first ? 0 : pages_.back().offset + pages_.back().bytes;
    pages_.push_back({offset, page_bytes(ranks_.widths[i])});
  }
}

const float* ZackFormat::key_rotation(int layer, int kv_head) const {
  const std::size_t d = shape().head_dim;
  return rotations_.data() + head(layer, kv_head) * d * d;
}

PagePlace ZackFormat::page_place(int layer, int kv_head) const {
  return pages_[head(layer, kv_head)];
}

Status ZackFormat::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  KVLANE_TRY(check_rows_are_finite(shape(), place, rows));
  const int d = shape().head_dim;
  for (int kv_head = 0; kv_head < shape().kv_heads; ++kv_head) {
    const HeadWidths kept = widths(place.layer, kv_head);
    auto* const page =
        reinterpret_cast<std::uint16_t*>(slab + page_place(place.layer, kv_head).offset);
    copy_columns(slab_row(shape(), rows, kv_head, true, 0), d, page, kept.k);
    copy_columns(slab_row(shape(), rows, kv_head, false, 0), d, page + kBlockTokens * kept.k,
                 kept.v);
  }
  return {};
}

void ZackFormat::open_page(SlabPlace place, const std::byte* slab, int kv_head,
                           std::uint16_t* page) const {
  const int d = shape().head_dim;
  const HeadWidths kept = widths(place.layer, kv_head);
  const auto* const from =
      reinterpret_cast<const std::uint16_t*>(slab + page_place(place.layer, kv_head).offset);
  copy_columns(from, kept.k, page, d);
  copy_columns(from + kBlockTokens * kept.k, kept.v, page + shape().page_plane_elements(), d);
}

std::size_t ZackFormat::used_bytes(SlabPlace place, const std::byte* /*slab*/) const {
  return slab_bytes(place.layer);
}

void ZackFormat::pack(SlabPlace place, const std::byte* slab, std::byte* packed) const {
  pack_front(place, slab, packed);
}

Status ZackFormat::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  return unpack_front(place, packed, slab);
}

namespace {

constexpr std::array<std::string_view, 2> kRanks = {"adaptive", "uniform"};
constexpr std::array<std::string_view, 2> kWeighs = {"values", "energies"};

// Of K or V in all layers: [layers][kv_heads][per_head].
Result<std::vector<float>> gather(const KvFormatContext& context, bool is_key, const char* what,
                                  std::size_t per_head) {
  std::vector<float> all;
  for (int layer = 0; layer < context.shape.layers; ++layer) {
    KVLANE_ASSIGN(const auto part,
                  find_table(context.tables, kName, table_prefix(kName, layer, is_key) + what,
                             per_head * context.shape.kv_heads));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

Result<zack::Ranks> choose_ranks(const KvFormatContext& context, int keep, const std::string& ranks,
                                 const std::string& weigh) {
  const int d = context.shape.head_dim;
  if (ranks == "uniform") {
    return zack::uniform_ranks(d, std::size_t(context.shape.layers) * context.shape.kv_heads, keep);
  }
  KVLANE_ASSIGN(const std::vector<float> k, gather(context, true, "singular_values", d));
  KVLANE_ASSIGN(const std::vector<float> v, gather(context, false, "singular_values", d));
  KVLANE_ASSIGN(const zack::Rates rates,
                zack::Rates::make({d, k, v}, weigh == "energies" ? zack::Weigh::kEnergies
                                                                 : zack::Weigh::kValues));
  return rates.at(keep);
}

}  // namespace

Result<std::shared_ptr<const KvFormat>> make_zack_format(FormatText text,
                                                         const KvFormatContext& context) {
  KVLANE_ASSIGN(const int keep, text.share("keep", kUsualKeep));
  KVLANE_ASSIGN(const std::string ranks, text.word("ranks", kRanks, "adaptive"));
  KVLANE_ASSIGN(const std::string weigh, text.word("weigh", kWeighs, "values"));
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  const int d = context.shape.head_dim;
  if (d % zack::kWidthStep != 0) {
    return unsupported("KV format 'zack' takes a head_dim that is a multiple of " +
                       std::to_string(zack::kWidthStep) + ", this model has " + std::to_string(d));
  }
  KVLANE_ASSIGN(std::vector<float> rotations,
                gather(context, true, "rotation", std::size_t(d) * d));
  auto chosen = choose_ranks(context, keep, ranks, weigh);
  if (!chosen.ok()) return chosen.status().with_context("KV format 'zack'");
  std::string name = std::string(kName) + ":keep=" + share_text(keep);
  if (ranks != "adaptive") name += ",ranks=" + ranks;
  if (weigh != "values") name += ",weigh=" + weigh;
  name += window_text(window);
  return std::shared_ptr<const KvFormat>(
      std::make_shared<const ZackFormat>(std::move(name), context.shape, window, std::move(*chosen),
                                         std::move(rotations), tables_id(*context.tables, kName)));
}

}  // namespace kvlane
