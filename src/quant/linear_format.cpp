// Makes formats with linear codes from their names, and walks over the pages of a slab.
// SPDX-License-Identifier: Apache-2.0
#include "quant/linear_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/bf16.h"

namespace kvlane {

using linear::CodeKind;
using linear::Entry;
using linear::Groups;

namespace {

constexpr std::uint16_t kInfinity = 0x7f80;
constexpr std::uint16_t kAboveFp16 = 0x4780;  // 65536, the next BF16 number after 65280

// The largest magnitude that a plane takes, plus one, as BF16 without its sign.
std::uint16_t magnitude_limit(const linear::Plane& plane) {
  return plane.entry == Entry::kE8m0 ? kInfinity : kAboveFp16;
}

std::uint16_t magnitude(std::uint16_t bits) { return static_cast<std::uint16_t>(bits & 0x7fffU); }

// Index of the first value that reaches the limit. Looks at all of them first, as there is
// practically never one.
std::optional<std::size_t> first_beyond(const std::uint16_t* rows, std::size_t count,
                                        std::uint16_t limit) {
  std::int16_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    most = std::max(most, static_cast<std::int16_t>(magnitude(rows[i])));
  }
  if (most < limit) return std::nullopt;
  for (std::size_t i = 0; i < count; ++i) {
    if (magnitude(rows[i]) >= limit) return i;
  }
  return std::nullopt;
}

std::string number(float x) {
  char text[32];
  const int length = std::snprintf(text, sizeof(text), "%g", double{x});
  return {text, static_cast<std::size_t>(length)};
}

Status refuse(char which, SlabPlace place, const KvShape& shape, int kv_head, std::size_t index,
              float value) {
  const int channels = which == 'K' ? shape.widths().k : shape.widths().v;
  const std::string where = std::string(1, which) + " of layer " + std::to_string(place.layer) +
                            ", KV head " + std::to_string(place.kv_head + kv_head) + ", token " +
                            std::to_string(place.position + index / channels) + " is " +
                            number(value);
  if ((std::bit_cast<std::uint32_t>(value) & 0x7f800000U) == 0x7f800000U) {
    return invalid_argument(where + ": KV formats take finite numbers only");
  }
  return invalid_argument(where + ", beyond 65504, the largest that FP16 scales hold");
}

}  // namespace

LinearFormat::LinearFormat(std::string name, const KvShape& shape, const KvWindow& window,
                           const linear::Plane& k, const linear::Plane& v, Isa isa)
    : KvFormat(std::move(name), shape, window,
               shape.kv_heads * linear::page_layout(k, v, shape.widths()).bytes),
      k_(k),
      v_(v),
      layout_(linear::page_layout(k, v, shape.widths())),
      seal_k_(linear::seal_kernel(k, isa)),
      seal_v_(linear::seal_kernel(v, isa)),
      open_k_(linear::open_kernel(k, isa)),
      open_v_(linear::open_kernel(v, isa)) {}

Status LinearFormat::seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const {
  const auto [k_dim, v_dim] = shape().widths();
  for (int head = 0; head < shape().kv_heads; ++head) {
    const std::uint16_t* const k = rows + shape().page_elements() * head;
    const std::uint16_t* const v = k + shape().page_plane_elements();
    if (const auto at = first_beyond(k, std::size_t{kBlockTokens} * k_dim, magnitude_limit(k_))) {
      return refuse('K', place, shape(), head, *at, to_float(bf16{k[*at]}));
    }
    if (const auto at = first_beyond(v, std::size_t{kBlockTokens} * v_dim, magnitude_limit(v_))) {
      return refuse('V', place, shape(), head, *at, to_float(bf16{v[*at]}));
    }
    std::byte* const page = slab + layout_.bytes * head;
    seal_k_({k_, k_dim, k, page + layout_.k_codes, page + layout_.k_metadata});
    seal_v_({v_, v_dim, v, page + layout_.v_codes, page + layout_.v_metadata});
    clear_gaps(sections(), page);
  }
  return {};
}

void LinearFormat::open_page(SlabPlace /*place*/, const std::byte* slab, int kv_head,
                             std::uint16_t* page) const {
  const auto [k_dim, v_dim] = shape().widths();
  const std::byte* const from = slab + layout_.bytes * kv_head;
  open_k_({k_, k_dim, from + layout_.k_codes, from + layout_.k_metadata, page});
  open_v_({v_, v_dim, from + layout_.v_codes, from + layout_.v_metadata,
           page + shape().page_plane_elements()});
}

std::size_t LinearFormat::used_bytes(SlabPlace /*place*/, const std::byte* /*slab*/) const {
  return layout_.used * shape().kv_heads;
}

std::array<SlabSection, 4> LinearFormat::sections() const {
  const auto [k, v] = shape().widths();
  return {SlabSection{layout_.k_codes, linear::codes_bytes(k_, k), layout_.v_codes},
          {layout_.v_codes, linear::codes_bytes(v_, v), layout_.k_metadata},
          {layout_.k_metadata, linear::metadata_bytes(k_, k), layout_.v_metadata},
          {layout_.v_metadata, linear::metadata_bytes(v_, v), layout_.bytes}};
}

void LinearFormat::pack(SlabPlace /*place*/, const std::byte* slab, std::byte* packed) const {
  pack_sections(sections(), shape().kv_heads, slab, packed);
}

Status LinearFormat::unpack(SlabPlace place, ByteView packed, std::byte* slab) const {
  KVLANE_TRY(check_packed_bytes(place, packed, layout_.used * shape().kv_heads));
  unpack_sections(sections(), shape().kv_heads, packed.data(), slab);
  return {};
}

namespace {

constexpr int kMxBlock = 32;

constexpr linear::Plane fp8(CodeKind code) { return {code, Groups::kPage, 0, Entry::kE8m0, false}; }
constexpr linear::Plane mx(CodeKind code) {
  return {code, Groups::kRow, kMxBlock, Entry::kE8m0, true};
}

// Formats without parameters of their own.
struct FloatFormat {
  std::string_view name;
  linear::Plane plane;
};
constexpr std::array kFloatFormats = {
    FloatFormat{"fp8_e4m3", fp8(CodeKind::kE4m3)},  FloatFormat{"fp8_e5m2", fp8(CodeKind::kE5m2)},
    FloatFormat{"mxfp8_e4m3", mx(CodeKind::kE4m3)}, FloatFormat{"mxfp8_e5m2", mx(CodeKind::kE5m2)},
    FloatFormat{"mxfp6_e2m3", mx(CodeKind::kE2m3)}, FloatFormat{"mxfp6_e3m2", mx(CodeKind::kE3m2)},
    FloatFormat{"mxfp4", mx(CodeKind::kE2m1)},
};

constexpr std::array kKiviBits = {2, 4};
constexpr std::array kKiviGroups = {32, 64};

// What a text says: the planes, and the parameters as the canonical name has them.
struct LinearChoice {
  linear::Plane k, v;
  std::string parameters;
};

Result<LinearChoice> choose_integer(FormatText& text, HeadWidths dims) {
  const bool wide = text.name() == "int8";
  KVLANE_ASSIGN(const int symmetric, text.one_of("sym", kSwitch, wide ? 1 : 0));
  linear::Plane plane{wide ? CodeKind::kUint8 : CodeKind::kUint4, Groups::kRow, dims.k,
                      Entry::kMinScale, false};
  if (symmetric != 0) {
    plane.code = wide ? CodeKind::kSint8 : CodeKind::kSint4;
    plane.entry = Entry::kScale;
  }
  linear::Plane v_plane = plane;
  v_plane.group = dims.v;
  return LinearChoice{plane, v_plane, "sym=" + std::to_string(symmetric)};
}

Result<LinearChoice> choose_kivi(FormatText& text) {
  KVLANE_ASSIGN(const int bits, text.one_of("bits", kKiviBits, 2));
  KVLANE_ASSIGN(const int group, text.one_of("group", kKiviGroups, 32));
  const CodeKind code = bits == 2 ? CodeKind::kUint2 : CodeKind::kUint4;
  return LinearChoice{{code, Groups::kColumn, group, Entry::kMinScale, false},
                      {code, Groups::kRow, group, Entry::kMinScale, false},
                      "bits=" + std::to_string(bits) + ",group=" + std::to_string(group)};
}

Result<LinearChoice> choose(FormatText& text, HeadWidths dims) {
  for (const FloatFormat& format : kFloatFormats) {
    if (format.name == text.name()) return LinearChoice{format.plane, format.plane, ""};
  }
  if (text.name() == "kivi") return choose_kivi(text);
  return choose_integer(text, dims);
}

}  // namespace

Result<std::shared_ptr<const KvFormat>> make_linear_format(FormatText text,
                                                           const KvFormatContext& context) {
  const KvShape& shape = context.shape;
  if (shape.type != ElementType::kBf16) {
    return unsupported("KV format '" + text.name() + "' codes bf16 rows only");
  }
  if (shape.head_dim < 1 || shape.head_dim > linear::kHeadDimMax) {
    return unsupported("KV format '" + text.name() + "' takes a head_dim of 1 to " +
                       std::to_string(linear::kHeadDimMax) + ", not " +
                       std::to_string(shape.head_dim));
  }
  KVLANE_ASSIGN(const LinearChoice choice, choose(text, shape.widths()));
  KVLANE_ASSIGN(const KvWindow window, text.window());
  KVLANE_TRY(text.finish());
  std::string parameters = choice.parameters + window_text(window);
  if (choice.parameters.empty() && !parameters.empty()) parameters.erase(0, 1);  // the comma
  std::string name = parameters.empty() ? text.name() : text.name() + ":" + parameters;
  return std::shared_ptr<const KvFormat>(std::make_shared<const LinearFormat>(
      std::move(name), shape, window, choice.k, choice.v, context.isa));
}

}  // namespace kvlane
