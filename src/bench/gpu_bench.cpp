// A group of figures is one codec with one element type, attention, or row operations: its
// launches, and the copies that bound it, take turns.
// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bench.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "bench/gpu_attention.h"
#include "bench/gpu_copy.h"
#include "bench/gpu_hack.h"
#include "bench/gpu_planes.h"
#include "bench/gpu_prefill.h"
#include "bench/gpu_rows.h"
#include "bench/gpu_step.h"
#include "bench/gpu_timer.h"
#include "bench/gpu_zack.h"
#include "codec/exponents.h"
#include "codec/gpu_codecs.h"
#include "gpu/device_list.h"

namespace kvlane {

namespace {

// Different planes; copies of them make up the rest.
constexpr int kDistinctPlanes = 64;

// Memory and tasks of all planes of a group.
template <class Codec>
struct Planes {
  PlaneShape shape;
  std::size_t count;
  std::size_t body_stride;
  gpu::DeviceBuffer raw, bodies, back;
  gpu::DeviceBuffer book, lengths, verdicts;
  gpu::DeviceList<typename Codec::Encode> encode, encode_counted;
  gpu::DeviceList<typename Codec::Decode> decode;
  double coded_bytes = 0;

  static Result<Planes> allocate(int device, const PlaneShape& shape, std::size_t count) {
    const std::size_t stride = (shape.bytes() + 64 + 255) / 256 * 256;  // more than any bound
    KVLANE_ASSIGN(auto raw, gpu::DeviceBuffer::allocate(device, count * shape.bytes()));
    KVLANE_ASSIGN(auto bodies, gpu::DeviceBuffer::allocate(device, count * stride));
    KVLANE_ASSIGN(auto back, gpu::DeviceBuffer::allocate(device, count * shape.bytes()));
    KVLANE_ASSIGN(auto book, gpu::DeviceBuffer::allocate(device, sizeof(Codebook)));
    KVLANE_ASSIGN(auto lengths, gpu::DeviceBuffer::allocate(device, count * sizeof(std::uint32_t)));
    KVLANE_ASSIGN(auto verdicts,
                  gpu::DeviceBuffer::allocate(device, count * sizeof(DeviceVerdict)));
    using EncodeList = gpu::DeviceList<typename Codec::Encode>;
    using DecodeList = gpu::DeviceList<typename Codec::Decode>;
    KVLANE_ASSIGN(auto encode, EncodeList::allocate(device, count));
    KVLANE_ASSIGN(auto encode_counted, EncodeList::allocate(device, count));
    KVLANE_ASSIGN(auto decode, DecodeList::allocate(device, count));
    return Planes{shape,
                  count,
                  stride,
                  std::move(raw),
                  std::move(bodies),
                  std::move(back),
                  std::move(book),
                  std::move(lengths),
                  std::move(verdicts),
                  std::move(encode),
                  std::move(encode_counted),
                  std::move(decode)};
  }

  std::size_t bytes() const { return count * shape.bytes(); }
  std::byte* raw_of(std::size_t i) const { return raw.data() + i * shape.bytes(); }
  std::byte* body_of(std::size_t i) const { return bodies.data() + i * body_stride; }
  std::byte* back_of(std::size_t i) const { return back.data() + i * shape.bytes(); }
};

// Puts the values there, and the codebook that they ask for.
template <class Codec>
Status fill_planes(const gpu::Stream& stream, const std::vector<Bytes>& values,
                   Planes<Codec>& planes) {
  ExponentCounts counts{};
  for (std::size_t i = 0; i < planes.count; ++i) {
    if (i < values.size()) {
      count_exponents(planes.shape.type, values[i], counts);
      KVLANE_TRY(gpu::copy(stream, planes.raw_of(i), values[i].data(), planes.shape.bytes()));
    } else {
      KVLANE_TRY(gpu::copy(stream, planes.raw_of(i), planes.raw_of(i % values.size()),
                           planes.shape.bytes()));
    }
  }
  const Codebook book = codebook_of(planes.shape.type, counts);
  KVLANE_TRY(gpu::copy(stream, planes.book.data(),
                       reinterpret_cast<const std::byte*>(&book.exponents), sizeof(book)));
  std::vector<typename Codec::Encode> with_book, counted;
  for (std::size_t i = 0; i < planes.count; ++i) {
    auto* const bytes = planes.lengths.template as<std::uint32_t>() + i;
    const auto* const exponents = planes.book.template as<std::uint8_t>();
    with_book.push_back(
        Codec::encode_task(planes.shape, planes.raw_of(i), exponents, planes.body_of(i), bytes));
    counted.push_back(
        Codec::encode_task(planes.shape, planes.raw_of(i), nullptr, planes.body_of(i), bytes));
  }
  KVLANE_TRY(planes.encode.assign(stream, with_book));
  KVLANE_TRY(planes.encode_counted.assign(stream, counted));
  return stream.synchronize();
}

// Encodes once, as the decoder is told how long bodies are.
template <class Codec>
Status prepare_decode(const gpu::Stream& stream, Planes<Codec>& planes) {
  KVLANE_TRY(Codec::encode(planes.shape.type, planes.encode.on_device(), planes.count, stream));
  std::vector<std::uint32_t> lengths(planes.count);
  KVLANE_TRY(gpu::copy(stream, reinterpret_cast<std::byte*>(lengths.data()), planes.lengths.data(),
                       planes.lengths.bytes()));
  KVLANE_TRY(stream.synchronize());
  std::vector<typename Codec::Decode> tasks;
  for (std::size_t i = 0; i < planes.count; ++i) {
    auto* const verdict = planes.verdicts.template as<DeviceVerdict>() + i;
    tasks.push_back(Codec::decode_task(planes.shape, planes.body_of(i), lengths[i],
                                       planes.back_of(i), verdict));
    planes.coded_bytes += lengths[i];
  }
  KVLANE_TRY(planes.decode.assign(stream, tasks));
  return stream.synchronize();
}

// Whether all planes came back.
template <class Codec>
Status check_planes(const gpu::Stream& stream, const Planes<Codec>& planes) {
  std::vector<DeviceVerdict> verdicts(planes.count);
  KVLANE_TRY(gpu::copy(stream, reinterpret_cast<std::byte*>(verdicts.data()),
                       planes.verdicts.data(), planes.verdicts.bytes()));
  constexpr std::size_t kPlanesAtOnce = 256;
  Bytes raw(kPlanesAtOnce * planes.shape.bytes()), back(raw.size());
  for (std::size_t i = 0; i < planes.count; i += kPlanesAtOnce) {
    const std::size_t bytes = std::min(kPlanesAtOnce, planes.count - i) * planes.shape.bytes();
    KVLANE_TRY(gpu::copy(stream, raw.data(), planes.raw_of(i), bytes));
    KVLANE_TRY(gpu::copy(stream, back.data(), planes.back_of(i), bytes));
    KVLANE_TRY(stream.synchronize());
    if (std::memcmp(raw.data(), back.data(), bytes) != 0) {
      return internal_error("of planes " + std::to_string(i) + " and following one came back " +
                            "changed by codec " + std::string(Codec::kName));
    }
  }
  for (const DeviceVerdict verdict : verdicts) {
    if (verdict != DeviceVerdict::kDecoded) {
      return internal_error("codec " + std::string(Codec::kName) + " refused its own body");
    }
  }
  return {};
}

// What runs in turn. The decoders come last, over what the others left in `back`.
template <class Codec>
Status add_runs(const gpu::Stream& stream, const GpuBenchOptions& options,
                const Planes<Codec>& planes, GpuTimer& timer) {
  const std::size_t bytes = planes.bytes();
  const auto raw_bytes = static_cast<double>(bytes);
  const ElementType type = planes.shape.type;
  KVLANE_TRY(timer.add("copy_by_driver", 2 * raw_bytes, [&stream, &planes, bytes] {
    return gpu::copy(stream, planes.back.data(), planes.raw.data(), bytes);
  }));
  KVLANE_TRY(timer.add("copy_by_kernel", 2 * raw_bytes, [&stream, &planes, bytes] {
    return gpu_copy_by_kernel(stream, planes.back.data(), planes.raw.data(), bytes);
  }));
  KVLANE_TRY(timer.add("read", raw_bytes, [&stream, &planes, bytes] {
    return gpu_read(stream, planes.raw.data(), bytes, planes.verdicts.data());
  }));
  KVLANE_TRY(timer.add("write", raw_bytes, [&stream, &planes, bytes] {
    return gpu_write(stream, planes.back.data(), bytes);
  }));
  // Launches of so many planes until all have had their turn.
  const auto launches = [&planes](int size, const auto& launch) {
    for (std::size_t i = 0; i < planes.count; i += static_cast<std::size_t>(size)) {
      KVLANE_TRY(launch(i, static_cast<std::size_t>(size)));
    }
    return Status();
  };
  const auto encode_by = [&stream, type, launches](const auto& tasks, int size) {
    return [&stream, &tasks, type, launches, size] {
      return launches(size, [&](std::size_t first, std::size_t count) {
        return Codec::encode(type, tasks.on_device() + first, count, stream);
      });
    };
  };
  if (Codec::kName == SplitZipGpu::kName) {
    KVLANE_TRY(timer.add("encode_counted", raw_bytes,
                         encode_by(planes.encode_counted, options.launches.back())));
  }
  for (const int size : options.launches) {
    KVLANE_TRY(
        timer.add("encode_" + std::to_string(size), raw_bytes, encode_by(planes.encode, size)));
  }
  for (const int size : options.launches) {
    KVLANE_TRY(timer.add(
        "decode_" + std::to_string(size), raw_bytes, [&stream, &planes, type, launches, size] {
          return launches(size, [&](std::size_t first, std::size_t count) {
            return Codec::decode(type, planes.decode.on_device() + first, count, stream);
          });
        }));
  }
  return {};
}

// Shares of the copy bound that we want, of launches of all planes; 0: none is set.
struct CopyShares {
  double encode = 0, decode = 0;
};

template <class Codec>
Status bench_codec(const gpu::Stream& stream, const GpuBenchOptions& options,
                   const std::vector<Bytes>& values, ElementType type, const CopyShares& goals,
                   std::vector<Figure>& figures) {
  PlaneShape shape = kGpuBenchShape;
  shape.type = type;
  KVLANE_ASSIGN(
      Planes<Codec> planes,
      Planes<Codec>::allocate(stream.device(), shape, static_cast<std::size_t>(options.planes)));
  KVLANE_TRY(fill_planes(stream, values, planes));
  KVLANE_TRY(prepare_decode(stream, planes));
  GpuTimer timer(stream);
  KVLANE_TRY(add_runs(stream, options, planes, timer));
  KVLANE_TRY(timer.time(options.rounds));
  KVLANE_TRY(check_planes(stream, planes));

  const double copy = std::max(timer.speed_of("copy_by_driver"), timer.speed_of("copy_by_kernel"));
  if (figures.empty()) {
    figures.push_back({.name = "gpu_copy", .value = copy, .unit = "GB/s"});
    for (const char* const name : {"copy_by_driver", "copy_by_kernel", "read", "write"}) {
      figures.push_back({.name = std::string("gpu_") + name,
                         .value = timer.speed_of(name),
                         .unit = "GB/s",
                         .baseline = copy});
    }
  }
  std::string prefix = "gpu_" + std::string(Codec::kName) + "_" + element_name(type) + "_";
  std::replace(prefix.begin(), prefix.end(), ':', '_');
  const double coded_share = planes.coded_bytes / static_cast<double>(planes.bytes());
  figures.push_back({.name = prefix + "ratio", .value = 1 / coded_share, .unit = "ratio"});
  const double bound = copy / (1 + coded_share);  // of raw bytes
  const std::string all = std::to_string(options.launches.back());
  for (const GpuTimed& one : timer.all()) {
    if (one.name.rfind("encode", 0) != 0 && one.name.rfind("decode", 0) != 0) continue;
    Figure figure{.name = prefix + one.name,
                  .value = one.gigabytes_per_second(),
                  .unit = "GB/s",
                  .baseline = bound};
    if (one.name == "encode_" + all && goals.encode > 0) figure.goal = goals.encode * bound;
    if (one.name == "decode_" + all && goals.decode > 0) figure.goal = goals.decode * bound;
    figures.push_back(figure);
  }
  return {};
}

Status check_options(const GpuBenchOptions& options) {
  if (options.planes < 1 || options.planes > 1 << 20) {
    return invalid_argument("planes must be from 1 to 1048576, not " +
                            std::to_string(options.planes));
  }
  if (options.rounds < 1) {
    return invalid_argument("rounds must be 1 or more, not " + std::to_string(options.rounds));
  }
  for (const int size : options.launches) {
    if (size < 1 || options.planes % size != 0) {
      return invalid_argument("launches of " + std::to_string(size) + " planes do not divide " +
                              std::to_string(options.planes));
    }
  }
  if (options.launches.empty()) return invalid_argument("there must be a size of launches");
  for (const std::string& group : options.only) {
    if (std::find(std::begin(kGpuBenchGroups), std::end(kGpuBenchGroups), group) ==
        std::end(kGpuBenchGroups)) {
      return invalid_argument("there is no group '" + group + "' of figures");
    }
    if (!options.file.empty() && group != "splitzip" && group != "channel") {
      return invalid_argument("figures of group '" + group + "' are not of a file's values");
    }
  }
  return {};
}

}  // namespace

Result<std::vector<Figure>> bench_gpu(const GpuBenchOptions& options,
                                      const std::function<void(const std::string&)>& on_progress) {
  KVLANE_TRY(check_options(options));
  KVLANE_ASSIGN(const gpu::Stream stream, gpu::Stream::create(options.device));
  const int distinct = std::min(kDistinctPlanes, options.planes);
  std::vector<Bytes> values;
  if (options.file.empty()) {
    on_progress("making planes");
    values = made_planes(ElementType::kBf16, distinct);
  } else {
    KVLANE_ASSIGN(values, read_planes(options.file, distinct));
  }
  std::vector<Figure> figures;
  // Whether a group is; then it is said that it comes.
  const auto begins = [&](const std::string& group, const std::string& what) {
    const bool is = options.only.empty() || std::find(options.only.begin(), options.only.end(),
                                                      group) != options.only.end();
    if (is) on_progress(what);
    return is;
  };
  if (begins("splitzip", "splitzip, bf16")) {
    KVLANE_TRY(bench_codec<SplitZipGpu>(stream, options, values, ElementType::kBf16, {0.75, 0.90},
                                        figures));
  }
  if (begins("channel", "splitzip:channel, bf16")) {
    KVLANE_TRY(bench_codec<ChannelGpu>(stream, options, values, ElementType::kBf16, {0.375, 0.45},
                                       figures));
  }
  if (!options.file.empty()) return figures;
  for (const ElementType type : {ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    if (!begins("fp8", std::string("splitzip, ") + element_name(type))) continue;
    KVLANE_TRY(
        bench_codec<SplitZipGpu>(stream, options, made_planes(type, distinct), type, {}, figures));
  }
  if (begins("attention", "decode attention")) {
    KVLANE_TRY(bench_gpu_attention(stream, options.rounds, values, figures));
  }
  if (begins("prefill", "prefill attention")) {
    KVLANE_TRY(bench_gpu_prefill(stream, options.rounds, values.front(), figures));
  }
  if (begins("hack", "attention on codes")) {
    KVLANE_TRY(bench_gpu_hack(stream, options.rounds, values, figures));
  }
  if (begins("zack", "attention over narrow pages")) {
    KVLANE_TRY(bench_gpu_zack(stream, options.rounds, values, figures));
  }
  if (begins("rows", "row operations")) {
    KVLANE_TRY(bench_gpu_rows(stream, options.rounds, values, figures));
  }
  if (begins("step", "decode step")) {
    // It needs more than the others, cuBLASLt and much memory: without it they are still worth
    // having.
    const Status step = bench_gpu_step(stream, options.rounds, values, figures, on_progress);
    if (!step.ok()) on_progress("no decode step: " + step.message());
  }
  return figures;
}

Result<std::string> describe_gpu(int device) {
  KVLANE_ASSIGN(const std::vector<gpu::Device> all, gpu::devices());
  if (device < 0 || static_cast<std::size_t>(device) >= all.size()) {
    return not_found("there is no device " + std::to_string(device) + ", but " +
                     std::to_string(all.size()) + " from 0 on");
  }
  const gpu::Device& one = all[static_cast<std::size_t>(device)];
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  return one.name + ", sm_" + std::to_string(one.major) + std::to_string(one.minor) + ", " +
         std::to_string(one.multiprocessors) + " multiprocessors, " +
         std::to_string(one.memory_bytes >> 20) + " MiB, " + std::to_string(one.l2_bytes >> 20) +
         " MiB L2, CUDA " + version(one.runtime) + " on a driver for " + version(one.driver);
}

}  // namespace kvlane
