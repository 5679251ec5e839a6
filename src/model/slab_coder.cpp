// Kernels want planes without gaps, so heads are moved together before, or apart afterwards: 4
// bytes of device traffic a value, where copies to the host are the narrow place.
// SPDX-License-Identifier: Apache-2.0
#include "model/slab_coder.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "codec/gpu_codecs.h"
#include "gpu/device.h"
#include "model/alignment.h"

namespace kvlane {
namespace {

// What a launch is told of a plane, and tells: a length, or a verdict.
constexpr std::size_t kTaskBytes =
    std::max({sizeof(SplitZipGpu::Encode), sizeof(SplitZipGpu::Decode), sizeof(ChannelGpu::Encode),
              sizeof(ChannelGpu::Decode)});
constexpr std::size_t kResultBytes = sizeof(std::uint32_t);
static_assert(sizeof(DeviceVerdict) == kResultBytes);

// Runs act with the kernels of a codec that is known.
template <class Act>
Status with_kernels(const Codec& codec, const Act& act) {
  return codec.name() == SplitZipGpu::kName ? act(SplitZipGpu()) : act(ChannelGpu());
}

// What the CPU says of bytes that a device refused.
Status refusal(const Codec& codec, const CodedSlab& coded, const PlaneShape& plane) {
  std::vector<std::byte> values(plane.bytes());
  KVLANE_TRY(codec.decode(plane, coded.k, std::span(values)));
  KVLANE_TRY(codec.decode(plane, coded.v, std::span(values)));
  return internal_error("a device refused a slab that the CPU can decode");
}

}  // namespace

bool SlabCoder::knows(const Codec& codec) {
  return codec.name() == SplitZipGpu::kName || codec.name() == ChannelGpu::kName;
}

SlabCoder::SlabCoder(const KvShape& shape, int slabs_max)
    : shape_(shape),
      planes_max_(2 * slabs_max),
      plane_bytes_(device_aligned(plane_shape(shape, kBlockTokens).bytes())),
      body_bytes_(0) {}

Result<SlabCoder> SlabCoder::open(Accelerator& device, const KvShape& shape, int slabs_max) {
  SlabCoder coder(shape, slabs_max);
  KVLANE_TRY(coder.allocate(device));
  return coder;
}

Status SlabCoder::allocate(Accelerator& device) {
  for (const std::string_view name : {SplitZipGpu::kName, ChannelGpu::kName}) {
    KVLANE_ASSIGN(const Codec* const codec, find_codec(name));
    body_bytes_ =
        std::max(body_bytes_, device_aligned(codec->bound(plane_shape(shape_, kBlockTokens))));
  }
  KVLANE_ASSIGN(lane_, device.lane());
  KVLANE_ASSIGN(memory_, device.allocate(planes_max_ * (plane_bytes_ + body_bytes_)));
  KVLANE_ASSIGN(host_, device.allocate_host(planes_max_ * (body_bytes_ + kTaskBytes + kResultBytes +
                                                           std::size_t{Codebook::kExponentsMax})));
  return {};
}

std::byte* SlabCoder::result(int plane) const {
  return told() + planes_max_ * kTaskBytes + plane * kResultBytes;
}

std::byte* SlabCoder::book(int plane) const {
  return result(planes_max_) + plane * Codebook::kExponentsMax;
}

template <class Gpu>
Status SlabCoder::give_encode(std::span<const DeviceSlab> slabs) {
  int planes = 0;
  for (const DeviceSlab& slab : slabs) {
    for (int part = 0; part < 2; ++part, ++planes) {
      KVLANE_TRY(copy_plane(dense(planes), slab.slab, part, slab.rows));
      const std::uint8_t* at = nullptr;
      if (const Codebook* const known = slab.books[part]; known != nullptr) {
        std::memcpy(book(planes), known->exponents.data(), Codebook::kExponentsMax);
        at = reinterpret_cast<const std::uint8_t*>(book(planes));
      }
      const auto task =
          Gpu::encode_task(plane_shape(shape_, slab.rows), dense(planes), at, body(planes),
                           reinterpret_cast<std::uint32_t*>(result(planes)));
      std::memcpy(told() + planes * sizeof(task), &task, sizeof(task));
    }
  }
  return lane_->encode(shape_.type, reinterpret_cast<const typename Gpu::Encode*>(told()), planes);
}

Result<std::span<const CodedSlab>> SlabCoder::encode(const Codec& codec,
                                                     std::span<const DeviceSlab> slabs,
                                                     const DeviceMark* done) {
  if (done != nullptr) KVLANE_TRY(lane_->wait(*done));
  Status given =
      with_kernels(codec, [&](auto gpu) -> Status { return give_encode<decltype(gpu)>(slabs); });
  // Also after an error: what is in line reads what the next call writes.
  const Status finished = lane_->finish();
  KVLANE_TRY(given);
  KVLANE_TRY(finished);
  coded_.clear();
  for (int slab = 0; slab < static_cast<int>(slabs.size()); ++slab) {
    std::array<ByteView, 2> bodies;
    for (int part = 0; part < 2; ++part) {
      const int plane = 2 * slab + part;
      std::uint32_t bytes = 0;
      std::memcpy(&bytes, result(plane), sizeof(bytes));
      if (bytes > body_bytes_) {
        return internal_error("a device coded a plane in " + std::to_string(bytes) + " bytes");
      }
      bodies[part] = {host_body(plane), bytes};
      given = lane_->copy(host_body(plane), body(plane), bytes);
      if (!given.ok()) break;
    }
    if (!given.ok()) break;
    coded_.push_back({bodies[0], bodies[1]});
  }
  const Status copied = lane_->finish();
  KVLANE_TRY(given);
  KVLANE_TRY(copied);
  return std::span<const CodedSlab>(coded_);
}

bool SlabCoder::fits(const CodedSlab& coded) const {
  return std::max(coded.k.size(), coded.v.size()) <= body_bytes_;
}

// Those that fit. Each has its planes' places, also when one before it has no use for its own.
template <class Gpu>
Status SlabCoder::give_decode(std::span<const ComingSlab> slabs) {
  int tasks = 0;
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    const ComingSlab& slab = slabs[i];
    if (!fits(slab.coded)) continue;
    const ByteView bodies[2] = {slab.coded.k, slab.coded.v};
    for (int part = 0; part < 2; ++part, ++tasks) {
      const int plane = 2 * static_cast<int>(i) + part;
      const std::size_t bytes = bodies[part].size();
      std::copy_n(bodies[part].data(), bytes, host_body(plane));
      KVLANE_TRY(lane_->copy(body(plane), host_body(plane), bytes));
      const auto task =
          Gpu::decode_task(plane_shape(shape_, slab.rows), body(plane), bytes, dense(plane),
                           reinterpret_cast<DeviceVerdict*>(result(plane)));
      std::memcpy(told() + tasks * sizeof(task), &task, sizeof(task));
    }
  }
  if (tasks == 0) return {};
  KVLANE_TRY(
      lane_->decode(shape_.type, reinterpret_cast<const typename Gpu::Decode*>(told()), tasks));
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    if (fits(slabs[i].coded)) KVLANE_TRY(give_rows(slabs[i], 2 * static_cast<int>(i)));
  }
  return {};
}

// Apart again, to where the slab lies.
Status SlabCoder::give_rows(const ComingSlab& slab, int plane) {
  const std::size_t head = plane_shape(shape_, slab.rows).head_bytes(), page = shape_.page_bytes();
  for (int part = 0; part < 2; ++part) {
    KVLANE_TRY(lane_->copy_rows({.to = slab.slab + part * page / 2,
                                 .to_stride = page,
                                 .from = dense(plane + part),
                                 .from_stride = head,
                                 .bytes = head,
                                 .rows = std::size_t(shape_.kv_heads)}));
  }
  return {};
}

Status SlabCoder::decode(const Codec& codec, std::span<const ComingSlab> slabs,
                         std::span<Status> verdicts) {
  const Status given =
      with_kernels(codec, [&](auto gpu) -> Status { return give_decode<decltype(gpu)>(slabs); });
  const Status finished = lane_->finish();
  KVLANE_TRY(given);
  KVLANE_TRY(finished);
  for (std::size_t i = 0; i < slabs.size(); ++i) {
    bool decoded = fits(slabs[i].coded);
    for (int part = 0; part < 2 && decoded; ++part) {
      DeviceVerdict verdict;
      std::memcpy(&verdict, result(2 * static_cast<int>(i) + part), sizeof(verdict));
      decoded = verdict == DeviceVerdict::kDecoded;
    }
    verdicts[i] =
        decoded ? Status() : refusal(codec, slabs[i].coded, plane_shape(shape_, slabs[i].rows));
  }
  return {};
}

// The rows of all heads, one head behind the other.
Status SlabCoder::copy_plane(std::byte* dense, const std::byte* slab, int part, int rows) {
  const std::size_t head = plane_shape(shape_, rows).head_bytes(), page = shape_.page_bytes();
  return lane_->copy_rows({.to = dense,
                           .to_stride = head,
                           .from = slab + part * page / 2,
                           .from_stride = page,
                           .bytes = head,
                           .rows = std::size_t(shape_.kv_heads)});
}

}  // namespace kvlane
