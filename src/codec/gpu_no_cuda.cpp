// The launchers of both codecs for builds without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "codec/channel_gpu.h"
#include "codec/splitzip_gpu.h"
#include "gpu/no_cuda.h"

namespace kvlane {

Status splitzip::encode_on_gpu(ElementType, const DeviceEncodeTask*, std::size_t,
                               const gpu::Stream&) {
  return gpu::no_cuda();
}
Status splitzip::decode_on_gpu(ElementType, const DeviceDecodeTask*, std::size_t,
                               const gpu::Stream&) {
  return gpu::no_cuda();
}
Status channel::encode_on_gpu(const DeviceEncodeTask*, std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}
Status channel::decode_on_gpu(const DeviceDecodeTask*, std::size_t, const gpu::Stream&) {
  return gpu::no_cuda();
}

}  // namespace kvlane
