// What tests that need a GPU share: a device and a stream, or a skip that says why there is none,
// and memory of a device that tells whether somebody wrote around it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <vector>

#include "base/test_results.h"
#include "gpu/device.h"

namespace kvlane::gpu_fixture {

inline void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <class T>
ByteView view(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  // An empty vector has no address.
  if (!values.empty()) std::memcpy(static_cast<void*>(values.data()), bytes.data(), bytes.size());
  return values;
}

// Tests with this fixture run on device 0.
class GpuTest : public testing::Test {
 protected:
  static constexpr int kDevice = 0;

  void SetUp() override {
    const Result<std::vector<gpu::Device>> found = gpu::devices();
    if (!found.ok()) GTEST_SKIP() << "no GPU: " << found.status().message();
    stream_.emplace(take(gpu::Stream::create(kDevice)));
  }
  const gpu::Stream& stream() const { return *stream_; }

 private:
  std::optional<gpu::Stream> stream_;
};

// Bytes on the device that begin `shift` behind a multiple of 256. Either with poisoned bytes
// around them, or, for compute-sanitizer, with nothing behind them.
class DeviceBytes {
 public:
  enum class Around { kPoison, kNothing };

  DeviceBytes(const gpu::Stream& stream, ByteView content, std::size_t shift, Around around)
      : stream_(stream),
        begin_((around == Around::kPoison ? kGuardBytes : 0) + shift),
        bytes_(content.size()),
        image_(begin_ + bytes_ + (around == Around::kPoison ? kGuardBytes : 0), kPoison),
        buffer_(take(gpu::DeviceBuffer::allocate(stream.device(), image_.size()))) {
    std::copy(content.begin(), content.end(), image_.begin() + static_cast<std::ptrdiff_t>(begin_));
    check(gpu::copy(stream, buffer_.data(), image_.data(), image_.size()));
    check(stream.synchronize());
  }

  std::byte* data() const { return buffer_.data() + begin_; }

  // What is there now; fails the test if anything around it changed.
  Bytes read() const {
    Bytes now(image_.size());
    check(gpu::copy(stream_, now.data(), buffer_.data(), now.size()));
    check(stream_.synchronize());
    const auto begin = now.begin() + static_cast<std::ptrdiff_t>(begin_);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes_);
    EXPECT_EQ(Bytes(now.begin(), begin), Bytes(begin_, kPoison)) << "written before its begin";
    EXPECT_EQ(Bytes(end, now.end()), Bytes(image_.size() - begin_ - bytes_, kPoison))
        << "written behind its end";
    return {begin, end};
  }

  static constexpr std::byte kPoison{0xA5};

 private:
  static constexpr std::size_t kGuardBytes = 256;

  const gpu::Stream& stream_;
  const std::size_t begin_;
  const std::size_t bytes_;
  Bytes image_;
  gpu::DeviceBuffer buffer_;
};

}  // namespace kvlane::gpu_fixture
