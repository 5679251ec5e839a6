// Formats that attention on devices computes on, and why others are none.
// SPDX-License-Identifier: Apache-2.0
#include "model/format_codes.h"

#include <string>

#include "attention/hack_decode_gpu.h"
#include "quant/hack_format.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

std::string none_of(const KvFormat& format) {
  return "KV format '" + format.name() + "' has no kernels for devices";
}

Result<DeviceFormat> narrow_of(const ZackFormat& format) {
  const KvShape& shape = format.shape();
  const std::size_t values = std::size_t(shape.head_dim) * shape.head_dim;
  DeviceNarrow narrow{format.window(), {}, {}};
  for (int i = 0; i < shape.layers * shape.kv_heads; ++i) {
    const int layer = i / shape.kv_heads, head = i % shape.kv_heads;
    if (format.codes(layer, head) != nullptr) {
      return unsupported(none_of(format) +
                         ", which keep zack's dimensions in 16 bits: use --device cpu");
    }
    narrow.widths.push_back(format.widths(layer, head));
    const float* const rotation = format.key_rotation(layer, head);
    if (rotation == nullptr) {
      return unsupported(none_of(format) +
                         " for a model whose weights have K's rotation: use --device cpu");
    }
    if (format.query_rotation(layer, head) != rotation) {
      return unsupported(none_of(format) +
                         " with rotations of products, in which queries have one of their own: use "
                         "--device cpu, or a model made with --rotation stacked");
    }
    narrow.rotations.insert(narrow.rotations.end(), rotation, rotation + values);
  }
  return DeviceFormat(std::move(narrow));
}

}  // namespace

Result<DeviceFormat> device_codes(const KvFormat& format) {
  const std::string none = none_of(format);
  if (const auto* const zack = dynamic_cast<const ZackFormat*>(&format)) return narrow_of(*zack);
  const auto* const hack = dynamic_cast<const HackFormat*>(&format);
  if (hack == nullptr) return unsupported(none + ": use --device cpu, or --kv-format hack");
  const HackFormat::Options& options = hack->options();
  const OwnBlock own = format.own_block();
  if (options.compute != HackFormat::Compute::kInt8 ||
      options.rounding != hack::Rounding::kNearest || own.coded || own.sealed) {
    return unsupported(none +
                       ", which compute on codes, round to the nearest and read a query's own "
                       "block in 16 bits: use --device cpu");
  }
  const auto [k, v] = format.shape().widths();
  const HackShape shape{options.k, options.v, hack->layout(), k, v, options.mix};
  const Result<HackKind> kind = hack_kind(shape);
  if (!kind.ok()) return unsupported(none + ": " + kind.status().message());
  return DeviceFormat(DeviceCodes{*kind, shape, format.window()});
}

}  // namespace kvlane
