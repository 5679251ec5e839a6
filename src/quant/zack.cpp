// Slabs of narrow rows, and the format made from tables.
// SPDX-License-Identifier: Apache-2.0
#include "quant/zack.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "quant/slab_rows.h"
#include "quant/table_lookup.h"
#include "quant/zack_bits.h"
#include "quant/zack_kvquant.h"

namespace kvlane {
namespace {

constexpr std::string_view kZack = "zack";
constexpr int kUsualKeep = kShareParts / 2;
constexpr int kBitsMax = 16;  // as many as a value has that is not coded

// K[64][k], then V[64][v].
KvShape page_shape(int layers, HeadWidths widths) {
  return {layers, 1, widths.k, ElementType::kBf16, widths.v};
}

std::size_t page_bytes(HeadWidths widths, const KvFormat* codes) {
  return codes == nullptr ? page_shape(1, widths).page_bytes() : codes->slab_bytes();
}

SlabSizes slab_sizes(const KvShape& shape, const zack::Ranks& ranks,
                     const ZackFormat::Codes& codes) {
  std::vector<std::size_t> bytes(shape.layers);
  for (std::size_t i = 0; i < ranks.widths.size(); ++i) {
    bytes[i / shape.kv_heads] += page_bytes(ranks.widths[i], codes[i].get());
  }
  return SlabSizes(bytes);
}

// A slab of one head.
SlabPlace page_of(SlabPlace place, int kv_head) {
  return {place.layer, place.position, place.kv_head + kv_head};
}

// rows[64][from] to rows[64][to]: what fits, and zeros behind it.
void copy_columns(const std::uint16_t* rows, int from, std::uint16_t* out, int to) {
  const int columns = std::min(from, to);
  for (int token = 0; token < kBlockTokens; ++token, rows += from, out += to) {
    std::copy_n(rows, columns, out);
    std::fill(out + columns, out + to, std::uint16_t{0});
  }
}

// Where values of a page lie that stays in 16 bits (attention/narrow_page.h).
std::size_t key_at(int token, int channel) {
  return 2 * (std::size_t{kBlockTokens} * (channel / 2) + token) + channel % 2;
}
std::size_t value_at(HeadWidths widths, int token, int channel) {
  return std::size_t{kBlockTokens} * widths.k + 2 * (std::size_t(token / 2) * widths.v + channel) +
         token % 2;
}

}  // namespace

ZackFormat::ZackFormat(std::string name, const KvShape& shape, const KvWindow& window,
                       zack::Ranks ranks, Codes codes, Rotations rotations, std::uint64_t tables)
    : KvFormat(std::move(name), shape, window, kvlane::slab_sizes(shape, ranks, codes), tables),
      ranks_(std::move(ranks)),
      codes_(std::move(codes)),
      rotations_(std::move(rotations)) {
  if (!codes_.front()) planes_.emplace(shape.kv_heads, ranks_.widths);
  for (std::size_t i = 0; i < ranks_.widths.size(); ++i) {
    const bool first = i % shape.kv_heads == 0;
    const std::size_t offset = first ? 0 : pages_.back().offset + pages_.back().bytes;
    pages_.push_back({offset, page_bytes(ranks_.widths[i], codes_[i].get())});
  }
}

const float* ZackFormat::key_rotation(int layer, int kv_head) const {
  return rotations_.of_key(head(layer, kv_head), shape().head_dim);
}

const float* ZackFormat::query_rotation(int layer, int kv_head) const {
  return rotations_.of_query(head(layer, kv_head), shape().head_dim);
}

PagePlace ZackFormat::page_place(int layer, int kv_head) const {
  return pages_[head(layer, kv_head)];
}

Status ZackFormat::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  KVLANE_TRY(check_rows_are_finite(shape(), place, rows));
  const int d = shape().head_dim;
  for (int kv_head = 0; kv_head < shape().kv_heads; ++kv_head) {
    const HeadWidths kept = widths(place.layer, kv_head);
    const std::uint16_t* const keys = slab_row(shape(), rows, kv_head, true, 0);
    const std::uint16_t* const values = slab_row(shape(), rows, kv_head, false, 0);
    std::byte* const page = slab + page_place(place.layer, kv_head).offset;
    const KvFormat* const codes = this->codes(place.layer, kv_head);
    if (codes == nullptr) {
      auto* const to = reinterpret_cast<std::uint16_t*>(page);
      for (int token = 0; token < kBlockTokens; ++token) {
        for (int i = 0; i < kept.k; ++i) to[key_at(token, i)] = keys[token * d + i];
        for (int i = 0; i < kept.v; ++i) to[value_at(kept, token, i)] = values[token * d + i];
      }
      continue;
    }
    alignas(64) std::uint16_t kept_rows[2 * kBlockTokens * zack::kHeadDimMax];
    copy_columns(keys, d, kept_rows, kept.k);
    copy_columns(values, d, kept_rows + kBlockTokens * kept.k, kept.v);
    KVLANE_TRY(codes->seal(page_of(place, kv_head), kept_rows, page));
  }
  return {};
}

void ZackFormat::open_page(SlabPlace place, const std::byte* slab, int kv_head,
                           std::uint16_t* page) const {
  const int d = shape().head_dim;
  const HeadWidths kept = widths(place.layer, kv_head);
  const std::byte* const sealed = slab + page_place(place.layer, kv_head).offset;
  std::uint16_t* const values = page + shape().page_plane_elements();
  const KvFormat* const codes = this->codes(place.layer, kv_head);
  if (codes == nullptr) {
    const auto* const from = reinterpret_cast<const std::uint16_t*>(sealed);
    for (int token = 0; token < kBlockTokens; ++token) {
      for (int i = 0; i < d; ++i) {
        page[token * d + i] = i < kept.k ? from[key_at(token, i)] : 0;
        values[token * d + i] = i < kept.v ? from[value_at(kept, token, i)] : 0;
      }
    }
    return;
  }
  alignas(64) std::uint16_t opened[2 * kBlockTokens * zack::kHeadDimMax];
  codes->open_page(page_of(place, kv_head), sealed, 0, opened);
  copy_columns(opened, kept.k, page, d);
  copy_columns(opened + kBlockTokens * kept.k, kept.v, values, d);
}

// Of what is used in the page of this head.
std::size_t ZackFormat::used_in_page(SlabPlace place, int kv_head, const std::byte* slab) const {
  const PagePlace at = page_place(place.layer, kv_head);
  const KvFormat* const codes = this->codes(place.layer, kv_head);
  return codes == nullptr ? at.bytes : codes->used_bytes(page_of(place, kv_head), slab + at.offset);
}

std::size_t ZackFormat::used_bytes(SlabPlace place, const std::byte* slab) const {
  std::size_t bytes = 0;
  for (int head = 0; head < shape().kv_heads; ++head) bytes += used_in_page(place, head, slab);
  return bytes;
}

void ZackFormat::pack(SlabPlace place, const std::byte* slab, std::byte* packed) const {
  for (int head = 0; head < shape().kv_heads; ++head) {
    const PagePlace at = page_place(place.layer, head);
    const KvFormat* const codes = this->codes(place.layer, head);
    if (codes == nullptr) {
      std::memcpy(packed, slab + at.offset, at.bytes);
    } else {
      codes->pack(page_of(place, head), slab + at.offset, packed);
    }
    packed += used_in_page(place, head, slab);
  }
}

bool ZackFormat::packs_as_it_lies(int layer) const {
  std::size_t bytes = 0;
  for (int head = 0; head < shape().kv_heads; ++head) {
    if (codes(layer, head) != nullptr) return false;
    bytes += page_place(layer, head).bytes;
  }
  return bytes == slab_bytes(layer);
}

// All codes that may be here take the same number of bytes for every page.
Status ZackFormat::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  KVLANE_TRY(check_packed_bytes(place, packed, used_bytes(place, slab)));
  for (int head = 0; head < shape().kv_heads; ++head) {
    const PagePlace at = page_place(place.layer, head);
    const KvFormat* const codes = this->codes(place.layer, head);
    const ByteView part = packed.first(used_in_page(place, head, slab));
    packed = packed.subspan(part.size());
    if (codes == nullptr) {
      std::memcpy(slab + at.offset, part.data(), part.size());
    } else {
      KVLANE_TRY(codes->unpack(page_of(place, head), part, slab + at.offset));
    }
  }
  return {};
}

namespace {

constexpr std::array<std::string_view, 2> kRanks = {"adaptive", "uniform"};
constexpr std::array<std::string_view, 2> kWeighs = {"values", "energies"};

Status check_head_dim(int d) {
  if (d % zack::kWidthStep == 0 && d <= zack::kHeadDimMax) return {};
  return unsupported("KV format 'zack' takes a head_dim that is a multiple of " +
                     std::to_string(zack::kWidthStep) + " up to " +
                     std::to_string(zack::kHeadDimMax) + ", not " + std::to_string(d));
}

// Of K or V in all layers: [layers][kv_heads][per_head].
Result<std::vector<float>> gather(const KvFormatContext& context, bool is_key, const char* what,
                                  std::size_t per_head) {
  std::vector<float> all;
  for (int layer = 0; layer < context.shape.layers; ++layer) {
    KVLANE_ASSIGN(const auto part,
                  find_table(context.tables, kZack, table_prefix(kZack, layer, is_key) + what,
                             per_head * context.shape.kv_heads));
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Whether a layer has this table of K.
bool has_table(const KvFormatContext& context, const char* what) {
  for (int layer = 0; context.tables != nullptr && layer < context.shape.layers; ++layer) {
    if (context.tables->values.contains(table_prefix(kZack, layer, true) + what)) return true;
  }
  return false;
}

Result<ZackFormat::Rotations> read_rotations(const KvFormatContext& context) {
  const std::size_t matrix = std::size_t(context.shape.head_dim) * context.shape.head_dim;
  constexpr const char* kOfQueries = "query_rotation";
  ZackFormat::Rotations rotations;
  if (has_table(context, zack::kFoldedRotation)) {
    if (has_table(context, "rotation") || has_table(context, kOfQueries)) {
      return corrupt("tables of 'zack' say that K is rotated in the weights, and that it is not");
    }
    // Every layer has it, though nobody reads it.
    KVLANE_TRY(gather(context, true, zack::kFoldedRotation, matrix).status());
    return rotations;
  }
  KVLANE_ASSIGN(rotations.keys, gather(context, true, "rotation", matrix));
  if (has_table(context, kOfQueries)) {
    KVLANE_ASSIGN(rotations.queries, gather(context, true, kOfQueries, matrix));
  }
  return rotations;
}

// What a text says but for its codes.
struct Said {
  int bits;  // 0: the others say what is kept
  int keep;
  std::string ranks;
  std::string weigh;
  KvWindow window;
};

Result<Said> parse(FormatText& text) {
  for (const char* const key : {"keep", "ranks", "weigh"}) {
    if (text.has("bits") && text.has(key)) {
      return invalid_argument("KV format 'zack' has either bits or " + std::string(key));
    }
  }
  Said said;
  KVLANE_ASSIGN(said.bits, text.decimal("bits", 1, kBitsMax * kShareParts, 0));
  KVLANE_ASSIGN(said.keep, text.share("keep", kUsualKeep));
  KVLANE_ASSIGN(said.ranks, text.word("ranks", kRanks, kRanks[0]));
  KVLANE_ASSIGN(said.weigh, text.word("weigh", kWeighs, kWeighs[0]));
  if (said.ranks != kRanks[0] && said.weigh != kWeighs[0]) {
    return invalid_argument("KV format 'zack': with ranks=uniform nothing is weighed");
  }
  KVLANE_ASSIGN(said.window, text.window());
  KVLANE_TRY(text.finish());
  return said;
}

std::string name_of(const Said& said) {
  std::string name = std::string(kZack) + ":";
  name += said.bits > 0 ? "bits=" + share_text(said.bits) : "keep=" + share_text(said.keep);
  if (said.ranks != kRanks[0]) name += ",ranks=" + said.ranks;
  if (said.weigh != kWeighs[0]) name += ",weigh=" + said.weigh;
  return name + window_text(said.window);
}

// Of all heads, [layers * kv_heads].
struct Kept {
  zack::Ranks ranks;
  std::vector<zack::HeadCodes> codes;  // empty: all have those that the text says
};

Result<Kept> choose_ranks(const KvFormatContext& context, const Said& said) {
  const auto choose = [&]() -> Result<zack::Ranks> {
    const KvShape& shape = context.shape;
    if (said.ranks == kRanks[1]) {
      const std::size_t heads = std::size_t(shape.layers) * shape.kv_heads;
      return zack::uniform_ranks(shape.head_dim, heads, said.keep);
    }
    const bool energies = said.weigh == kWeighs[1];
    KVLANE_ASSIGN(const zack::Rates rates,
                  zack_rates(context, energies ? zack::Weigh::kEnergies : zack::Weigh::kValues));
    return rates.at(said.keep);
  };
  auto ranks = choose();
  if (!ranks.ok()) return ranks.status().with_context("KV format 'zack'");
  return Kept{std::move(*ranks), {}};
}

Result<Kept> choose_bits(const KvFormatContext& context, const Said& said) {
  const int d = context.shape.head_dim;
  const std::size_t choices = zack::kCodeBits.size() * (d / zack::kWidthStep);
  KVLANE_ASSIGN(const std::vector<float> k, gather(context, true, "errors", choices));
  KVLANE_ASSIGN(const std::vector<float> v, gather(context, false, "errors", choices));
  auto codes = zack::choose_codes({d, k, v}, said.bits);
  if (!codes.ok()) return codes.status().with_context("KV format 'zack'");
  Kept kept{{}, std::move(*codes)};
  double dimensions = 0;
  for (const zack::HeadCodes& head : kept.codes) {
    kept.ranks.widths.push_back({head.k.width, head.v.width});
    dimensions += head.k.width + head.v.width;
  }
  kept.ranks.share = dimensions / (2.0 * d * static_cast<double>(kept.codes.size()));
  return kept;
}

// Of [layers][all heads][per_head], what heads that are here have.
template <class T>
void keep_heads_here(const KvFormatContext& context, std::size_t per_head, std::vector<T>& values) {
  if (values.empty() || context.has_all_heads()) return;
  const std::size_t own = context.shape.kv_heads * per_head;
  const std::size_t all = context.heads.whole * per_head;
  auto to = values.begin();
  for (int layer = 0; layer < context.shape.layers; ++layer) {
    to = std::copy_n(values.begin() + layer * all + context.heads.first * per_head, own, to);
  }
  values.resize(context.shape.layers * own);
}

// Formats whose slabs have one size, and know pages whose V is narrower than K.
bool can_code(std::string_view name) {
  return name != "zack" && name != "cachegen" && name != "kvquant" && name != "bf16";
}

// What a head's bits are in the text of its codes.
std::string hack_bits_text(const zack::HeadCodes& codes) {
  return "hack:k=" + std::to_string(codes.k.bits) + ",v=" + std::to_string(codes.v.bits);
}

// `text` says `hack`, and of it what is not chosen.
Status check_codes_of_bits(std::string_view text) {
  if (text.substr(0, text.find(':')) != "hack") {
    return invalid_argument("zack:bits chooses bits of codes of hack: write zack:bits=2.5+hack");
  }
  // Its other word for a parameter is partitions.
  const bool paper = text.starts_with("hack:paper");
  KVLANE_ASSIGN(const FormatText codes, FormatText::parse(paper ? "hack:p=64" : text));
  for (const char* const key : {"k", "v", "p"}) {
    if (codes.has(key)) {
      return invalid_argument("behind zack:bits, which chooses them, hack has no parameter '" +
                              std::string(key) + "'");
    }
  }
  return {};
}

// The text of the codes of head `i`.
std::string text_of_head(std::string_view text, const Kept& kept, std::size_t i) {
  if (kept.codes.empty()) return std::string(text);
  const std::string_view rest = text.substr(std::min(text.size(), text.find(':')));
  return hack_bits_text(kept.codes[i]) + (rest.empty() ? "" : "," + std::string(rest.substr(1)));
}

// The formats of all kinds of heads that there are; and what their name is, behind a "+".
Result<ZackFormat::Codes> make_codes(std::string_view text, const KvFormatContext& context,
                                     const Kept& kept, std::string& name) {
  const std::vector<HeadWidths>& widths = kept.ranks.widths;
  ZackFormat::Codes codes(widths.size());
  if (!kept.codes.empty()) KVLANE_TRY(check_codes_of_bits(text));
  if (text.empty()) return codes;
  const std::string_view format_name = text.substr(0, text.find(':'));
  if (!can_code(format_name)) {
    return invalid_argument(
        "what zack keeps can be coded by hack, kvquant and formats with linear codes, not by '" +
        std::string(format_name) + "'");
  }
  std::map<std::tuple<int, int, std::string>, std::shared_ptr<const KvFormat>> made;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const std::string of_head = text_of_head(text, kept, i);
    std::shared_ptr<const KvFormat>& format = made[{widths[i].k, widths[i].v, of_head}];
    if (!format) {
      KvFormatContext narrow = context;
      narrow.shape = page_shape(context.shape.layers, widths[i]);
      KVLANE_ASSIGN(format, make_kv_format(of_head, narrow));
    }
    codes[i] = format;
  }
  const KvFormat& one = *codes.front();
  if (!(one.window() == KvWindow{})) {
    return invalid_argument(
        "sink and recent stand before the '+', as in zack:keep=0.5,sink=1+hack");
  }
  if (one.own_block().coded || one.own_block().sealed) {
    return invalid_argument("zack reads a query's own block in 16 bits");
  }
  name = "+" + one.name();
  if (!kept.codes.empty()) {
    // "hack:k=4,v=2,compute=bf16" without what only one head has.
    const std::string_view rest =
        std::string_view(one.name()).substr(hack_bits_text(kept.codes.front()).size());
    name = "+hack" + (rest.empty() ? "" : ":" + std::string(rest.substr(1)));
  }
  return codes;
}

}  // namespace

Result<zack::Rates> zack_rates(const KvFormatContext& context, zack::Weigh weigh) {
  const int d = context.shape.head_dim;
  KVLANE_TRY(check_head_dim(d));
  KVLANE_ASSIGN(const std::vector<float> k, gather(context, true, "singular_values", d));
  KVLANE_ASSIGN(const std::vector<float> v, gather(context, false, "singular_values", d));
  return zack::Rates::make({d, k, v}, weigh);
}

Result<std::shared_ptr<const KvFormat>> make_zack_format(FormatText text,
                                                         const KvFormatContext& context) {
  const std::string codes = text.take_codes();
  KVLANE_ASSIGN(const Said said, parse(text));
  const int d = context.shape.head_dim;
  KVLANE_TRY(check_head_dim(d));
  // What each head keeps, all heads decide.
  KvFormatContext whole = context;
  if (!context.has_all_heads()) whole.shape.kv_heads = context.heads.whole;
  KVLANE_ASSIGN(ZackFormat::Rotations rotations, read_rotations(whole));
  KVLANE_ASSIGN(Kept kept, said.bits > 0 ? choose_bits(whole, said) : choose_ranks(whole, said));
  const std::size_t matrix = std::size_t(d) * d;
  keep_heads_here(context, matrix, rotations.keys);
  keep_heads_here(context, matrix, rotations.queries);
  keep_heads_here(context, 1, kept.ranks.widths);
  keep_heads_here(context, 1, kept.codes);
  if (said.bits == 0 && codes.substr(0, codes.find(':')) == kZackKvquantCodes) {
    KVLANE_TRY(check_all_heads("zack+kvquant", context));
    return make_zack_kvquant({name_of(said), said.window, std::move(kept.ranks.widths)},
                             std::move(rotations), codes, context);
  }
  std::string name_of_codes;
  KVLANE_ASSIGN(ZackFormat::Codes made, make_codes(codes, context, kept, name_of_codes));
  return std::shared_ptr<const KvFormat>(std::make_shared<const ZackFormat>(
      name_of(said) + name_of_codes, context.shape, said.window, std::move(kept.ranks),
      std::move(made), std::move(rotations), tables_id(*context.tables, kZack)));
}

}  // namespace kvlane
