// Makes formats for attention on codes from their names, and walks over the pages of a slab.
// SPDX-License-Identifier: Apache-2.0
#include "quant/hack_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fp16_bounds.h"
#include "quant/slab_rows.h"

namespace kvlane {

using hack::Axis;
using hack::Meta;
using hack::Part;
using hack::Rounding;

namespace {

// Of a page's K or V.
constexpr std::size_t kValuesMax = std::size_t{kBlockTokens} * hack::kHeadDimMax;
// 8 bits, and m, s and a sum in 16 bits for every 32 values.
constexpr std::size_t kPageBytesMax = 2 * (kValuesMax + kValuesMax / 32 * (hack::kEntryBytes + 2));

// The largest magnitude for which all that is stored stays finite. kBoth sums squares.
float magnitude_max(const hack::Plane& plane) {
  const bool both = plane.axis == Axis::kBoth;
  if (plane.meta == Meta::kBf16) return both ? 0x1p56F : 0x1p100F;
  return both ? 0x1p14F : kFp16Max;
}

}  // namespace

HackFormat::HackFormat(std::string name, const KvShape& shape, const KvWindow& window,
                       const Options& options, Isa isa, int kv_head_first)
    : KvFormat(std::move(name), shape, window,
               shape.kv_heads *
                   hack::page_layout(options.k, options.v, shape.widths(), options.sums).bytes),
      options_(options),
      kv_head_first_(kv_head_first),
      layout_(hack::page_layout(options.k, options.v, shape.widths(), options.sums)),
      rows_(hack::row_kernels(isa)),
      seal_k_(hack::seal_kernel(options.k, Part::kKeys, options.rounding, isa)),
      seal_v_(hack::seal_kernel(options.v, Part::kValues, options.rounding, isa)),
      open_k_(hack::open_kernel(options.k, Part::kKeys, isa)),
      open_v_(hack::open_kernel(options.v, Part::kValues, isa)),
      sum_(hack::sum_kernel(isa)) {}

Status HackFormat::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  KVLANE_TRY(check_rows_are_finite(shape(), place, rows));
  for (int head = 0; head < shape().kv_heads; ++head) {
    const std::uint16_t* const keys = rows + shape().page_elements() * head;
    std::byte* const page = slab + layout_.bytes * head;
    KVLANE_TRY(seal_part(place, head, Part::kKeys, keys, page));
    KVLANE_TRY(seal_part(place, head, Part::kValues, keys + shape().page_plane_elements(), page));
    add_sums(page);
  }
  return {};
}

Status HackFormat::seal_part(SlabPlace place, int kv_head, Part part, const std::uint16_t* rows,
                             std::byte* page) const {
  const bool keys = part == Part::kKeys;
  const hack::Plane& plane = keys ? options_.k : options_.v;
  const int d = keys ? shape().widths().k : shape().widths().v;
  alignas(64) float values[kValuesMax];
  const float most = rows_.widen(rows, d, options_.mix, values);
  if (!(most <= magnitude_max(plane))) {
    return row_beyond(keys, shape(), place, kv_head, values, magnitude_max(plane));
  }
  const hack::Draw draw{static_cast<std::uint32_t>(place.layer),
                        static_cast<std::uint32_t>(kv_head_first_ + place.kv_head + kv_head),
                        static_cast<std::uint32_t>(place.position)};
  (keys ? seal_k_ : seal_v_)({plane, part, d, options_.rounding, draw, values,
                              page + (keys ? 0 : layout_.v_codes),
                              page + (keys ? layout_.k_metadata : layout_.v_metadata)});
  const std::size_t end =
      hack::metadata_bytes(plane, d) + (keys ? layout_.k_metadata : layout_.v_metadata);
  std::memset(page + end, 0, (keys ? layout_.v_metadata : layout_.bytes) - end);
  return {};
}

// Behind what a page has anyway; padding between is zeros already.
void HackFormat::add_sums(std::byte* page) const {
  if (!options_.sums) return;
  sum_(options_.k, shape().widths().k, page, page + layout_.k_sums);
  sum_(options_.v, shape().widths().v, page + layout_.v_codes, page + layout_.v_sums);
}

void HackFormat::open_page(SlabPlace /*place*/, const std::byte* slab, int kv_head,
                           std::uint16_t* page) const {
  const std::byte* const from = slab + layout_.bytes * kv_head;
  open_part(Part::kKeys, from, page);
  open_part(Part::kValues, from, page + shape().page_plane_elements());
}

void HackFormat::open_part(Part part, const std::byte* from, std::uint16_t* rows) const {
  const int d = part == Part::kKeys ? shape().widths().k : shape().widths().v;
  alignas(64) float values[kValuesMax];
  if (part == Part::kKeys) {
    open_k_({options_.k, part, d, from, from + layout_.k_metadata, values});
  } else {
    open_v_({options_.v, part, d, from + layout_.v_codes, from + layout_.v_metadata, values});
  }
  rows_.narrow(values, d, options_.mix, rows);
}

OwnBlock HackFormat::own_block() const {
  const Options& o = options_;
  return {o.code_own_keys || o.code_own_values, o.seal_own, o.code_own_values || o.seal_own};
}

void HackFormat::own_page(SlabPlace place, const std::uint16_t* rows, int kv_head, int tokens,
                          std::uint16_t* page) const {
  const int d = shape().head_dim;
  const std::size_t values = shape().page_plane_elements();
  KvFormat::own_page(place, rows, kv_head, tokens, page);
  alignas(64) std::byte coded[kPageBytesMax];
  for (const Part part : {Part::kKeys, Part::kValues}) {
    if (!(part == Part::kKeys ? options_.code_own_keys : options_.code_own_values)) continue;
    std::uint16_t* const own = page + (part == Part::kKeys ? 0 : values);
    // Copies of the last token widen no range.
    for (int token = tokens; token < kBlockTokens; ++token) {
      std::copy_n(own + std::size_t(tokens - 1) * d, d, own + std::size_t(token) * d);
    }
    const bool finite = std::all_of(own, own + values, is_finite_bf16);
    if (finite && seal_part(place, kv_head, part, own, coded).ok()) open_part(part, coded, own);
  }
}

std::size_t HackFormat::used_bytes(SlabPlace /*place*/, const std::byte* /*slab*/) const {
  return layout_.used * shape().kv_heads;
}

std::array<SlabSection, 4> HackFormat::sections() const {
  const auto [k, v] = shape().widths();
  return {SlabSection{0, hack::codes_bytes(options_.k, k), layout_.v_codes},
          {layout_.v_codes, hack::codes_bytes(options_.v, v), layout_.k_metadata},
          {layout_.k_metadata, hack::metadata_bytes(options_.k, k), layout_.v_metadata},
          {layout_.v_metadata, hack::metadata_bytes(options_.v, v), layout_.bytes}};
}

void HackFormat::pack(SlabPlace /*place*/, const std::byte* slab, std::byte* packed) const {
  pack_sections(sections(), shape().kv_heads, slab, packed);
}

bool HackFormat::packs_as_it_lies(int layer) const {
  // Then no section has a gap behind it, and the slab is not rounded up.
  return !options_.sums && layout_.used * shape().kv_heads == slab_bytes(layer);
}

Status HackFormat::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  KVLANE_TRY(check_packed_bytes(place, packed, layout_.used * shape().kv_heads));
  unpack_sections(sections(), shape().kv_heads, packed.data(), slab);
  for (int head = 0; head < shape().kv_heads; ++head) add_sums(slab + layout_.bytes * head);
  return {};
}

namespace {

constexpr std::array kBits = {2, 4, 8};
constexpr std::array kPartitions = {32, 64, 128};
constexpr std::array<std::string_view, 2> kRoundings = {"rn", "sr"};
constexpr std::array<std::string_view, 2> kMetas = {"fp16", "bf16"};
// In the order of HackFormat::Compute.
constexpr std::array<std::string_view, 4> kComputes = {"int8", "bf16", "dequantise", "complete"};
constexpr std::array<std::string_view, 2> kSums = {"stored", "computed"};
constexpr std::array<std::string_view, 2> kKeyTails = {"16", "code"};
constexpr std::array<std::string_view, 2> kDiagonals = {"16", "int8"};

// A parameter as canonical names have it: left out where it says what goes without saying.
std::string parameter(const char* key, const std::string& value, std::string_view usual) {
  return value == usual ? "" : std::string(",") + key + "=" + value;
}

// What a text says, and the parameters as the canonical name has them.
struct HackChoice {
  HackFormat::Options options;
  std::string parameters;
};

// Parameters of the paper's partitions mean nothing without these.
Status check_needs_partitions(const FormatText& text) {
  for (const char* const key : {"round", "ktail", "rqe", "diag"}) {
    if (!text.has(key)) continue;
    return invalid_argument("KV format 'hack': " + std::string(key) + " needs p=32, 64 or 128");
  }
  return {};
}

// What attention does, and what it wants beside codes for that.
Status choose_compute(FormatText& text, bool paper, HackChoice& choice) {
  KVLANE_ASSIGN(const std::string compute, text.word("compute", kComputes, "int8"));
  choice.options.compute =
      static_cast<HackFormat::Compute>(std::ranges::find(kComputes, compute) - kComputes.begin());
  choice.parameters += parameter("compute", compute, "int8");
  if (choice.options.compute != HackFormat::Compute::kComplete) {
    if (!text.has("sums")) return {};
    return invalid_argument("KV format 'hack': sums needs compute=complete");
  }
  if (!paper) return invalid_argument("KV format 'hack': compute=complete needs p=32, 64 or 128");
  KVLANE_ASSIGN(const std::string sums, text.word("sums", kSums, "stored"));
  choice.options.sums = sums == "stored";
  choice.parameters += parameter("sums", sums, "stored");
  return {};
}

// The paper's way with a query's own block, and its ablations.
Status choose_own_block(FormatText& text, HackChoice& choice) {
  KVLANE_ASSIGN(const std::string key_tail, text.word("ktail", kKeyTails, "16"));
  KVLANE_ASSIGN(const int keep_values, text.one_of("rqe", kSwitch, 1));
  KVLANE_ASSIGN(const std::string diagonal, text.word("diag", kDiagonals, "16"));
  choice.options.code_own_keys = key_tail == "code";
  choice.options.code_own_values = keep_values == 0;
  choice.options.seal_own = diagonal == "int8";
  const HackFormat::Compute compute = choice.options.compute;
  if (choice.options.seal_own && compute != HackFormat::Compute::kInt8 &&
      compute != HackFormat::Compute::kComplete) {
    return invalid_argument("KV format 'hack': diag=int8 needs compute=int8 or compute=complete");
  }
  choice.parameters += parameter("ktail", key_tail, "16") +
                       parameter("rqe", std::to_string(keep_values), "1") +
                       parameter("diag", diagonal, "16");
  return {};
}

Result<HackChoice> choose(FormatText& text) {
  KVLANE_ASSIGN(const int k_bits, text.one_of("k", kBits, 2));
  KVLANE_ASSIGN(const int v_bits, text.one_of("v", kBits, 2));
  KVLANE_ASSIGN(const int partition, text.one_of("p", kPartitions, 0));
  KVLANE_ASSIGN(const std::string type, text.word("meta", kMetas, "fp16"));
  const Meta meta = type == kMetas[0] ? Meta::kFp16 : Meta::kBf16;
  const bool paper = partition != 0;
  if (!paper) KVLANE_TRY(check_needs_partitions(text));
  KVLANE_ASSIGN(const int mix, text.one_of("mix", kSwitch, paper ? 0 : 1));
  HackChoice choice{{{k_bits, Axis::kBoth, 0, meta},
                     {v_bits, Axis::kBoth, 0, meta},
                     mix == 1,
                     Rounding::kNearest,
                     HackFormat::Compute::kInt8},
                    "k=" + std::to_string(k_bits) + ",v=" + std::to_string(v_bits)};
  if (paper) {
    KVLANE_ASSIGN(const std::string round, text.word("round", kRoundings, "rn"));
    choice.options.k = {k_bits, Axis::kToken, partition, meta};
    choice.options.v = {v_bits, Axis::kChannel, std::min(partition, kBlockTokens), meta};
    if (round == "sr") choice.options.rounding = Rounding::kStochastic;
    choice.parameters += ",p=" + std::to_string(partition) + parameter("round", round, "rn");
  }
  choice.parameters +=
      parameter("mix", std::to_string(mix), paper ? "0" : "1") + parameter("meta", type, "fp16");
  KVLANE_TRY(choose_compute(text, paper, choice));
  if (paper) KVLANE_TRY(choose_own_block(text, choice));
  return choice;
}

}  // namespace

Result<std::shared_ptr<const KvFormat>> make_hack_format(FormatText text,
                                                         const KvFormatContext& context) {
  const KvShape& shape = context.shape;
  if (shape.type != ElementType::kBf16) return unsupported("KV format 'hack' codes bf16 rows only");
  if (shape.head_dim < hack::kHeadDimStep || shape.head_dim > hack::kHeadDimMax ||
      shape.head_dim % hack::kHeadDimStep != 0) {
    return unsupported("KV format 'hack' takes a head_dim that is a multiple of " +
                       std::to_string(hack::kHeadDimStep) + " up to " +
                       std::to_string(hack::kHeadDimMax) + ", not " +
                       std::to_string(shape.head_dim));
  }
  KVLANE_ASSIGN(const HackChoice choice, choose(text));
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  return std::shared_ptr<const KvFormat>(
      std::make_shared<const HackFormat>("hack:" + choice.parameters + window_text(window), shape,
                                         window, choice.options, context.isa, context.heads.first));
}

}  // namespace kvlane
