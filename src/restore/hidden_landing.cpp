// A piece at a time.
// SPDX-License-Identifier: Apache-2.0
#include "restore/hidden_landing.h"

#include <optional>
#include <vector>

#include "cpu/parallel.h"
#include "model/device_projection.h"
#include "model/format_codes.h"
#include "plan/machine_profile.h"

namespace kvlane {

HiddenLanding::HiddenLanding(const Model& model, const KvFormat* format)
    : model_(model), format_(format) {}

HiddenLanding::~HiddenLanding() = default;

Status HiddenLanding::land(const RestoreSpan& span, int layer, HiddenFormat::Values values,
                           std::span<const ByteView> stored) {
  const HiddenFormat hidden(values, hidden_type(model_), model_.config().hidden);
  if (model_.device() != nullptr) return land_on_device(span, layer, hidden, stored);
  KVLANE_ASSIGN(HiddenRestorer* const restorer, restorer_of(hidden));
  return restorer->restore(span, layer, stored);
}

Status HiddenLanding::land_embedded(const RestoreSpan& span, std::span<const std::int32_t> tokens) {
  const HiddenFormat exact(HiddenFormat::Values::kExact, hidden_type(model_),
                           model_.config().hidden);
  KVLANE_ASSIGN(HiddenRestorer* const restorer, restorer_of(exact));
  return restorer->restore_embedded(span, tokens);
}

Result<HiddenRestorer*> HiddenLanding::restorer_of(const HiddenFormat& hidden) {
  auto& restorer = hidden.exact() ? exact_ : int8_;
  if (restorer == nullptr) {
    KVLANE_ASSIGN(restorer, HiddenRestorer::create(model_, hidden, kRestorePieceTokens, format_));
  }
  return restorer.get();
}

Status HiddenLanding::open_projection() {
  if (projection_ != nullptr) return {};
  std::optional<DeviceFormat> kernels;
  if (format_ != nullptr) {
    KVLANE_ASSIGN(kernels, device_codes(*format_));
  }
  KVLANE_ASSIGN(projection_, DeviceProjection::create(model_.on_device(), *model_.device(),
                                                      kRestorePieceTokens, kernels));
  return {};
}

Status HiddenLanding::land_on_device(const RestoreSpan& span, int layer, const HiddenFormat& hidden,
                                     std::span<const ByteView> stored) {
  KVLANE_TRY(open_projection());
  std::vector<Status> decoded(stored.size());
  parallel_for(static_cast<std::int64_t>(stored.size()), [&](std::int64_t i) {
    std::byte* const rows = projection_->room() + i * kBlockTokens * hidden.row_bytes();
    decoded[i] = hidden.decode(stored[i], kBlockTokens, rows);
  });
  for (const Status& status : decoded) KVLANE_TRY(status);
  // The other room is free when what was in it is projected, and the next piece's then.
  settle();
  KVLANE_TRY(projection_->give({span.table, span.first, span.count, layer}));
  under_way_.give();
  return {};
}

Status HiddenLanding::finish(std::uint64_t since) {
  settle();
  return under_way_.verdict(since);
}

void HiddenLanding::settle() {
  under_way_.settle([this] { return projection_->finish(); });
}

}  // namespace kvlane
