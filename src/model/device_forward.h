// The forward pass on a device (model/forward.h is the CPU's).
//
// Sequences with one token in the pass go through the kernels of decode attention, those with more
// through those of prefill attention; the residual stream stays in F32, inputs of products are
// BF16, as on the CPU. The same pass gives the same bits every time. But products may choose other
// kernels for other numbers of rows, and decode and prefill attention add in different orders: a
// row's last bits depend on how many tokens are in the pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/device_model.h"
#include "model/forward_pass.h"
#include "plan/decode_units.h"
#include "plan/prefill_units.h"

namespace kvlane {

// Buffers for up to `rows_max` tokens a pass, and the pass itself. Thread-compatible; outlives
// neither its model nor its device.
class DeviceForward final : public ForwardPass {
 public:
  static Result<std::unique_ptr<DeviceForward>> create(const DeviceModel& model,
                                                       Accelerator& device, int rows_max,
                                                       int logits_max);

  // Blocks are in memory of the device, all of one pool.
  Status run(std::span<const ForwardSpan> spans, const OnLayer& on_layer) override;

  std::span<float> logits(int index) const override;
  // The total alone: a device does not say when it does what.
  const ForwardTimes& times() const override { return times_; }

 private:
  // Memory that grows when a pass needs more.
  struct Growing {
    Accelerator::Memory memory;
    std::size_t bytes = 0;
  };
  // Where the arrays of a pass lie in its inputs.
  struct Inputs {
    const std::int32_t* tokens;     // [rows]
    const std::int32_t* positions;  // [rows]
    const std::int32_t* sequences;  // [rows]
    const std::int32_t* tables;     // [sequences][table_stride]
    const std::int32_t* take;       // [logits]
    const DecodeUnit* decode_units;
    const std::int32_t* first_state;  // [decoding sequences + 1]
    const PrefillUnit* prefill_units;
  };

  DeviceForward(const DeviceModel& model, Accelerator& device, int rows_max, int logits_max)
      : model_(model), device_(device), rows_max_(rows_max), logits_max_(logits_max) {}

  Status allocate();
  Status grow(Growing& memory, std::size_t bytes, bool on_host);
  Status arrange(std::span<const ForwardSpan> spans);
  void append_rows(const ForwardSpan& span, int sequence);
  Status upload();
  Status compute(const BlockPool& pool, const OnLayer& on_layer);
  Status attention(const BlockPool& pool, int index, const OnLayer& on_layer);
  Status decode(const BlockPool& pool, int index);
  Status prefill(const BlockPool& pool, int index);
  Status ffn(const DeviceLayer& layer);
  Status project_logits();
  NormRows norm_of(const float* weight, int rows) const;

  const DeviceModel& model_;
  Accelerator& device_;
  const int rows_max_;
  const int logits_max_;
  DecodeShape decode_shape_{};
  PrefillShape prefill_shape_{};
  float scale_ = 0;  // of scores

  // The pass that is under way: rows of decoding sequences come first.
  int rows_ = 0;
  int decoding_ = 0;
  int table_stride_ = 0;
  std::vector<std::int32_t> tokens_, positions_, sequences_, tables_, take_;
  DecodePlan decode_plan_;
  std::vector<PrefillUnit> prefill_units_;
  Inputs inputs_{};
  ForwardTimes times_;

  Accelerator::Memory memory_;   // all that follows
  float* residual_ = nullptr;    // [rows][hidden]
  std::byte* normed_ = nullptr;  // [rows or logits][hidden], BF16
  float* product_ = nullptr;     // [rows][widest product]
  std::byte* q_ = nullptr;       // [rows][heads][head_dim], BF16
  std::byte* wide_ = nullptr;    // [rows][max(heads * head_dim, ffn)], BF16
  float* logits_ = nullptr;      // [logits_max][vocab]

  Accelerator::Memory host_logits_;  // [logits_max][vocab], F32
  Growing host_inputs_, device_inputs_;
  Growing states_;  // of decode attention: max, sum, out
};

}  // namespace kvlane
