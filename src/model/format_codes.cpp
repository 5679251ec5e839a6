// Formats that attention on devices computes on, and why others are none.
// SPDX-License-Identifier: Apache-2.0
#include "model/format_codes.h"

#include <string>

#include "quant/hack_format.h"

namespace kvlane {

Result<DeviceCodes> device_codes(const KvFormat& format) {
  const std::string none = "KV format '" + format.name() + "' has no kernels for devices";
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
  return DeviceCodes{*kind, shape, format.window()};
}

}  // namespace kvlane
