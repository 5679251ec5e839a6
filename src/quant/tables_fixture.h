// Rows like those of a model, tables that fit them, and rotations: for tests of formats that need
// tables.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "base/bf16.h"
#include "base/random.h"
#include "quant/cachegen_symbols.h"
#include "quant/kv_format.h"
#include "quant/slab_rows.h"
#include "quant/table_lookup.h"
#include "quant/zack.h"

namespace kvlane::tables_fixture {

// From a normal distribution, nearly: the sum of four dice. The same for the same arguments.
inline float normal(std::uint64_t seed, std::uint32_t index) {
  double sum = -2;
  for (const std::uint32_t die : philox4x32(seed, {index, 0, 0, 0})) sum += die * 0x1p-32;
  return static_cast<float>(sum * std::sqrt(3.0));
}

// A channel's centre and width: some channels of K are far wider than others.
inline float centre(bool is_key, int channel) {
  return is_key && channel % 7 == 3 ? 3.0F : 0.1F * normal(1, static_cast<std::uint32_t>(channel));
}
inline float width(bool is_key, int channel) {
  return is_key && channel % 11 == 5 ? 4.0F : 0.5F + 0.05F * static_cast<float>(channel % 9);
}

// [kv_heads] pages of a slab as they would be without rotation, in F32: some values lie far out.
inline std::vector<float> plain_rows(const KvShape& shape, std::uint64_t seed) {
  std::vector<float> rows(shape.slab_bytes() / 2);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t plane = i / shape.page_plane_elements();
    const auto channel = static_cast<int>(plane / 2 * shape.head_dim + i % shape.head_dim);
    const bool is_key = plane % 2 == 0;
    const auto index = static_cast<std::uint32_t>(i);
    const float far = philox4x32(seed ^ 7, {index, 0, 0, 0})[0] % 200 == 0 ? 6.0F : 1.0F;
    rows[i] = centre(is_key, channel) + far * width(is_key, channel) * normal(seed, index);
  }
  return rows;
}

inline std::vector<std::uint16_t> to_bits(const std::vector<float>& values) {
  std::vector<std::uint16_t> bits(values.size());
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = to_bf16(values[i]).bits;
  return bits;
}

// Half a step of BF16.
inline double half_ulp(double x) {
  return std::ldexp(1, std::ilogb(std::max(std::abs(x), 1e-30)) - 8);
}

inline std::vector<float> inverse_frequencies(int head_dim) {
  std::vector<float> frequencies;
  for (int i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / head_dim)));
  }
  return frequencies;
}

// The same with K rotated as at `position`, in BF16: what seal() gets.
inline std::vector<std::uint16_t> rotated_rows(const KvShape& shape, std::uint64_t seed,
                                               const RopeTable& rope_table, int position) {
  std::vector<float> rows = plain_rows(shape, seed);
  for (int head = 0; head < shape.kv_heads; ++head) {
    for (int token = 0; token < kBlockTokens; ++token) {
      rope(rows.data() + 2 * head * shape.page_plane_elements() +
               std::size_t(token) * shape.head_dim,
           rope_table.angles(position + token), shape.head_dim);
    }
  }
  return to_bits(rows);
}

inline std::vector<KvShape> shapes() {
  return {{3, 2, 64, ElementType::kBf16},  {3, 1, 80, ElementType::kBf16},
          {4, 3, 96, ElementType::kBf16},  {3, 2, 128, ElementType::kBf16},
          {3, 1, 256, ElementType::kBf16}, {3, 2, 40, ElementType::kBf16}};
}

inline float channel_value(const KvShape& shape, const std::vector<std::uint16_t>& rows,
                           bool is_key, int token, int channel) {
  return to_float(bf16{slab_row(shape, rows.data(), channel / shape.head_dim, is_key,
                                token)[channel % shape.head_dim]});
}

// CacheGen's tables: counted over slabs of the given rows, as calibration does it.
inline void add_cachegen_tables(const KvShape& shape,
                                const std::vector<std::vector<std::uint16_t>>& slabs,
                                KvTables& tables) {
  using namespace cachegen;
  const int channels = shape.kv_heads * shape.head_dim;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const std::string prefix = table_prefix("cachegen", layer, is_key);
      auto& deviation = tables.values[prefix + "deviation"];
      deviation.resize(channels);
      for (int c = 0; c < channels; ++c) deviation[c] = width(is_key, c);
      auto& delta = tables.values[prefix + "delta"];
      auto& anchors = tables.values[prefix + "anchor"];
      delta.assign(std::size_t(channels) * kDeltaSymbols, 0);
      anchors.assign(std::size_t(channels) * kAnchorSymbols, 0);
      for (const int bins : kBins) {
        tables.values[prefix + "bins" + std::to_string(bins)].assign(
            std::size_t(channels) * symbols_of(bins), 0);
      }
      for (const auto& rows : slabs) {
        for (int token = 0; token < kBlockTokens; ++token) {
          const float largest = largest_magnitude(shape, rows.data(), is_key, token);
          const int anchor_token = token - token % kAnchorEvery;
          const Scale anchor(largest_magnitude(shape, rows.data(), is_key, anchor_token),
                             kAnchorMiddle);
          for (int c = 0; c < channels; ++c) {
            const float x = channel_value(shape, rows, is_key, token, c);
            for (const int bins : kBins) {
              const int symbol = symbol_of(x, Scale(largest, middle_of(bins)));
              ++tables.values[prefix + "bins" + std::to_string(bins)]
                             [std::size_t(c) * symbols_of(bins) + symbol];
            }
            const int from = symbol_of(channel_value(shape, rows, is_key, anchor_token, c), anchor);
            if (is_anchor(token)) {
              ++anchors[std::size_t(c) * kAnchorSymbols + (from >> kAnchorLowBits)];
            } else {
              const float per_step = step_inverse(deviation[c] * bin_width(layer, shape.layers));
              const float distance = x - value_of(from, kAnchorMiddle, anchor.largest_value);
              ++delta[std::size_t(c) * kDeltaSymbols + delta_symbol_of(distance, per_step)];
            }
          }
        }
      }
    }
  }
}

// Those of one layer's K or V, with limits for these channels of the rows.
inline void add_kvquant_part(const std::string& format, int layer, bool is_key,
                             const std::vector<int>& channels, KvTables& tables) {
  for (const int outliers : {0, 1}) {
    const std::string prefix =
        table_prefix(format, layer, is_key) + "o" + std::to_string(outliers) + ".";
    const float widths = (outliers == 1 ? 2.5F : 12.0F) + 0.1F * static_cast<float>(layer);
    for (const int c : is_key ? channels : std::vector<int>()) {
      tables.values[prefix + "low"].push_back(centre(true, c) - widths * width(true, c));
      tables.values[prefix + "high"].push_back(centre(true, c) + widths * width(true, c));
    }
    for (const int bits : {2, 3, 4}) {
      for (int i = 0; i < 1 << bits; ++i) {
        const float even = (2.0F * static_cast<float>(i) + 1) / static_cast<float>(1 << bits) - 1;
        const float signpost = even * (0.6F + 0.4F * std::abs(even));
        const std::string name = prefix + "b" + std::to_string(bits);
        tables.values[name + ".signposts"].push_back(signpost);
        tables.values[name + ".values"].push_back(bits == 2 ? 1.1F * signpost : signpost);
      }
    }
  }
}

// KVQuant's tables: limits at so many widths around each channel's centre, signposts denser in the
// middle; all different by layer.
inline void add_kvquant_tables(const KvShape& shape, KvTables& tables) {
  std::vector<int> channels;
  for (int c = 0; c < shape.kv_heads * shape.head_dim; ++c) channels.push_back(c);
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      add_kvquant_part("kvquant", layer, is_key, channels, tables);
    }
  }
}

// ZACK's tables: reflections as rotations, and spectra and errors of which no two are alike.
// `reflect`: else rotations change nothing.
inline void add_zack_tables(const KvShape& shape, bool reflect, KvTables& tables) {
  const int d = shape.head_dim;
  for (int plane = 0; plane < 2 * shape.layers * shape.kv_heads; ++plane) {
    const std::string prefix = table_prefix("zack", plane / 2 / shape.kv_heads, plane % 2 == 0);
    std::vector<float> axis(d);
    float square = 0;
    for (int i = 0; i < d; ++i) {
      axis[i] = reflect ? normal(100 + plane, static_cast<std::uint32_t>(i)) : 0;
      square += axis[i] * axis[i];
    }
    auto& rotation = tables.values[prefix + "rotation"];
    auto& singular_values = tables.values[prefix + "singular_values"];
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        const float along = reflect ? 2 * axis[i] * axis[j] / square : 0;
        rotation.push_back((i == j ? 1.0F : 0.0F) - along);
      }
      const float fall = 2.0F + static_cast<float>(plane * 5 % 7);
      singular_values.push_back(std::exp(-fall * static_cast<float>(i) / static_cast<float>(d)));
    }
    const float weight = 0.1F + static_cast<float>(plane * 3 % 8);
    for (const float lost : {0.12F, 0.01F, 0.0001F}) {
      for (int w = 16; w <= d; w += 16) {
        const float tail = singular_values[singular_values.size() - d + w - 1];
        const float dropped = w < d ? tail * tail : 0;
        tables.values[prefix + "errors"].push_back(weight * (lost + dropped));
      }
    }
  }
}

// The same behind a name of `zack`, whose tables are there: for the dimensions that it keeps.
inline void add_zack_kvquant_tables(const std::string& zack, const KvShape& shape,
                                    KvTables& tables) {
  const auto made = make_kv_format(zack, {.shape = shape, .tables = &tables});
  if (!made.ok()) throw std::runtime_error(made.status().message());
  const auto& format = dynamic_cast<const ZackFormat&>(**made);
  for (int i = 0; i < 2 * shape.layers; ++i) {
    const bool is_key = i % 2 == 0;
    std::vector<int> channels;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const HeadWidths widths = format.widths(i / 2, head);
      const int width = is_key ? widths.k : widths.v;
      tables.values[table_prefix(zack + "+kvquant", i / 2, is_key) + "widths"].push_back(
          static_cast<float>(width));
      for (int c = 0; c < width; ++c) channels.push_back(head * shape.head_dim + c);
    }
    add_kvquant_part(zack + "+kvquant", i / 2, is_key, channels, tables);
  }
}

// Makes K's rotations anything but orthogonal, and gives queries what undoes that: columns of the
// one are stretched, those of the other shrunk as much.
inline void stretch_zack_rotations(const KvShape& shape, KvTables& tables) {
  for (int layer = 0; layer < shape.layers; ++layer) {
    const std::string prefix = table_prefix("zack", layer, true);
    std::vector<float>& keys = tables.values.at(prefix + "rotation");
    std::vector<float>& queries = tables.values[prefix + "query_rotation"] = keys;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const float factor = 0.2F + 0.3F * static_cast<float>(i % shape.head_dim % 11);
      keys[i] *= factor;
      queries[i] /= factor;
    }
  }
}

// Memory aligned to 64 that ends where it ends, so that AddressSanitizer sees every slip.
class Lines {
 public:
  explicit Lines(std::size_t bytes) : lines_((bytes + 63) / 64) {
    std::memset(data(), 0xA5, 64 * lines_.size());
  }
  std::byte* data() { return lines_.data()->bytes; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

struct Sealed {
  Sealed(const KvFormat& format, SlabPlace place, const std::vector<std::uint16_t>& rows)
      : slab(format.slab_bytes()) {
    status = format.seal(place, rows.data(), slab.data());
  }
  Lines slab;
  Status status;
};

// All pages of a slab.
inline std::vector<std::uint16_t> open(const KvFormat& format, SlabPlace place,
                                       const std::byte* slab) {
  const KvShape& shape = format.shape();
  Lines memory(shape.page_bytes());
  std::vector<std::uint16_t> rows;
  for (int head = 0; head < shape.kv_heads; ++head) {
    auto* const page = reinterpret_cast<std::uint16_t*>(memory.data());
    format.open_page(place, slab, head, page);
    rows.insert(rows.end(), page, page + shape.page_bytes() / 2);
  }
  return rows;
}

// Made once for each shape: that takes a while.
template <class World>
const World& world_of(const KvShape& shape) {
  static std::vector<std::unique_ptr<World>> worlds;
  for (const auto& world : worlds) {
    if (world->shape == shape) return *world;
  }
  return *worlds.emplace_back(std::make_unique<World>(shape));
}

// The format, or the test fails with the reason.
inline std::shared_ptr<const KvFormat> made(std::string_view text, const KvFormatContext& context) {
  auto format = make_kv_format(text, context);
  if (!format.ok()) throw std::runtime_error(format.status().message());
  return *format;
}

}  // namespace kvlane::tables_fixture
