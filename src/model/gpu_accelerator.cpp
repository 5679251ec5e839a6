// Hands everything on to launchers, in one stream.
// SPDX-License-Identifier: Apache-2.0
#include "model/gpu_accelerator.h"

#include <string>
#include <utility>

#include "attention/decode_gpu.h"
#include "attention/hack_decode_gpu.h"
#include "attention/hack_prefill_gpu.h"
#include "attention/narrow_decode_gpu.h"
#include "attention/narrow_prefill_gpu.h"
#include "attention/prefill_gpu.h"
#include "codec/gpu_codecs.h"
#include "gpu/device.h"
#include "gpu/xxh3_gpu.h"
#include "ops/greedy_gpu.h"
#include "ops/products_gpu.h"
#include "ops/rows_gpu.h"
#include "quant/hack_seal_gpu.h"
#include "quant/zack_seal_gpu.h"

namespace kvlane {
namespace {

// A buffer that std::function can hold: it can be copied, though it never is.
template <class Buffer>
Accelerator::Memory memory_of(Buffer buffer) {
  std::byte* const data = buffer.data();
  auto owner = std::make_shared<Buffer>(std::move(buffer));
  return {data, [owner = std::move(owner)](std::byte*) mutable { owner.reset(); }};
}

class GpuMark final : public DeviceMark {
 public:
  explicit GpuMark(gpu::Event event) : event_(std::move(event)) {}
  const gpu::Event& event() const { return event_; }
  Status reach() const override { return event_.synchronize(); }

 private:
  const gpu::Event event_;
};

Result<std::shared_ptr<const DeviceMark>> mark_of(const gpu::Stream& stream) {
  KVLANE_ASSIGN(gpu::Event event, gpu::Event::create_untimed(stream.device()));
  KVLANE_TRY(event.record(stream));
  return std::shared_ptr<const DeviceMark>(std::make_shared<GpuMark>(std::move(event)));
}
Status wait_for(const gpu::Stream& stream, const DeviceMark& mark) {
  return stream.wait(static_cast<const GpuMark&>(mark).event());
}

class GpuLane final : public DeviceLane {
 public:
  explicit GpuLane(gpu::Stream stream) : stream_(std::move(stream)) {}

  Status wait(const DeviceMark& mark) override { return wait_for(stream_, mark); }
  Result<std::shared_ptr<const DeviceMark>> mark() override { return mark_of(stream_); }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return gpu::copy(stream_, to, from, bytes);
  }
  Status finish() override { return stream_.synchronize(); }
  Status copy_rows(const RowsCopy& rows) override { return gpu::copy_rows(stream_, rows); }
  Status encode(ElementType type, const splitzip::DeviceEncodeTask* tasks,
                std::size_t count) override {
    return SplitZipGpu::encode(type, tasks, count, stream_);
  }
  Status encode(ElementType type, const channel::DeviceEncodeTask* tasks,
                std::size_t count) override {
    return ChannelGpu::encode(type, tasks, count, stream_);
  }
  Status decode(ElementType type, const splitzip::DeviceDecodeTask* tasks,
                std::size_t count) override {
    return SplitZipGpu::decode(type, tasks, count, stream_);
  }
  Status decode(ElementType type, const channel::DeviceDecodeTask* tasks,
                std::size_t count) override {
    return ChannelGpu::decode(type, tasks, count, stream_);
  }
  Status checksum(const gpu::Xxh3Task* tasks, std::size_t count) override {
    return gpu::xxh3_on_gpu(tasks, count, stream_);
  }

 private:
  const gpu::Stream stream_;
};

class GpuGraph final : public DeviceGraph {
 public:
  explicit GpuGraph(gpu::Graph graph) : graph_(std::move(graph)) {}
  const gpu::Graph& graph() const { return graph_; }

 private:
  const gpu::Graph graph_;
};

class GpuAccelerator final : public Accelerator {
 public:
  GpuAccelerator(const gpu::Device& device, gpu::Stream stream,
                 std::unique_ptr<GpuProducts> products)
      : device_(device), stream_(std::move(stream)), products_(std::move(products)) {}

  int multiprocessors() const override { return device_.multiprocessors; }
  Status use_on_this_thread() const override { return gpu::use_device(device_.index); }

  Result<Memory> allocate(std::size_t bytes) override {
    KVLANE_ASSIGN(gpu::DeviceBuffer buffer, gpu::DeviceBuffer::allocate(device_.index, bytes));
    return memory_of(std::move(buffer));
  }
  Result<Memory> allocate_host(std::size_t bytes) override {
    KVLANE_ASSIGN(gpu::PinnedBuffer buffer, gpu::PinnedBuffer::allocate(device_.index, bytes));
    return memory_of(std::move(buffer));
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return gpu::copy(stream_, to, from, bytes);
  }
  Status finish() override { return stream_.synchronize(); }
  Result<std::unique_ptr<DeviceGraph>> capture(const std::function<Status()>& give) override {
    KVLANE_ASSIGN(gpu::Graph graph, gpu::Graph::capture(stream_, give));
    return std::unique_ptr<DeviceGraph>(std::make_unique<GpuGraph>(std::move(graph)));
  }
  Status replay(const DeviceGraph& graph) override {
    return static_cast<const GpuGraph&>(graph).graph().launch(stream_);
  }
  Result<std::shared_ptr<const DeviceMark>> mark() override { return mark_of(stream_); }
  Status wait(const DeviceMark& mark) override { return wait_for(stream_, mark); }
  Result<std::unique_ptr<DeviceLane>> lane() override {
    KVLANE_ASSIGN(gpu::Stream stream, gpu::Stream::create(device_.index));
    return std::unique_ptr<DeviceLane>(std::make_unique<GpuLane>(std::move(stream)));
  }

  Status embed(const EmbedRows& rows) override { return embed_on_gpu(rows, stream_); }
  Status norm(const NormRows& rows) override { return norm_on_gpu(rows, stream_); }
  Status write_qkv(const QkvRows& rows) override { return write_qkv_on_gpu(rows, stream_); }
  Status silu(const SiluRows& rows) override { return silu_on_gpu(rows, stream_); }
  Status choose(const GreedyRows& rows) override { return greedy_on_gpu(rows, stream_); }
  Status multiply(const GpuProduct& product) override {
    return products_->multiply(product, stream_);
  }
  Status attend(const DecodeBatch& batch, const DecodeUnit* units, std::size_t count) override {
    return attend_on_gpu(batch, units, count, stream_);
  }
  Status merge(const DecodeMerge& merge) override { return merge_on_gpu(merge, stream_); }
  Status attend(const PrefillBatch& batch, const PrefillUnit* units, std::size_t count) override {
    return attend_prefill_on_gpu(batch, units, count, stream_);
  }
  Status seal(const HackSealBatch& batch, std::size_t count) override {
    return seal_hack_on_gpu(batch, count, stream_);
  }
  Status prepare(const HackPrepare& prepare) override {
    return prepare_hack_on_gpu(prepare, stream_);
  }
  Status attend(const HackKind& kind, const HackDecodeBatch& batch, const DecodeUnit* units,
                std::size_t count) override {
    return attend_hack_on_gpu(kind, batch, units, count, stream_);
  }
  Status attend(const HackKind& kind, const HackPrefillBatch& batch, const PrefillUnit* units,
                std::size_t count) override {
    return attend_hack_prefill_on_gpu(kind, batch, units, count, stream_);
  }
  Status attend(const PrefillBatch& batch, const SealedSeen& seen, const PrefillUnit* units,
                std::size_t count) override {
    return attend_window_on_gpu(batch, seen, units, count, stream_);
  }
  Status seal(const ZackSealBatch& batch, std::size_t count) override {
    return seal_narrow_on_gpu(batch, count, stream_);
  }
  Status attend(const NarrowDecodeBatch& batch, int width_max, int machines) override {
    return attend_narrow_on_gpu(batch, width_max, machines, stream_);
  }
  Status attend(const NarrowPrefillBatch& batch, int width_max, const PrefillUnit* units,
                std::size_t count) override {
    return attend_narrow_prefill_on_gpu(batch, width_max, units, count, stream_);
  }

 private:
  const gpu::Device device_;
  const gpu::Stream stream_;
  const std::unique_ptr<GpuProducts> products_;
};

}  // namespace

Result<std::unique_ptr<Accelerator>> gpu_accelerator(int device) {
  KVLANE_ASSIGN(const std::vector<gpu::Device> devices, gpu::devices());
  if (device < 0 || device >= static_cast<int>(devices.size())) {
    return unavailable("there is no GPU " + std::to_string(device) + "; this machine has " +
                       std::to_string(devices.size()) + ", the first is 0");
  }
  KVLANE_ASSIGN(gpu::Stream stream, gpu::Stream::create(device));
  KVLANE_ASSIGN(std::unique_ptr<GpuProducts> products, GpuProducts::create(device));
  return std::unique_ptr<Accelerator>(
      std::make_unique<GpuAccelerator>(devices[device], std::move(stream), std::move(products)));
}

}  // namespace kvlane
