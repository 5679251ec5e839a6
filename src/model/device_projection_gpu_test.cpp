// Hidden states that a pass on a GPU keeps, fetched by a stream of their own, replayed passes
// included, and K and V that the GPU makes of them again.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <utility>

#include "base/bf16.h"
#include "gpu/gpu_fixture.h"
#include "model/device_forward.h"
#include "model/gpu_accelerator.h"
#include "model/plain_layout.h"
#include "model/random_model_fixture.h"

namespace kvlane {
namespace {

using gpu_fixture::check;
using namespace random_model_fixture;

constexpr int kGpuProjectedTokens = 3 * kBlockTokens;
constexpr int kGpuProjectedPrompt = kGpuProjectedTokens - 20;  // the others are decoded

class DeviceProjectionGpuTest : public gpu_fixture::GpuTest {};

// The mean square of differences over that of the values.
double relative_error(const Bytes& slab, const Bytes& expected) {
  double off = 0, square = 0;
  for (std::size_t i = 0; i < slab.size(); i += sizeof(bf16)) {
    bf16 a, b;
    std::memcpy(&a, &slab[i], sizeof a);
    std::memcpy(&b, &expected[i], sizeof b);
    off += std::pow(double{to_float(a)} - to_float(b), 2);
    square += std::pow(double{to_float(b)}, 2);
  }
  return std::sqrt(off / square);
}

// Sums in other orders may round a value to the next BF16, which is 2^-8 of it away at most.
TEST_F(DeviceProjectionGpuTest, KAndVOfWhatPassesKeepAreThoseOfThePasses) {
  const ModelConfig config = config_of(8, 2, 64, true);
  const KvShape shape = config.kv_shape();
  const auto device = take(gpu_accelerator(kDevice));
  RandomTensors tensors;
  const DeviceModel model = take(DeviceModel::load(config, plain_layout(config), std::ref(tensors),
                                                   rope_of(config), config.context, *device, {}));
  const std::size_t bytes = 8 * shape.block_bytes(), row = config.hidden * sizeof(bf16);
  const auto memory = take(device->allocate(bytes));
  BlockPool pool = take(BlockPool::over(shape, {memory.get(), bytes}, take(device->copies())));
  const auto forward =
      take(DeviceForward::create(model, *device, 256, 1, true, {}, {0, config.layers}));
  BlockTable table(pool), back(pool);
  check(table.grow(kGpuProjectedTokens));
  check(back.grow(kGpuProjectedTokens));
  std::vector<std::int32_t> tokens(kGpuProjectedTokens);
  for (int i = 0; i < kGpuProjectedTokens; ++i) tokens[i] = i * 7919 % config.vocab;
  // Rows of each layer, in memory that streams copy to beside the host.
  const std::size_t layer_bytes = kGpuProjectedTokens * row;
  const auto hidden = take(device->allocate_host(config.layers * layer_bytes));
  const auto lane = take(device->lane());
  std::shared_ptr<const DeviceMark> last;
  for (int at = 0; at < kGpuProjectedTokens;) {
    const int count = at == 0 ? kGpuProjectedPrompt : 1;
    const ForwardSpan span{&table, std::span(tokens).subspan(at, count), 1};
    const auto keep = [&](const KeptRows& kept) {
      check(lane->wait(*kept.there));
      check(lane->copy_rows({hidden.get() + kept.layer * layer_bytes + at * row, layer_bytes,
                             kept.rows, kept.layer_bytes, count * row,
                             static_cast<std::size_t>(kept.layers)}));
      return last = take(lane->mark());
    };
    check(forward->run({&span, 1}, {.on_kept = keep}));
    at += count;
  }
  ASSERT_NE(last, nullptr);
  // cppcheck-suppress nullPointer ; asked above
  check(last->reach());
  const auto projection = take(DeviceProjection::create(model, *device, 2 * kBlockTokens));
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int at = 0; at < kGpuProjectedTokens; at += 2 * kBlockTokens) {
      const int count = std::min(2 * kBlockTokens, kGpuProjectedTokens - at);
      std::memcpy(projection->room(), hidden.get() + layer * layer_bytes + at * row, count * row);
      check(projection->finish());
      check(projection->give({&back, at, count, layer}));
    }
  }
  check(projection->finish());
  for (int layer = 0; layer < config.layers; ++layer) {
    for (int block = 0; block < kGpuProjectedTokens / kBlockTokens; ++block) {
      Bytes slabs[2];
      for (const bool restored : {false, true}) {
        slabs[restored].resize(shape.slab_bytes());
        const BlockId id = restored ? back.id(block) : table.id(block);
        check(
            device->copy(slabs[restored].data(), pool.slab_memory(id, layer), shape.slab_bytes()));
        check(device->finish());
      }
      EXPECT_LE(relative_error(slabs[1], slabs[0]), 0x1p-8) << layer << " " << block;
    }
  }
}

}  // namespace
}  // namespace kvlane
