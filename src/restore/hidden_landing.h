// Hidden states on their way from the store to a cache: projected on the CPU, or where the model is
// on a device there, while the host unpacks the next ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "model/hidden_restorer.h"
#include "model/hidden_rows.h"
#include "model/model.h"
#include "quant/kv_format.h"
#include "restore/pieces_under_way.h"

namespace kvlane {

class DeviceProjection;

// For the thread of the model's passes.
class HiddenLanding {
 public:
  // For caches in 16 bits, or in `format`. Both outlive this, as does the model's device.
  HiddenLanding(const Model& model, const KvFormat* format);
  ~HiddenLanding();

  // Makes K and V of one layer of up to kRestorePieceTokens tokens, whole blocks, which are in
  // their places after finish(). `stored`: the rows of each block, untrusted. After an error the
  // layer is garbage.
  Status land(const RestoreSpan& span, int layer, HiddenFormat::Values values,
              std::span<const ByteView> stored);

  // The same of layer 0 from the tokens of the span: its hidden states are their embeddings. On the
  // CPU.
  Status land_embedded(const RestoreSpan& span, std::span<const std::int32_t> tokens);

  // How many pieces were on their way to a device so far.
  std::uint64_t given() const { return under_way_.given(); }
  // Returns when everything is in its place. The error is the device's: one of the pieces behind
  // the first `since` may not be.
  Status finish(std::uint64_t since);

 private:
  Result<HiddenRestorer*> restorer_of(const HiddenFormat& hidden);
  Status open_projection();
  Status land_on_device(const RestoreSpan& span, int layer, const HiddenFormat& hidden,
                        std::span<const ByteView> stored);
  void settle();

  const Model& model_;
  const KvFormat* const format_;
  // When they are wanted: weights of K and V may have to be taken apart for the first two.
  std::unique_ptr<HiddenRestorer> exact_, int8_;
  std::unique_ptr<DeviceProjection> projection_;
  PiecesUnderWay under_way_;
};

}  // namespace kvlane
