// Codecs on a GPU as tests see them: many planes in one launch, with exactly the memory that is
// promised to each, or poisoned bytes around it, against the scalar codec.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/gpu_codecs.h"
#include "codec/splitzip_fixture.h"
#include "gpu/device_list.h"
#include "gpu/gpu_fixture.h"

namespace kvlane::gpu_codec_fixture {

using gpu_fixture::check;
using gpu_fixture::DeviceBytes;

struct PlaneCase {
  PlaneShape shape;
  Bytes plane;
  std::optional<Codebook> book = std::nullopt;
  std::size_t plane_shift = 0, body_shift = 0;
};
struct BodyCase {
  PlaneShape shape;
  Bytes body;  // untrusted
  std::size_t plane_shift = 0, body_shift = 0;
};
struct Decoded {
  DeviceVerdict verdict;
  Bytes plane;
};

// All cases of one type in one launch. Outputs are full of garbage before.
template <class Gpu>
std::vector<Bytes> encode_all(const gpu::Stream& stream, const std::vector<PlaneCase>& cases,
                              DeviceBytes::Around around) {
  const Codec& codec = **find_codec(Gpu::kName, Isa::kScalar);
  const std::size_t count = cases.size();
  const Bytes garbage(count * sizeof(std::uint32_t), std::byte{0xEE});
  const DeviceBytes lengths(stream, garbage, 0, around);
  auto* const length_of = reinterpret_cast<std::uint32_t*>(lengths.data());
  std::vector<DeviceBytes> planes, books, bodies;
  std::vector<typename Gpu::Encode> tasks;
  for (std::size_t i = 0; i < count; ++i) {
    const PlaneCase& one = cases[i];
    planes.emplace_back(stream, one.plane, one.plane_shift, around);
    const Bytes poison(codec.bound(one.shape), DeviceBytes::kPoison);
    bodies.emplace_back(stream, poison, one.body_shift, around);
    const std::uint8_t* book = nullptr;
    if (one.book) {
      books.emplace_back(stream, std::as_bytes(std::span(one.book->exponents)), 0, around);
      book = reinterpret_cast<const std::uint8_t*>(books.back().data());
    }
    tasks.push_back(Gpu::encode_task(one.shape, planes.back().data(), book, bodies.back().data(),
                                     length_of + i));
  }
  auto list = take(gpu::DeviceList<typename Gpu::Encode>::allocate(stream.device(), count));
  check(list.assign(stream, tasks));
  check(Gpu::encode(cases.front().shape.type, list.on_device(), count, stream));
  check(stream.synchronize());
  const Bytes told = lengths.read();
  std::vector<Bytes> results;
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bytes = 0;
    std::memcpy(&bytes, told.data() + i * sizeof(bytes), sizeof(bytes));
    Bytes body = bodies[i].read();
    if (bytes > body.size()) throw std::runtime_error("a body longer than its bound");
    body.resize(bytes);
    results.push_back(std::move(body));
    EXPECT_EQ(planes[i].read(), cases[i].plane) << "an input was written";
  }
  return results;
}

template <class Gpu>
std::vector<Decoded> decode_all(const gpu::Stream& stream, const std::vector<BodyCase>& cases,
                                DeviceBytes::Around around) {
  const std::size_t count = cases.size();
  const Bytes garbage(count * sizeof(DeviceVerdict), std::byte{0xEE});
  const DeviceBytes verdicts(stream, garbage, 0, around);
  auto* const verdict_of = reinterpret_cast<DeviceVerdict*>(verdicts.data());
  std::vector<DeviceBytes> bodies, planes;
  std::vector<typename Gpu::Decode> tasks;
  for (std::size_t i = 0; i < count; ++i) {
    const BodyCase& one = cases[i];
    bodies.emplace_back(stream, one.body, one.body_shift, around);
    const Bytes poison(one.shape.bytes(), DeviceBytes::kPoison);
    planes.emplace_back(stream, poison, one.plane_shift, around);
    tasks.push_back(Gpu::decode_task(one.shape, bodies.back().data(), one.body.size(),
                                     planes.back().data(), verdict_of + i));
  }
  auto list = take(gpu::DeviceList<typename Gpu::Decode>::allocate(stream.device(), count));
  check(list.assign(stream, tasks));
  check(Gpu::decode(cases.front().shape.type, list.on_device(), count, stream));
  check(stream.synchronize());
  const Bytes told = verdicts.read();
  std::vector<Decoded> results;
  for (std::size_t i = 0; i < count; ++i) {
    DeviceVerdict verdict{};
    std::memcpy(&verdict, told.data() + i * sizeof(verdict), sizeof(verdict));
    results.push_back({verdict, planes[i].read()});
  }
  return results;
}

// Bytes of the scalar encoder, and the planes back, for both kinds of memory.
template <class Gpu>
void expect_same(const gpu::Stream& stream, const std::vector<PlaneCase>& cases) {
  const Codec& codec = **find_codec(Gpu::kName, Isa::kScalar);
  std::vector<BodyCase> bodies;
  for (const PlaneCase& one : cases) {
    Bytes body(codec.bound(one.shape));
    body.resize(codec.encode(one.shape, one.plane, one.book ? &*one.book : nullptr, body));
    bodies.push_back({one.shape, std::move(body), one.plane_shift, one.body_shift});
  }
  for (const auto around : {DeviceBytes::Around::kPoison, DeviceBytes::Around::kNothing}) {
    const std::vector<Bytes> encoded = encode_all<Gpu>(stream, cases, around);
    const std::vector<Decoded> decoded = decode_all<Gpu>(stream, bodies, around);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      ASSERT_EQ(encoded[i].size(), bodies[i].body.size()) << "plane " << i;
      const auto at = std::mismatch(encoded[i].begin(), encoded[i].end(), bodies[i].body.begin());
      ASSERT_EQ(at.first, encoded[i].end())
          << "plane " << i << " differs at byte " << at.first - encoded[i].begin();
      ASSERT_EQ(decoded[i].verdict, DeviceVerdict::kDecoded) << "plane " << i;
      ASSERT_TRUE(decoded[i].plane == cases[i].plane) << "plane " << i;
    }
  }
}

// The scalar decoder's verdicts, and its planes where it has one. Returns how many it refuses.
template <class Gpu>
int expect_same_verdicts(const gpu::Stream& stream, const std::vector<BodyCase>& cases) {
  const Codec& codec = **find_codec(Gpu::kName, Isa::kScalar);
  int refused = 0;
  for (const auto around : {DeviceBytes::Around::kPoison, DeviceBytes::Around::kNothing}) {
    const std::vector<Decoded> decoded = decode_all<Gpu>(stream, cases, around);
    refused = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      Bytes plane;
      const Status status =
          splitzip_fixture::decode_exactly(codec, cases[i].body, cases[i].shape, plane);
      const DeviceVerdict expected =
          status.ok() ? DeviceVerdict::kDecoded
                      : (status.code() == Code::kUnsupported ? DeviceVerdict::kUnsupported
                                                             : DeviceVerdict::kCorrupt);
      EXPECT_EQ(decoded[i].verdict, expected) << "body " << i << ": " << status.message();
      EXPECT_TRUE(!status.ok() || decoded[i].plane == plane) << "body " << i;
      refused += status.ok() ? 0 : 1;
    }
  }
  return refused;
}

}  // namespace kvlane::gpu_codec_fixture
