// Slab by slab: gather, encode, decode, compare.
// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_pace.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"
#include "bench/figures.h"
#include "engine/codec_choice.h"

namespace kvlane {
namespace {

constexpr int kSlabs = 256;

// K (or V) of all heads of a slab.
void gather(const BlockPool& pool, BlockId block, int layer, bool v,
            std::vector<std::byte>& plane) {
  const KvShape& shape = pool.shape();
  const std::size_t head_bytes = plane.size() / shape.kv_heads;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const std::uint16_t* const page = pool.page(block, layer, head);
    std::memcpy(plane.data() + head * head_bytes, page + (v ? shape.page_plane_elements() : 0),
                head_bytes);
  }
}

}  // namespace

Result<CodecPace> measure_pace(const Codec& codec, const BlockTable& table, int tokens) {
  const BlockPool& pool = table.pool();
  const int layers = pool.shape().layers;
  // Whole blocks only, but for a prompt that has none.
  const int blocks = std::max(1, tokens / kBlockTokens);
  const PlaneShape shape = plane_shape(pool.shape(), std::min(tokens, kBlockTokens));
  std::vector<std::byte> plane(shape.bytes());
  std::vector<std::byte> decoded(shape.bytes());
  std::vector<std::byte> coded(codec.bound(shape));
  std::vector<double> encode;
  std::vector<double> decode;
  double coded_bytes = 0;
  const int slabs = std::min(kSlabs, blocks * layers);
  for (int i = 0; i < slabs; ++i) {
    const int slab = static_cast<int>(std::int64_t{i} * blocks * layers / slabs);
    for (const bool v : {false, true}) {
      gather(pool, table.id(slab % blocks), slab / blocks, v, plane);
      const TimedEncoding encoding =
          time_encoding(codec, shape, dense_plane(shape, plane.data()), coded);
      const TimePoint start = SteadyClock::now();
      const Status status = codec.decode(shape, {coded.data(), encoding.bytes}, decoded);
      decode.push_back(seconds_since(start));
      encode.push_back(encoding.time.count());
      coded_bytes += static_cast<double>(encoding.bytes);
      if (!status.ok() || decoded != plane) {
        return internal_error("codec " + std::string(codec.name()) + " changed a plane");
      }
    }
  }
  const auto bytes = static_cast<double>(shape.bytes());
  return CodecPace{bytes * static_cast<double>(encode.size()) / coded_bytes,
                   bytes / std::max(median(std::move(encode)), 1e-9),
                   bytes / std::max(median(std::move(decode)), 1e-9)};
}

}  // namespace kvlane
