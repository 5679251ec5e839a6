// The forward pass on a device (model/forward.h is the CPU's).
//
// Sequences with one token in the pass go through the kernels of decode attention, those with more
// through those of prefill attention; the residual stream stays in F32, inputs of products are
// BF16, as on the CPU. The same pass gives the same bits every time. But products may choose other
// kernels for other numbers of rows, and decode and prefill attention add in different orders: a
// row's last bits depend on how many tokens are in the pass.
//
// Of a coded cache whose format has kernels, blocks are sealed on the device as they are completed,
// and attention computes on codes (model/device_codes.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "model/device_codes.h"
#include "model/device_model.h"
#include "model/device_pass.h"
#include "ops/greedy_batch.h"

namespace kvlane {

// Layers first ... last - 1.
struct KeptLayers {
  int first = 0;
  int last = 0;

  bool has(int layer) const { return first <= layer && layer < last; }
};

// Buffers for up to `rows_max` tokens a pass, and the pass itself. Thread-compatible; outlives
// neither its model nor its device.
//
// Passes in which every sequence has one token, and nobody waits for layers, are padded to one of a
// few shapes; with `replays`, one whose shape has been there before is launched as a whole. Where
// the device cannot do that, it is given kernel by kernel.
//
// Norms of layers whose hidden states are kept write each to a place of its own, where these stay
// until the next pass: they can be fetched behind passes that are launched as a whole, too, and
// nothing is copied within the device. A pass waits, in the device's line, until what the one
// before it has kept was fetched.
class DeviceForward final : public ForwardPass {
 public:
  static Result<std::unique_ptr<DeviceForward>> create(const DeviceModel& model,
                                                       Accelerator& device, int rows_max,
                                                       int logits_max, bool replays = true,
                                                       std::optional<DeviceFormat> format = {},
                                                       KeptLayers kept = {});

  // Blocks are in memory of the device, all of one pool, or two with `codes`.
  Status run(std::span<const ForwardSpan> spans, const PassHooks& hooks) override;

  std::span<float> logits(int index) const override;
  std::optional<std::int32_t> best(int index) const override;
  // The total alone: a device does not say when it does what.
  const ForwardTimes& times() const override { return times_; }

 private:
  // Memory that grows when a pass needs more.
  struct Growing {
    Accelerator::Memory memory;
    std::size_t bytes = 0;
  };

  DeviceForward(const DeviceModel& model, Accelerator& device, int rows_max, int logits_max,
                bool replays, KeptLayers kept)
      : model_(model),
        device_(device),
        rows_max_(rows_max),
        logits_max_(logits_max),
        kept_(kept),
        replays_(replays) {}

  // Blocks of rows, and sealed ones of a coded cache.
  struct Pools {
    const BlockPool* rows;
    const BlockPool* sealed;
  };

  Status allocate(const std::optional<DeviceFormat>& format);
  Status grow(Growing& memory, std::size_t bytes, bool on_host);
  Status arrange(std::span<const ForwardSpan> spans, bool may_replay);
  Status upload();
  Status compute(const Pools& pools, const PassHooks& hooks);
  Status compute_or_replay(const Pools& pools);
  Status project_qkv(const Pools& pools, int index, const PassHooks& hooks);
  void show_kept(const PassHooks::OnKept& on_kept, int layer, int layers,
                 std::shared_ptr<const DeviceMark> there);
  Status await_readers();
  std::byte* normed_of(int layer) const;
  std::size_t kept_bytes(int layers) const;
  Status attention(const Pools& pools, int index);
  Status write_rows(const Pools& pools, int index);
  Status decode(const Pools& pools, int index);
  Status prefill(const Pools& pools, int index);
  DeviceCodedPass::Layer layer_of(const Pools& pools, int index) const;
  Status ffn(const DeviceLayer& layer);
  Status project_logits();
  Status fetch_results();
  NormRows norm_of(const float* weight, int rows) const;

  const DeviceModel& model_;
  Accelerator& device_;
  const int rows_max_;
  const int logits_max_;
  const KeptLayers kept_;
  DecodeShape decode_shape_{};
  PrefillShape prefill_shape_{};
  float scale_ = 0;                         // of scores
  std::unique_ptr<DeviceCodedPass> coded_;  // null for a cache in 16 bits

  // The pass that is under way.
  DevicePass pass_;
  DevicePass::Inputs inputs_{};
  ForwardTimes times_;
  bool replays_;
  std::map<DevicePassShape, std::unique_ptr<DeviceGraph>> graphs_;  // null: seen once
  const std::byte* graphs_pool_ = nullptr;  // whose blocks are in the graphs
  std::shared_ptr<const DeviceMark> read_;  // where all that was kept has been fetched

  Accelerator::Memory memory_;      // all that follows
  float* residual_ = nullptr;       // [rows][hidden]
  std::byte* normed_ = nullptr;     // [rows or logits][hidden], BF16
  std::byte* kept_rows_ = nullptr;  // [layers that are kept][rows][hidden], BF16
  float* product_ = nullptr;        // [rows][widest product]
  std::byte* q_ = nullptr;          // [rows][heads][head_dim], BF16
  std::byte* wide_ = nullptr;       // [rows][max(heads * head_dim, ffn)], BF16
  float* logits_ = nullptr;         // [logits_max][vocab]
  GreedyPart* parts_ = nullptr;     // [logits_max][greedy_parts(vocab)]
  std::int32_t* best_ = nullptr;    // [logits_max], most likely tokens

  Accelerator::Memory host_logits_;  // [logits_max][vocab], F32
  Accelerator::Memory host_best_;    // [logits_max]
  Growing host_inputs_, device_inputs_;
  Growing states_;  // of decode attention: max, sum, out
};

}  // namespace kvlane
