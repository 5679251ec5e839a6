// What passes over all kinds of sealed pages share: verdicts, and states of prompts.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_codes.h"

#include <algorithm>
#include <string>

#include "model/device_hack.h"
#include "model/device_narrow.h"

namespace kvlane {

Result<std::unique_ptr<DeviceCodedPass>> DeviceCodedPass::create(const DeviceFormat& format,
                                                                 const ModelConfig& config,
                                                                 Accelerator& device,
                                                                 int rows_max) {
  const auto* const codes = std::get_if<DeviceCodes>(&format);
  if (codes != nullptr) return create_hack_pass(*codes, config, device, rows_max);
  return create_narrow_pass(std::get<DeviceNarrow>(format), config, device, rows_max);
}

Status DeviceCodedPass::allocate(int rows_max) {
  const std::size_t rows = std::size_t(rows_max) * config_.heads;
  // Rows of outputs first, which begin at multiples of 16 bytes.
  KVLANE_ASSIGN(states_, device_.allocate(rows * (config_.head_dim + 2) * sizeof(float)));
  out_ = reinterpret_cast<float*>(states_.get());
  max_ = out_ + rows * config_.head_dim;
  sum_ = max_ + rows;
  const std::size_t verdict_bytes =
      std::size_t(config_.layers) * rows_max * verdicts() * sizeof(std::uint32_t);
  KVLANE_ASSIGN(beyond_, device_.allocate(verdict_bytes));
  KVLANE_ASSIGN(host_beyond_, device_.allocate_host(verdict_bytes));
  return {};
}

Status DeviceCodedPass::fetch_verdicts() {
  if (sealing_ == 0) return {};
  return device_.copy(host_beyond_.get(), beyond_.get(),
                      std::size_t(layers_sealed_) * sealing_ * verdicts() * sizeof(std::uint32_t));
}

Status DeviceCodedPass::check(int count) const {
  const auto* const all = reinterpret_cast<const std::uint32_t*>(host_beyond_.get());
  for (int layer = 0; layer < layers_sealed_ && count > 0; ++layer) {
    const std::uint32_t* const first = all + std::size_t(layer) * sealing_ * verdicts();
    if (std::any_of(first, first + std::size_t(count) * verdicts(),
                    [](std::uint32_t beyond) { return beyond != 0; })) {
      return invalid_argument("K or V of layer " + std::to_string(first_sealed_ + layer) +
                              " has a value that is not finite or too large to be sealed");
    }
  }
  return {};
}

}  // namespace kvlane
