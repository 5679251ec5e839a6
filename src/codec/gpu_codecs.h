// Both codecs on a GPU in one shape, for templates: what a task is, and how many are launched.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "codec/channel_gpu.h"
#include "codec/splitzip_gpu.h"

namespace kvlane {

// Arguments are those of codec/splitzip_gpu.h; addresses are the device's.
struct SplitZipGpu {
  static constexpr std::string_view kName = "splitzip";
  using Encode = splitzip::DeviceEncodeTask;
  using Decode = splitzip::DeviceDecodeTask;

  static Encode encode_task(const PlaneShape& shape, const std::byte* plane,
                            const std::uint8_t* book, std::byte* body, std::uint32_t* bytes) {
    return {shape.type, static_cast<std::uint32_t>(shape.elements()), plane, book, body, bytes};
  }
  static Decode decode_task(const PlaneShape& shape, const std::byte* body, std::size_t bytes,
                            std::byte* plane, DeviceVerdict* verdict) {
    return {.type = shape.type,
            .elements = static_cast<std::uint32_t>(shape.elements()),
            .body = body,
            .body_bytes = static_cast<std::uint32_t>(bytes),
            .plane = plane,
            .verdict = verdict};
  }
  static Status encode(ElementType type, const Encode* tasks, std::size_t count,
                       const gpu::Stream& stream) {
    return splitzip::encode_on_gpu(type, tasks, count, stream);
  }
  static Status decode(ElementType type, const Decode* tasks, std::size_t count,
                       const gpu::Stream& stream) {
    return splitzip::decode_on_gpu(type, tasks, count, stream);
  }
};

// The same for channels, which have no codebooks; types may differ within a launch.
struct ChannelGpu {
  static constexpr std::string_view kName = "splitzip:channel";
  using Encode = channel::DeviceEncodeTask;
  using Decode = channel::DeviceDecodeTask;

  static Encode encode_task(const PlaneShape& shape, const std::byte* plane, const std::uint8_t*,
                            std::byte* body, std::uint32_t* bytes) {
    return {shape, plane, body, bytes};
  }
  static Decode decode_task(const PlaneShape& shape, const std::byte* body, std::size_t bytes,
                            std::byte* plane, DeviceVerdict* verdict) {
    return {shape, body, static_cast<std::uint32_t>(bytes), plane, verdict};
  }
  static Status encode(ElementType, const Encode* tasks, std::size_t count,
                       const gpu::Stream& stream) {
    return channel::encode_on_gpu(tasks, count, stream);
  }
  static Status decode(ElementType, const Decode* tasks, std::size_t count,
                       const gpu::Stream& stream) {
    return channel::decode_on_gpu(tasks, count, stream);
  }
};

}  // namespace kvlane
