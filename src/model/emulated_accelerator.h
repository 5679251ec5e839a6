// A device for tests of the forward pass: kernels on emulated threads, and memory of the host that
// only they may touch: elsewhere it faults, as a device's would. Any of its calls can be made to
// fail. Work is done as late as it may be, when somebody waits for it: who reads too early reads
// what was there before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "model/accelerator.h"
#include "model/emulated_memory.h"

namespace kvlane {

// The launchers' own checks are made here, too.
class EmulatedAccelerator final : public Accelerator {
 public:
  // Few multiprocessors cut sequences of decode attention into few units.
  explicit EmulatedAccelerator(int multiprocessors = 2) : multiprocessors_(multiprocessors) {}
  // Lines that wait for each other would keep each other.
  ~EmulatedAccelerator() override { line_->drop(); }

  // What is counted of the calls that can fail, from whatever thread.
  enum class Counted : std::uint8_t { kAll, kBesideTheLine };
  // The n-th call from now on, the first is 1, does nothing and fails with kInternal; none if 0.
  void fail_call(int n, Counted counted = Counted::kAll) {
    counted_ = counted;
    calls_ = 0;
    failing_call_ = n;
  }
  // Of those that are counted, since fail_call().
  int calls() const { return calls_; }

  // Runs what reaches its memory beside it, as other devices on a bus do.
  void with_memory(const std::function<void()>& touch);

  int multiprocessors() const override { return multiprocessors_; }
  Status use_on_this_thread() const override { return {}; }
  Result<Memory> allocate(std::size_t bytes) override;
  Result<Memory> allocate_host(std::size_t bytes) override;
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Status finish() override;
  Result<std::unique_ptr<DeviceGraph>> capture(const std::function<Status()>& give) override;
  Status replay(const DeviceGraph& graph) override;
  int replays() const { return replays_; }
  // From now on, when all has been given.
  void refuse_captures() { refuses_captures_ = true; }

  Result<std::shared_ptr<const DeviceMark>> mark() override;
  Status wait(const DeviceMark& mark) override;
  Result<std::unique_ptr<DeviceLane>> lane() override;

  Status embed(const EmbedRows& rows) override;
  Status norm(const NormRows& rows) override;
  Status write_qkv(const QkvRows& rows) override;
  Status silu(const SiluRows& rows) override;

  Status choose(const GreedyRows& rows) override;

  // What cuBLASLt does on a device, as a plain loop.
  Status multiply(const GpuProduct& product) override;

  Status attend(const DecodeBatch& batch, const DecodeUnit* units, std::size_t count) override;
  Status merge(const DecodeMerge& merge) override;
  Status attend(const PrefillBatch& batch, const PrefillUnit* units, std::size_t count) override;
  Status attend(const PrefillBatch& batch, const SealedSeen& seen, const PrefillUnit* units,
                std::size_t count) override;

  Status seal(const HackSealBatch& batch, std::size_t count) override;
  Status prepare(const HackPrepare& prepare) override;
  Status attend(const HackKind& kind, const HackDecodeBatch& batch, const DecodeUnit* units,
                std::size_t count) override;
  Status attend(const HackKind& kind, const HackPrefillBatch& batch, const PrefillUnit* units,
                std::size_t count) override;

  Status seal(const ZackSealBatch& batch, std::size_t count) override;
  Status attend(const NarrowDecodeBatch& batch, int width_max, int machines) override;
  Status attend(const NarrowPrefillBatch& batch, int width_max, const PrefillUnit* units,
                std::size_t count) override;

 private:
  Status count_call(Counted kind = Counted::kAll);

  Status not_captured(const char* what) const;

  // Work for the device: what it points to is looked at when it is done.
  Status give(std::function<Status()> work);

  class Graph;
  class Mark;
  class Lane;
  static std::shared_ptr<const DeviceMark> mark_of(EmulatedAccelerator& device,
                                                   std::shared_ptr<EmulatedLine> line);

  const int multiprocessors_;
  std::atomic<Counted> counted_ = Counted::kAll;
  std::atomic<int> calls_ = 0;
  std::atomic<int> failing_call_ = 0;
  EmulatedMemory memory_;
  const std::shared_ptr<EmulatedLine> line_ = std::make_shared<EmulatedLine>();
  std::vector<EmulatedLine::Work>* captured_ = nullptr;  // while a graph is made
  bool refuses_captures_ = false;
  int replays_ = 0;
  std::uint64_t seed_ = 1;  // every block another order; the line's
};

}  // namespace kvlane
