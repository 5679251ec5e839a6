// Names by table, rows one by one.
// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_tensors.h"

#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/bf16.h"
#include "model/gguf_config.h"
#include "model/gguf_config_writer.h"
#include "model/layout.h"

namespace kvlane {
namespace {

// "blk.0.attn_q.weight" in parts.
struct Parts {
  std::string prefix;       // of the checkpoint, with the number of a layer: "model.layers.0."
  std::string_view module;  // "attn_q"
  std::string_view kind;    // ".weight"
  std::span<const GgufName> names;  // where to look for the module
};

// nullopt: no such tensor can be.
std::optional<Parts> parts_of(std::string_view name, const GgufForm& form) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  Parts parts{.module = name.substr(0, dot), .kind = name.substr(dot), .names = form.ends};
  if (parts.kind != ".weight" && parts.kind != ".bias") return std::nullopt;
  if (!parts.module.starts_with("blk.")) return parts;
  parts.module.remove_prefix(4);
  const std::size_t end = parts.module.find('.');
  const auto digits = parts.module.substr(0, end);
  int layer = -1;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  if (end == std::string_view::npos || error != std::errc() || layer < 0 ||
      stop != digits.data() + digits.size()) {
    return std::nullopt;
  }
  parts.prefix = std::string(form.layers) + std::to_string(layer) + ".";
  parts.module.remove_prefix(end + 1);
  parts.names = form.layer;
  return parts;
}

struct Place {
  std::string name;  // in the checkpoint
  GgufRows rows = GgufRows::kSame;
};

// Of several names the one that the model has; nullopt for an unknown tensor.
std::optional<Place> find_place(std::string_view name, const GgufForm& form,
                                const std::set<std::string>& known) {
  const std::optional<Parts> parts = parts_of(name, form);
  std::optional<Place> found;
  if (!parts) return found;
  for (const GgufName& candidate : parts->names) {
    if (candidate.gguf != parts->module) continue;
    std::string ours = parts->prefix;
    ours += candidate.checkpoint;
    ours += parts->kind;
    const bool is_it = known.contains(ours);
    if (!found || is_it) found = Place{std::move(ours), candidate.rows};
    if (is_it) break;
  }
  return found;
}

ElementType element_type(GgufType type) {
  switch (type) {
    case GgufType::kF32: return ElementType::kF32;
    case GgufType::kBf16: return ElementType::kBf16;
    case GgufType::kF16:
    case GgufType::kQ8_0: break;
  }
  return ElementType::kFp16;
}

// Where the rows of a tensor are in the file.
class RowOrder {
 public:
  RowOrder(GgufRows rows, const ModelConfig& config)
      : rows_(rows),
        head_(static_cast<std::size_t>(config.head_dim)),
        heads_(static_cast<std::size_t>(config.heads)),
        kv_heads_(static_cast<std::size_t>(config.kv_heads)) {}

  // As in the checkpoint. One group has all Q, all K and all V as it is.
  bool same() const {
    return rows_ == GgufRows::kSame || (rows_ == GgufRows::kStacked && kv_heads_ == 1);
  }

  // How many there must be, unless that is for others to say.
  std::optional<std::size_t> count() const {
    switch (rows_) {
      case GgufRows::kSame: break;
      case GgufRows::kQueryPairs: return heads_ * head_;
      case GgufRows::kKeyPairs: return kv_heads_ * head_;
      case GgufRows::kStacked: return (heads_ + 2 * kv_heads_) * head_;
    }
    return std::nullopt;
  }

  // The row of the file that is row `row` of the checkpoint.
  std::size_t source(std::size_t row) const {
    if (same()) return row;
    const std::size_t in_head = row % head_;
    if (rows_ != GgufRows::kStacked) {
      const std::size_t half = head_ / 2;
      return row - in_head + 2 * (in_head % half) + in_head / half;
    }
    const std::size_t queries = heads_ / kv_heads_;  // of a group
    const std::size_t group = row / head_ / (queries + 2);
    const std::size_t member = row / head_ % (queries + 2);
    const std::size_t head = member < queries    ? group * queries + member
                             : member == queries ? heads_ + group
                                                 : heads_ + kv_heads_ + group;
    return head * head_ + in_head;
  }

 private:
  GgufRows rows_;
  std::size_t head_, heads_, kv_heads_;
};

// A copy, row by row.
Bytes convert(const GgufTensor& tensor, const RowOrder& order) {
  const auto rows = static_cast<std::size_t>(tensor.shape[0]);
  const std::size_t columns =
      tensor.shape.size() == 1 ? 1 : static_cast<std::size_t>(tensor.shape[1]);
  const std::size_t row_bytes = columns * element_bytes(element_type(tensor.type));
  Bytes converted(rows * row_bytes);
  std::vector<float> wide(columns);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t from = order.source(row);
    std::byte* const to = converted.data() + row * row_bytes;
    if (tensor.type != GgufType::kQ8_0) {
      std::memcpy(to, tensor.bytes.data() + from * row_bytes, row_bytes);
      continue;
    }
    dequantise(tensor, from * columns, columns, wide.data());
    for (std::size_t column = 0; column < columns; ++column) {
      const fp16 narrow = to_fp16(wide[column]);
      std::memcpy(to + 2 * column, &narrow, 2);
    }
  }
  return converted;
}

bool is_configuration(std::string_view name) {
  return name == kRopeDivisors || name == kRopeLongFactors || name == kRopeShortFactors;
}

}  // namespace

Result<GgufTensors> gguf_tensors(const GgufFile& file, const ModelConfig& config) {
  KVLANE_ASSIGN(const Family* const family, gguf_family(file));
  std::set<std::string> known;
  for (TensorSpec& spec : model_tensors(config)) known.insert(std::move(spec.name));
  GgufTensors tensors;
  for (const auto& [name, tensor] : file.tensors) {
    if (is_configuration(name)) continue;
    std::optional<Place> place = find_place(name, *family->gguf, known);
    if (!place) return unsupported("it has tensor '" + name + "', which kvlane does not know");
    const RowOrder order(place->rows, config);
    const std::size_t dimensions = tensor.shape.size();
    if (dimensions < 1 || dimensions > 2 ||
        static_cast<std::size_t>(tensor.shape[0]) !=
            order.count().value_or(static_cast<std::size_t>(tensor.shape[0])) ||
        (dimensions == 1 && tensor.type == GgufType::kQ8_0)) {
      return corrupt("tensor '" + name + "' has the shape " + shape_text(tensor.shape));
    }
    ByteView bytes = tensor.bytes;
    if (!order.same() || tensor.type == GgufType::kQ8_0) {
      tensors.converted.push_back(convert(tensor, order));
      bytes = tensors.converted.back();
    }
    tensors.views[std::move(place->name)] = {element_type(tensor.type), tensor.shape, bytes};
  }
  return tensors;
}

}  // namespace kvlane
