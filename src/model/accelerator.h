// What a forward pass asks of the device that it runs on: memory, copies, and kernels in the order
// in which they are given. CUDA's is model/gpu_accelerator.h; tests have one of emulated threads,
// so that the pass itself is tested where no GPU is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "cache/memory_copy.h"
#include "format/element.h"
#include "kvlane/status.h"

namespace kvlane {

// What calls are told, in headers X_batch.h for the most part: who calls includes those.
namespace gpu {
struct RowsCopy;
struct Xxh3Task;
}  // namespace gpu
namespace channel {
struct DeviceDecodeTask;
struct DeviceEncodeTask;
}  // namespace channel
namespace splitzip {
struct DeviceDecodeTask;
struct DeviceEncodeTask;
}  // namespace splitzip
struct DecodeBatch;
struct DecodeMerge;
struct DecodeUnit;
struct EmbedRows;
struct GpuProduct;
struct GreedyRows;
struct HackDecodeBatch;
struct HackKind;
struct HackPrefillBatch;
struct HackPrepare;
struct HackSealBatch;
struct NarrowDecodeBatch;
struct NarrowPrefillBatch;
struct NormRows;
struct PrefillBatch;
struct PrefillUnit;
struct QkvRows;
struct SealedSeen;
struct SiluRows;
struct ZackSealBatch;

using gpu::RowsCopy;

// A place in an accelerator's line of work, or in a lane's. Any thread may hold it; ends before the
// accelerator.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;

  // Returns when the line is there, on any thread, which sleeps until then. What went wrong before
  // it is told where the line is finished.
  virtual Status reach() const = 0;
};

// A line of its own beside the accelerator's, for one thread at a time. Calls return when the work
// is in line, and what they point to stays until finish(). Ends before the accelerator.
class DeviceLane {
 public:
  virtual ~DeviceLane() = default;

  // What is given from now on begins when the accelerator has reached the mark.
  virtual Status wait(const DeviceMark& mark) = 0;
  // Where the lane ends now.
  virtual Result<std::shared_ptr<const DeviceMark>> mark() = 0;
  // As Accelerator::copy().
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // The same with `rows` pieces of so many bytes, at their distances.
  virtual Status copy_rows(const RowsCopy& rows) = 0;
  // See codec/splitzip_gpu.h and codec/channel_gpu.h: `tasks` and what they point to lie in memory
  // of either kind.
  virtual Status encode(ElementType type, const splitzip::DeviceEncodeTask* tasks,
                        std::size_t count) = 0;
  virtual Status encode(ElementType type, const channel::DeviceEncodeTask* tasks,
                        std::size_t count) = 0;
  virtual Status decode(ElementType type, const splitzip::DeviceDecodeTask* tasks,
                        std::size_t count) = 0;
  virtual Status decode(ElementType type, const channel::DeviceDecodeTask* tasks,
                        std::size_t count) = 0;
  // See gpu/xxh3_gpu.h; the same of tasks.
  virtual Status checksum(const gpu::Xxh3Task* tasks, std::size_t count) = 0;
  // Until all is done; tells what went wrong meanwhile.
  virtual Status finish() = 0;
};

// Work that an accelerator keeps. Ends before it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// Thread-compatible. Calls return when the work is in line; it is done when finish() has returned,
// which also tells what went wrong meanwhile. All that a call points to stays until then. Buffers
// end before the accelerator does.
class Accelerator {
 public:
  using Free = std::function<void(std::byte*)>;
  using Memory = std::unique_ptr<std::byte[], Free>;

  virtual ~Accelerator() = default;

  virtual int multiprocessors() const = 0;
  // For libraries that work on the calling thread's current device: makes it this one. Any thread.
  virtual Status use_on_this_thread() const = 0;
  // Of the device, aligned to 256 bytes; or of the host, where copies from and to the device are
  // fast, and which kernels can reach. Contents are whatever was there.
  virtual Result<Memory> allocate(std::size_t bytes) = 0;
  virtual Result<Memory> allocate_host(std::size_t bytes) = 0;

  // From anywhere to anywhere, not overlapping.
  virtual Status copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  virtual Status finish() = 0;

  // Keeps the work that `give` gives instead of doing it: kernels alone, and with all that they
  // point to, which stays for as long as the graph. After an error the line is as it was.
  virtual Result<std::unique_ptr<DeviceGraph>> capture(const std::function<Status()>& give) = 0;
  virtual Status replay(const DeviceGraph& graph) = 0;

  // Where the line ends now.
  virtual Result<std::shared_ptr<const DeviceMark>> mark() = 0;
  // What is given from now on begins when the mark's lane has reached it. Not while work is
  // captured.
  virtual Status wait(const DeviceMark& mark) = 0;
  virtual Result<std::unique_ptr<DeviceLane>> lane() = 0;
  // Copies on a lane of their own, each done when it returns.
  Result<MemoryCopy> copies() {
    KVLANE_ASSIGN(std::shared_ptr<DeviceLane> own, lane());
    return MemoryCopy([own](std::byte* to, const std::byte* from, std::size_t bytes) -> Status {
      KVLANE_TRY(own->copy(to, from, bytes));
      return own->finish();
    });
  }

  // See ops/greedy_gpu.h, ops/rows_gpu.h, ops/products_gpu.h, attention/decode_gpu.h and
  // attention/prefill_gpu.h.
  virtual Status embed(const EmbedRows& rows) = 0;
  virtual Status norm(const NormRows& rows) = 0;
  virtual Status write_qkv(const QkvRows& rows) = 0;
  virtual Status silu(const SiluRows& rows) = 0;
  virtual Status choose(const GreedyRows& rows) = 0;
  virtual Status multiply(const GpuProduct& product) = 0;
  virtual Status attend(const DecodeBatch& batch, const DecodeUnit* units, std::size_t count) = 0;
  virtual Status merge(const DecodeMerge& merge) = 0;
  virtual Status attend(const PrefillBatch& batch, const PrefillUnit* units, std::size_t count) = 0;

  // Of coded caches: see quant/hack_seal_gpu.h, attention/hack_decode_gpu.h,
  // attention/hack_prefill_gpu.h and attention/prefill_gpu.h.
  virtual Status seal(const HackSealBatch& batch, std::size_t count) = 0;
  virtual Status prepare(const HackPrepare& prepare) = 0;
  virtual Status attend(const HackKind& kind, const HackDecodeBatch& batch, const DecodeUnit* units,
                        std::size_t count) = 0;
  virtual Status attend(const HackKind& kind, const HackPrefillBatch& batch,
                        const PrefillUnit* units, std::size_t count) = 0;
  virtual Status attend(const PrefillBatch& batch, const SealedSeen& seen, const PrefillUnit* units,
                        std::size_t count) = 0;

  // Of narrow pages: see quant/zack_seal_gpu.h, attention/narrow_decode_gpu.h and
  // attention/narrow_prefill_gpu.h.
  virtual Status seal(const ZackSealBatch& batch, std::size_t count) = 0;
  virtual Status attend(const NarrowDecodeBatch& batch, int width_max, int machines) = 0;
  virtual Status attend(const NarrowPrefillBatch& batch, int width_max, const PrefillUnit* units,
                        std::size_t count) = 0;
};

}  // namespace kvlane
