// Ratio and speed of `splitzip:channel` on planes written by planes.cpp, in one run with memcpy.
//
//   speed CHANNELS SIZES FILE...
//
// SIZES says how many planes of how many KiB are coded, one after another, as "2x131072,1x192". The
// files' planes (BF16, [.][64][CHANNELS]) are joined and repeated to fill them; every round times
// memcpy, a copy with stores around the caches, and each tier in turn, and medians are printed, in
// GB/s of raw bytes and relative to memcpy of the same round.
// SPDX-License-Identifier: Apache-2.0
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "cpu/memory.h"

using namespace kvlane;

namespace {

double seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

__attribute__((target("avx512f"))) void copy_around_caches(std::byte* to, const std::byte* from,
                                                           std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
}

struct Job {
  std::string name;
  std::function<void()> run;
  std::vector<double> times;
};

std::byte* memory(std::size_t bytes) {
  static std::vector<PageBuffer> kept;
  auto buffer = PageBuffer::allocate(bytes);
  if (!buffer.ok()) std::exit(1);
  std::memset(buffer->data(), 1, bytes);
  kept.push_back(std::move(*buffer));
  return kept.back().data();
}

void measure(const std::vector<char>& data, const PlaneShape& shape, std::size_t planes,
             std::byte* plane, std::byte* copy, std::byte* coded) {
  const std::size_t bytes = shape.bytes() * planes;
  for (std::size_t i = 0; i < bytes; i += data.size()) {
    std::memcpy(plane + i, data.data(), std::min(data.size(), bytes - i));
  }
  const std::size_t room = ((*find_codec("splitzip:channel"))->bound(shape) + 63) / 64 * 64;
  std::vector<std::size_t> sizes(planes);
  const auto encode = [&](const Codec& codec) {
    for (std::size_t p = 0; p < planes; ++p) {
      const ByteView values(plane + p * shape.bytes(), shape.bytes());
      sizes[p] = codec.encode(shape, values, nullptr, {coded + p * room, room});
    }
  };
  const auto decode = [&](const Codec& codec) {
    for (std::size_t p = 0; p < planes; ++p) {
      const std::span<std::byte> values(copy + p * shape.bytes(), shape.bytes());
      if (!codec.decode(shape, {coded + p * room, sizes[p]}, values).ok()) std::exit(1);
    }
  };
  std::vector<Job> jobs;
  jobs.push_back({"memcpy", [&] { std::memcpy(copy, plane, bytes); }, {}});
  jobs.push_back({"copy around caches", [&] { copy_around_caches(copy, plane, bytes); }, {}});
  for (const Isa isa : {Isa::kAvx512Bf16, Isa::kAvx2, Isa::kScalar}) {
    if (!isa_supported(isa) || (isa == Isa::kScalar && bytes > 4U << 20)) continue;
    const Codec& codec = **find_codec("splitzip:channel", isa);
    const std::string tier(isa_name(isa));
    jobs.push_back({"encode " + tier, [&] { encode(codec); }, {}});
    jobs.push_back({"decode " + tier, [&] { decode(codec); }, {}});
  }
  const std::size_t inner = std::max<std::size_t>(1, (std::size_t{32} << 20) / bytes);
  for (int round = 0; round < (bytes > 64U << 20 ? 11 : 21); ++round) {
    for (Job& job : jobs) {
      const bool slow = job.name.ends_with("scalar");
      const std::size_t repeats = slow ? std::max<std::size_t>(1, inner / 16) : inner;
      const double start = seconds();
      for (std::size_t i = 0; i < repeats; ++i) job.run();
      job.times.push_back((seconds() - start) / static_cast<double>(repeats));
    }
    if (std::memcmp(plane, copy, bytes) != 0) std::exit(1);
  }
  std::size_t total = 0;
  for (const std::size_t size : sizes) total += size;
  std::printf("\n%zu planes of %d x %d x %d, %zu KiB together, ratio %.4f\n", planes,
              shape.kv_heads, shape.rows, shape.head_dim, bytes >> 10,
              static_cast<double>(bytes) / static_cast<double>(total));
  for (const Job& job : jobs) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < job.times.size(); ++i) {
      ratios.push_back(jobs[0].times[i] / job.times[i]);
    }
    const double best = *std::min_element(job.times.begin(), job.times.end());
    std::printf("%-20s %7.2f GB/s (best %6.2f)  x memcpy %.2f\n", job.name.c_str(),
                static_cast<double>(bytes) / median(job.times) / 1e9,
                static_cast<double>(bytes) / best / 1e9, median(ratios));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: speed CHANNELS SIZES FILE...\n");
    return 2;
  }
  const int channels = std::atoi(argv[1]);
  std::vector<char> data;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    data.insert(data.end(), std::istreambuf_iterator<char>(file), {});
  }
  const std::size_t head_bytes = std::size_t{2} * 64 * channels;
  data.resize(data.size() / head_bytes * head_bytes);
  if (data.empty()) return 1;
  constexpr std::size_t kLargest = std::size_t{256} << 20;
  std::byte* const plane = memory(kLargest);
  std::byte* const copy = memory(kLargest);
  std::byte* const coded = memory(kLargest + (4U << 20));
  std::istringstream sizes(argv[2]);
  std::size_t planes = 0;
  std::size_t kib = 0;
  for (char x = 'x'; sizes >> planes >> x >> kib; sizes >> x) {
    const std::size_t heads = (kib << 10) / head_bytes;
    if (planes * (kib << 10) > kLargest || heads == 0) return 2;
    measure(data, {ElementType::kBf16, static_cast<int>(heads), 64, channels}, planes, plane, copy,
            coded);
  }
  return 0;
}
