// The forward pass on a GPU against the same pass on emulated threads: products by cuBLASLt instead
// of plain loops, and streams instead of turns.
// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_fixture.h"
#include "model/device_forward.h"
#include "model/emulated_accelerator.h"
#include "model/gpu_accelerator.h"
#include "model/plain_layout.h"
#include "model/random_model_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using namespace random_model_fixture;

constexpr int kGpuBlocks = 24;

// What three sequences give: a prompt in two parts, its answer beside another prompt, and all three
// decoding.
std::vector<std::vector<float>> logits_on(Accelerator& device, const ModelConfig& config,
                                          const std::optional<DeviceCodes>& codes = {}) {
  RandomTensors tensors;
  const DeviceModel model = take(DeviceModel::load(config, plain_layout(config), std::ref(tensors),
                                                   rope_of(config), config.context, device, {}));
  const KvShape shape = config.kv_shape();
  const auto memory = take(device.allocate(kGpuBlocks * shape.block_bytes()));
  BlockPool pool = take(BlockPool::over(shape, {memory.get(), kGpuBlocks * shape.block_bytes()},
                                        take(device.copies())));
  // Of a coded cache, sealed blocks.
  const std::size_t slab_bytes = codes ? codes->shape.layout.bytes * shape.kv_heads : 64;
  const std::size_t sealed_bytes = kGpuBlocks * slab_bytes * shape.layers;
  const auto sealed_memory = take(device.allocate(sealed_bytes));
  BlockPool sealed =
      take(BlockPool::over_sealed(shape, {shape.layers, slab_bytes},
                                  {sealed_memory.get(), sealed_bytes}, take(device.copies())));
  const auto forward = take(DeviceForward::create(model, device, 256, 4, true, codes));

  std::vector<std::int32_t> tokens(600);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(i * 7919 % config.vocab);
  }
  const std::span<const std::int32_t> all(tokens);
  const auto new_table = [&] {
    return codes ? BlockTable(sealed, pool, codes->window) : BlockTable(pool);
  };
  BlockTable a = new_table(), b = new_table(), c = new_table();
  check(a.grow(220));
  check(b.grow(100));
  check(c.grow(100));
  std::vector<std::vector<float>> logits;
  const auto pass = [&](std::vector<ForwardSpan> spans) {
    check(forward->run(spans, {}));
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto row = forward->logits(static_cast<int>(i));
      logits.emplace_back(row.begin(), row.end());
    }
  };
  pass({{&a, all.first(150), true}});
  pass({{&a, all.subspan(150, 50), true}});
  pass({{&b, all.subspan(200, 90), true}, {&a, all.subspan(300, 1), true}});
  pass({{&c, all.subspan(400, 1), true}});
  // The same shape again and again: kernel by kernel, captured, replayed.
  for (std::size_t next = 401; next < 413; next += 3) {
    pass({{&c, all.subspan(next, 1), true},
          {&b, all.subspan(next + 1, 1), true},
          {&a, all.subspan(next + 2, 1), true}});
  }
  return logits;
}

double root_of_mean_square(const std::vector<float>& x) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  return std::sqrt(squares / static_cast<double>(x.size()));
}

class DeviceForwardGpuTest : public gpu_fixture::GpuTest {
 protected:
  // That logits are those of emulated threads but for a share of their size, and the same again.
  static void expect_alike(const ModelConfig& config, const std::optional<DeviceCodes>& codes,
                           double share) {
    SCOPED_TRACE("head_dim " + std::to_string(config.head_dim));
    const auto device = take(gpu_accelerator(kDevice));
    EmulatedAccelerator emulated(device->multiprocessors());
    const auto expected = logits_on(emulated, config, codes);
    const auto logits = logits_on(*device, config, codes);
    ASSERT_EQ(logits.size(), expected.size());
    for (std::size_t i = 0; i < logits.size(); ++i) {
      std::vector<float> error(logits[i].size());
      for (std::size_t j = 0; j < error.size(); ++j) error[j] = logits[i][j] - expected[i][j];
      EXPECT_LE(root_of_mean_square(error), share * root_of_mean_square(expected[i])) << i;
    }
    EXPECT_EQ(logits_on(*device, config, codes), logits) << "another run, other bits";
  }
};

// Sums in other orders round some activations to the next BF16, an eighth of a per cent away; what
// that adds up to over two layers stays far below a per cent.
TEST_F(DeviceForwardGpuTest, LogitsAreThoseOfEmulatedThreads) {
  for (const ModelConfig& config : {config_of(3, 3, 64, false), config_of(8, 2, 32, true),
                                    config_of(6, 1, 128, false), config_of(4, 2, 256, true)}) {
    expect_alike(config, {}, 0.01);
  }
}

// Such roundings move some codes, too, each by a fifteenth of the range of 64 values.
TEST_F(DeviceForwardGpuTest, LogitsOfCodedCachesAreThoseOfEmulatedThreads) {
  for (const ModelConfig& config : {config_of(8, 2, 64, false), config_of(6, 1, 128, false)}) {
    for (const int partition : {0, 64}) {
      const hack::Axis axes[] = {partition == 0 ? hack::Axis::kBoth : hack::Axis::kToken,
                                 partition == 0 ? hack::Axis::kBoth : hack::Axis::kChannel};
      const hack::Plane k{4, axes[0], partition, hack::Meta::kFp16};
      const hack::Plane v{4, axes[1], partition, hack::Meta::kFp16};
      const HackShape shape{k,
                            v,
                            hack::page_layout(k, v, {config.head_dim, config.head_dim}),
                            config.head_dim,
                            config.head_dim,
                            partition == 0};
      expect_alike(config, DeviceCodes{{4, 4, partition}, shape, {.sink = 0, .recent = 1}}, 0.05);
    }
  }
}

}  // namespace
}  // namespace kvlane
