// Llama-3.1-8B's shape, 16K tokens of context. Time is the host's, from before a pass is put
// together until its logits are there: what a token of each sequence takes in an engine, but for
// sampling.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_step.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "bench/gpu_copy.h"
#include "bench/gpu_timer.h"
#include "model/device_forward.h"
#include "model/gpu_accelerator.h"
#include "model/plain_layout.h"

namespace kvlane {

namespace {

constexpr int kTokens = 16384;
constexpr int kBatchMax = 32;
constexpr int kWarmUps = 3;
constexpr double kGoal = 0.7;
constexpr std::size_t kReadBytes = std::size_t{1} << 30;
// For activations, logits, states, cuBLASLt, and what the driver keeps.
constexpr std::size_t kSpareBytes = std::size_t{3} << 30;

ModelConfig config_of_llama() {
  ModelConfig config;
  config.layers = 32;
  config.hidden = 4096;
  config.heads = 32;
  config.kv_heads = 8;
  config.head_dim = 128;
  config.ffn = 14336;
  config.vocab = 128256;
  config.context = 2 * kTokens;
  return config;
}

// What a step reads of the weights: all but the table of embeddings.
std::size_t weight_bytes(const ModelConfig& c) {
  const std::size_t q = std::size_t(c.heads) * c.head_dim,
                    kv = std::size_t(c.kv_heads) * c.head_dim;
  const std::size_t layer = c.hidden * (2 * q + 2 * kv) + std::size_t(3) * c.hidden * c.ffn;
  return 2 * (layer * c.layers + std::size_t(c.vocab) * c.hidden);
}

// Tensors of any size out of the same values, over and over.
class RepeatedValues {
 public:
  explicit RepeatedValues(const std::vector<Bytes>& values) : values_(values) {}

  Result<TensorView> operator()(const std::string&, const std::vector<std::int64_t>& shape) {
    std::size_t bytes = 2;
    for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
    while (tensor_.size() < bytes) {
      const Bytes& piece = values_[next_++ % values_.size()];
      tensor_.insert(tensor_.end(), piece.begin(), piece.end());
    }
    return TensorView{ElementType::kBf16, shape, ByteView(tensor_).first(bytes)};
  }

 private:
  const std::vector<Bytes>& values_;
  std::size_t next_ = 0;
  Bytes tensor_;
};

RopeTable rope_of(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    frequencies.push_back(static_cast<float>(std::pow(500000.0, -2.0 * i / config.head_dim)));
  }
  return {frequencies, config.context};
}

Status fill_with(Accelerator& device, const std::vector<Bytes>& values, std::byte* to,
                 std::size_t bytes) {
  std::size_t done = std::min(values.front().size(), bytes);
  KVLANE_TRY(device.copy(to, values.front().data(), done));
  for (std::size_t more = 0; done < bytes; done += more) {
    more = std::min(done, bytes - done);
    KVLANE_TRY(device.copy(to + done, to, more));
  }
  return device.finish();
}

// Seconds of one step after the other.
Result<std::vector<double>> time_steps(DeviceForward& forward, BlockPool& pool, int batch,
                                       int rounds) {
  std::vector<BlockTable> tables;
  std::vector<ForwardSpan> spans;
  const std::int32_t token = 17;
  for (int i = 0; i < batch; ++i) {
    BlockTable& table = tables.emplace_back(pool);
    KVLANE_TRY(table.grow(kTokens + kWarmUps + rounds));
    table.set_tokens(kTokens - 1);
  }
  for (BlockTable& table : tables) spans.push_back({&table, {&token, 1}, true});
  std::vector<double> seconds;
  for (int round = 0; round < kWarmUps + rounds; ++round) {
    const TimePoint start = SteadyClock::now();
    KVLANE_TRY(forward.run(spans, {}));
    if (round >= kWarmUps) seconds.push_back(seconds_since(start));
    const std::span<const float> logits = forward.logits(batch - 1);
    if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
      return internal_error("a decode step has logits that are not finite");
    }
  }
  return seconds;
}

Result<double> read_speed(const gpu::Stream& stream, const std::byte* memory, int rounds) {
  KVLANE_ASSIGN(const auto sink, gpu::DeviceBuffer::allocate(stream.device(), 256));
  GpuTimer timer(stream);
  KVLANE_TRY(timer.add("read", kReadBytes,
                       [&] { return gpu_read(stream, memory, kReadBytes, sink.data()); }));
  KVLANE_TRY(timer.time(rounds));
  return timer.speed_of("read");
}

}  // namespace

Status bench_gpu_step(const gpu::Stream& stream, int rounds, const std::vector<Bytes>& values,
                      std::vector<Figure>& figures,
                      const std::function<void(const std::string&)>& on_progress) {
  const ModelConfig config = config_of_llama();
  const KvShape shape = config.kv_shape();
  const std::size_t sequence_bytes = blocks_for(kTokens + kWarmUps + rounds) * shape.block_bytes();
  const std::size_t all_weights =
      weight_bytes(config) + std::size_t(2) * config.vocab * config.hidden;
  KVLANE_ASSIGN(const std::size_t free, gpu::free_memory(stream.device()));
  int batch = kBatchMax;
  while (batch > 0 && all_weights + batch * sequence_bytes + kSpareBytes > free) batch /= 2;
  if (batch == 0) {
    on_progress("no decode step: too little memory");
    return {};
  }

  KVLANE_ASSIGN(const auto device, gpu_accelerator(stream.device()));
  RepeatedValues tensors(values);
  KVLANE_ASSIGN(const DeviceModel model,
                DeviceModel::load(config, plain_layout(config), std::ref(tensors), rope_of(config),
                                  config.context, *device, {}));
  const std::size_t pool_bytes = batch * sequence_bytes;
  KVLANE_ASSIGN(const auto memory, device->allocate(pool_bytes));
  KVLANE_TRY(fill_with(*device, values, memory.get(), pool_bytes));
  KVLANE_ASSIGN(const MemoryCopy copies, device->copies());
  KVLANE_ASSIGN(BlockPool pool, BlockPool::over(shape, {memory.get(), pool_bytes}, copies));
  KVLANE_ASSIGN(const double read, read_speed(stream, memory.get(), rounds));
  std::vector<double> seconds[2];
  for (const bool replays : {false, true}) {
    KVLANE_ASSIGN(const auto forward, DeviceForward::create(model, *device, batch, batch, replays));
    KVLANE_ASSIGN(seconds[replays], time_steps(*forward, pool, batch, rounds));
  }

  const double kv_bytes = static_cast<double>(batch) * kTokens *
                          static_cast<double>(shape.block_bytes()) / kBlockTokens;
  const double bytes = static_cast<double>(weight_bytes(config)) + kv_bytes;
  const std::string name =
      "gpu_step_llama8b_" + std::to_string(batch) + "x" + std::to_string(kTokens);
  figures.push_back({.name = name,
                     .value = bytes / median(seconds[true]) * 1e-9,
                     .unit = "GB/s",
                     .baseline = read,
                     .goal = kGoal * read});
  figures.push_back({.name = name + "_seconds", .value = median(seconds[true]), .unit = "s"});
  figures.push_back(
      {.name = name + "_launched_seconds", .value = median(seconds[false]), .unit = "s"});
  return {};
}

}  // namespace kvlane
