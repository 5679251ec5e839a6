// Captured values, ratios, speeds in three places, threads and the frontier, in this order.
// SPDX-License-Identifier: Apache-2.0
#include "bench/codec_bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "bench/captured_planes.h"
#include "bench/codec_speed.h"
#include "bench/coders.h"
#include "bench/plane_set.h"
#include "bench/yardsticks.h"
#include "calib/text_tokens.h"
#include "codec/exponents.h"
#include "cpu/parallel.h"
#include "cpu/streaming_copy.h"

namespace kvlane {
namespace {

constexpr std::size_t kDramPlanes = 16;
constexpr std::size_t kSlabBytes = std::size_t{128} << 10;
constexpr std::size_t kL2PlaneBytes = std::size_t{96} << 10;
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  // of yardsticks
constexpr std::size_t kFrontierBytesMax = std::size_t{32} << 20;
constexpr double kFrontierSpeed = 5;     // GB/s
constexpr double kCachedSeconds = 2e-3;  // of a round, where one call takes microseconds
constexpr std::size_t kGoalBytes = std::size_t{256} << 20;

constexpr std::array kNarrowTypes = {ElementType::kFp8E5m2, ElementType::kFp8E4m3,
                                     ElementType::kFp16};
std::string_view short_name(ElementType type) {
  if (type == ElementType::kFp8E5m2) return "e5m2";
  return type == ElementType::kFp8E4m3 ? "e4m3" : "fp16";
}

// Codebooks for the sources of a PlaneSet: K and V of each layer.
using Books = std::vector<Codebook>;

enum class Place { kDram, kSlabs, kL2 };
constexpr std::array kAllPlaces = {Place::kDram, Place::kSlabs, Place::kL2};
std::string place_name(Place place) {
  if (place == Place::kDram) return "dram";
  return place == Place::kSlabs ? "slabs" : "l2";
}

// What `coder` should reach, relative to memcpy.
std::optional<double> speed_goal(const Coder& coder, Place place, bool encode, Isa isa) {
  double goal = 0;
  if (place == Place::kDram && isa >= Isa::kAvx2) goal = encode ? 0.85 : 1.0;
  if (place == Place::kDram && isa == Isa::kAvx512Bf16) goal = encode ? 1.3 : 1.4;
  if (place == Place::kL2 && isa == Isa::kAvx512Bf16) goal = encode ? 0.70 : 0.75;
  if (goal == 0) return std::nullopt;
  if (coder.name == "splitzip") return goal;
  if (coder.name == "splitzip_channel") return goal / 2;
  return std::nullopt;
}

Books books_of(const PlaneSet& set) {
  std::vector<ExponentCounts> counts(set.sources());
  for (std::size_t i = 0; i < set.planes(); ++i) {
    count_exponents(set.shape().type, set.plane(i), counts[set.source(i)]);
  }
  Books books;
  for (const ExponentCounts& each : counts) {
    books.push_back(codebook_of(set.shape().type, each));
  }
  return books;
}

// The planes of a set by layer, those of K or of V.
std::vector<LayerPlanes> layers_of(const PlaneSet& set, Tensor tensor, const Books& books) {
  std::vector<LayerPlanes> layers(set.sources() / 2);
  for (std::size_t i = 0; i < set.planes(); ++i) {
    const std::size_t source = set.source(i);
    if (source % 2 != static_cast<std::size_t>(tensor)) continue;
    LayerPlanes& layer = layers[source / 2];
    layer.shape = set.shape();
    layer.book = books[source];
    layer.planes.push_back(set.plane(i));
  }
  return layers;
}

// The values of each layer, cut into planes of that shape, of which the last may be shorter.
std::vector<LayerPlanes> layers_of(const CapturedPlanes& captured, Tensor tensor,
                                   const PlaneShape& shape) {
  std::vector<LayerPlanes> layers;
  for (int i = 0; i < captured.layers(); ++i) {
    LayerPlanes& layer = layers.emplace_back();
    layer.shape = shape;
    const ByteView all = captured.bytes(i, tensor);
    for (std::size_t at = 0; at < all.size(); at += shape.bytes()) {
      layer.planes.push_back(all.subspan(at, std::min(shape.bytes(), all.size() - at)));
    }
  }
  return layers;
}

void calibrate(std::vector<LayerPlanes>& layers, const std::vector<LayerPlanes>& others) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    ExponentCounts counts{};
    for (const ByteView plane : others[i].planes) {
      count_exponents(layers[i].shape.type, plane, counts);
    }
    layers[i].book = codebook_of(layers[i].shape.type, counts);
  }
}

class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, Report& report)
      : options_(options), results_(report.results), one_thread_(1) {}

  Status run();

 private:
  Status choose_coders();
  Status capture();
  Status ratios();
  Status narrow_ratios();
  Status speeds(Place place);
  Status threads();
  Status frontier();

  void say(const std::string& what) const {
    if (options_.progress) options_.progress(what);
  }
  std::function<void(int)> rounds_of(const std::string& what) const {
    return [this, what](int round) {
      say(what + ", round " + std::to_string(round + 1) + " of " +
          std::to_string(options_.repeats));
    };
  }
  Status report_ratio(const Coder& coder, Tensor tensor, const std::vector<LayerPlanes>& layers);
  Result<PlaneSet> place_set(Place place) const;
  // Copying and all coders on the set. `reports_copies`: figures of copying too.
  Status time(Place place, const PlaneSet& set, std::span<const Coder> coders, const Books& books,
              bool reports_copies);
  bool has_splitzip() const {
    return std::ranges::any_of(coders_, [](const Coder& c) { return c.name == "splitzip"; });
  }
  // The same values as the model's planes have, K and V in turn.
  static Result<PlaneSet> own_planes(const CapturedPlanes& captured) {
    const PlaneShape& own = captured.shape(Tensor::kK);
    return PlaneSet::lay_out(
        captured, own.kv_heads, own.head_dim,
        PlaneSet::planes_without_repeats(captured, own.kv_heads, own.head_dim));
  }
  Coder narrow_coder(ElementType type) const {
    Coder coder = *std::ranges::find(coders_, "splitzip", &Coder::name);
    coder.name += "_" + std::string(short_name(type));
    return coder;
  }
  int head_dim() const {
    const int own = captured_->shape(Tensor::kK).head_dim;
    if (options_.head_dim != 0) return options_.head_dim;
    return 128 % own == 0 ? 128 : own;
  }
  std::size_t heads_in(std::size_t bytes) const {
    return std::max<std::size_t>(1, bytes / (2 * kBlockTokens * std::size_t(head_dim())));
  }

  const CodecBenchOptions& options_;
  std::vector<Figure>& results_;
  const ParallelScope one_thread_;
  std::vector<Coder> coders_;
  std::optional<CapturedPlanes> captured_;
  std::optional<CapturedPlanes> calibration_;
  Books books_;
  // By type: of the narrowed values, and how they are scaled.
  std::array<Books, kNarrowTypes.size()> narrow_books_;
  std::array<std::vector<int>, kNarrowTypes.size()> shifts_;
  CodingMemory memory_;
};

Status CodecBench::choose_coders() {
  for (const std::string& name : options_.codecs) {
    KVLANE_ASSIGN(const Codec* const codec, find_codec(name, options_.isa));
    coders_.push_back(coder_of(*codec));
  }
  return {};
}

Status CodecBench::capture() {
  const std::size_t wanted = options_.tokens;
  const bool other = !options_.codebook_text.empty();
  say("reading text");
  KVLANE_ASSIGN(const auto tokens,
                read_text_tokens(options_.directory, options_.text, other ? wanted : 2 * wanted));
  std::vector<std::int32_t> book_tokens;
  std::size_t measured = tokens.size();
  if (other) {
    KVLANE_ASSIGN(book_tokens,
                  read_text_tokens(options_.directory, options_.codebook_text, wanted));
  } else {
    measured = std::min(wanted, tokens.size() / 2);
    book_tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(measured), tokens.end());
  }
  // Products may have all cores: only codecs are timed.
  const ParallelScope threads(options_.threads);
  KVLANE_ASSIGN(const auto model, Model::load(options_.directory, {.isa = options_.isa}));
  const auto tell = [this](std::uint64_t done, std::uint64_t total) {
    say("computing " + std::to_string(done) + " of " + std::to_string(total) + " tokens");
  };
  KVLANE_ASSIGN(captured_, capture_planes(*model, std::span(tokens).first(measured), tell));
  KVLANE_ASSIGN(calibration_, capture_planes(*model, book_tokens, tell));
  return {};
}

Status CodecBench::report_ratio(const Coder& coder, Tensor tensor,
                                const std::vector<LayerPlanes>& layers) {
  const std::string name = "codec_" + coder.name + "_ratio_" + std::string(tensor_name(tensor));
  say(name);
  KVLANE_ASSIGN(const CodedRatio ratio, coded_ratio(coder, layers));
  const auto goal = coder.name == "splitzip_channel" ? std::optional<double>(1.45) : std::nullopt;
  results_.push_back({.name = name, .value = ratio.all, .unit = "ratio", .goal = goal});
  results_.push_back({name + "_least", ratio.least, "ratio"});
  return {};
}

Status CodecBench::ratios() {
  for (const Tensor tensor : kAllTensors) {
    const PlaneShape& shape = captured_->shape(tensor);
    std::vector<LayerPlanes> layers = layers_of(*captured_, tensor, shape);
    calibrate(layers, layers_of(*calibration_, tensor, shape));
    for (const Coder& coder : coders_) {
      KVLANE_TRY(report_ratio(coder, tensor, layers));
      if (coder.name != "splitzip") continue;
      results_.push_back({"codec_splitzip_escapes_" + std::string(tensor_name(tensor)),
                          escape_share(layers), "share"});
      KVLANE_ASSIGN(const Codec* const codec, find_codec("splitzip", options_.isa));
      KVLANE_TRY(report_ratio(counting_coder_of(*codec), tensor, layers));
    }
    if (!options_.yardsticks) continue;
    const PlaneShape piece{.kv_heads = 1, .rows = 1, .head_dim = static_cast<int>(kPieceBytes / 2)};
    const std::vector<LayerPlanes> pieces = layers_of(*captured_, tensor, piece);
    for (const Coder& yardstick : yardsticks()) {
      KVLANE_TRY(report_ratio(yardstick, tensor, pieces));
    }
  }
  return {};
}

Status CodecBench::narrow_ratios() {
  KVLANE_ASSIGN(const PlaneSet own, own_planes(*captured_));
  KVLANE_ASSIGN(const PlaneSet others, own_planes(*calibration_));
  books_ = books_of(others);
  if (!has_splitzip()) return {};
  for (std::size_t t = 0; t < kNarrowTypes.size(); ++t) {
    const ElementType type = kNarrowTypes[t];
    if (type == ElementType::kFp8E4m3) shifts_[t] = others.shifts_to(448);
    KVLANE_ASSIGN(const PlaneSet narrow, own.narrowed(type, shifts_[t]));
    KVLANE_ASSIGN(const PlaneSet narrow_others, others.narrowed(type, shifts_[t]));
    narrow_books_[t] = books_of(narrow_others);
    for (const Tensor tensor : {Tensor::kK, Tensor::kV}) {
      KVLANE_TRY(
          report_ratio(narrow_coder(type), tensor, layers_of(narrow, tensor, narrow_books_[t])));
    }
  }
  return {};
}

Result<PlaneSet> CodecBench::place_set(Place place) const {
  std::size_t heads = heads_in(options_.size_bytes / kDramPlanes);
  std::size_t planes = kDramPlanes;
  if (place == Place::kSlabs) {
    heads = heads_in(kSlabBytes);
    const std::size_t slab = heads * 2 * kBlockTokens * head_dim();
    planes = std::max<std::size_t>(1, options_.size_bytes / slab);
  } else if (place == Place::kL2) {
    heads = heads_in(kL2PlaneBytes);
    planes = 2;
  }
  return PlaneSet::lay_out(*captured_, static_cast<int>(heads), head_dim(), planes);
}

void copy_planes(std::byte* to, const PlaneSet& set) {
  const std::size_t bytes = set.shape().bytes();
  for (std::size_t i = 0; i < set.planes(); ++i) {
    std::memcpy(to + i * bytes, set.plane(i).data(), bytes);
  }
}

double gigabytes_per_second(const PlaneSet& set, const Contender& contender) {
  return static_cast<double>(set.bytes()) / median(contender.seconds) * 1e-9;
}

Status CodecBench::time(Place place, const PlaneSet& set, std::span<const Coder> coders,
                        const Books& books, bool reports_copies) {
  std::vector<CodedSet> sets;
  std::size_t room = 0;
  for (const Coder& coder : coders) {
    room = std::max(room, sets.emplace_back(coder, set, books).coded_room());
  }
  KVLANE_TRY(memory_.reserve(room, set.bytes()));
  std::byte* const copy = memory_.copy();
  std::vector<Contender> contenders;
  contenders.push_back({"memcpy", [&] { std::memcpy(copy, set.data(), set.bytes()); }, {}});
  contenders.push_back({"stream_copy", [&] { streaming_copy(copy, set.data(), set.bytes()); }, {}});
  contenders.push_back({"plane_copy", [&] { copy_planes(copy, set); }, {}});
  const std::size_t copies = contenders.size();
  for (CodedSet& coded : sets) {
    if (!coded.comes_back(memory_)) {
      return internal_error(coded.coder().name + " did not give planes back bit for bit");
    }
    contenders.push_back({coded.coder().name + "_encode", [&] { coded.encode(memory_); }, {}});
    contenders.push_back({coded.coder().name + "_decode", [&] { coded.decode(memory_); }, {}});
  }
  time_in_turns(contenders, TimedBy::kOneThread, options_.repeats,
                place == Place::kL2 ? kCachedSeconds : 0,
                rounds_of(coders.front().name + " in " + place_name(place)));
  const double base = gigabytes_per_second(set, contenders[0]);
  for (std::size_t i = 0; i < copies && reports_copies; ++i) {
    results_.push_back({.name = "codec_" + contenders[i].name + "_" + place_name(place),
                        .value = gigabytes_per_second(set, contenders[i]),
                        .unit = "GB/s"});
    if (i > 0) results_.back().baseline = base;
  }
  const bool counts = place == Place::kL2 || options_.size_bytes >= kGoalBytes;
  for (std::size_t i = copies; i < contenders.size(); ++i) {
    const Contender& contender = contenders[i];
    const std::size_t coder = (i - copies) / 2;
    const bool encodes = (i - copies) % 2 == 0;
    const std::string name = "codec_" + contender.name + "_" + place_name(place);
    results_.push_back({.name = name,
                        .value = gigabytes_per_second(set, contender),
                        .unit = "GB/s",
                        .baseline = base});
    results_.push_back(
        {.name = name + "_ratio",
         .value = speed_ratio(contenders[0], contender),
         .unit = "ratio",
         .goal = counts ? speed_goal(coders[coder], place, encodes, options_.isa) : std::nullopt});
  }
  return {};
}

Status CodecBench::speeds(Place place) {
  say("laying out values");
  KVLANE_ASSIGN(const PlaneSet set, place_set(place));
  std::vector<Coder> coders = coders_;
  if (has_splitzip()) {
    KVLANE_ASSIGN(const Codec* const codec, find_codec("splitzip", options_.isa));
    coders.push_back(counting_coder_of(*codec));
  }
  KVLANE_TRY(time(place, set, coders, books_, true));
  if (!has_splitzip() || place == Place::kSlabs) return {};
  for (std::size_t t = 0; t < kNarrowTypes.size(); ++t) {
    KVLANE_ASSIGN(const PlaneSet narrow, set.narrowed(kNarrowTypes[t], shifts_[t]));
    const Coder coder = narrow_coder(kNarrowTypes[t]);
    KVLANE_TRY(time(place, narrow, {&coder, 1}, narrow_books_[t], false));
  }
  return {};
}

Status CodecBench::threads() {
  KVLANE_ASSIGN(const PlaneSet set, place_set(Place::kSlabs));
  for (const Coder& coder : coders_) {
    CodedSet coded(coder, set, books_);
    KVLANE_TRY(memory_.reserve(coded.coded_room(), set.bytes()));
    const auto on_threads = [&](const auto& work) {
      return [this, work] {
        const ParallelScope threads(options_.threads);
        work();
      };
    };
    const auto encode = [&] { coded.encode(memory_); };
    const auto decode = [&] { coded.decode(memory_); };
    Contender contenders[] = {{"encode", encode, {}},
                              {"encode_threads", on_threads(encode), {}},
                              {"decode", decode, {}},
                              {"decode_threads", on_threads(decode), {}}};
    time_in_turns(contenders, TimedBy::kWall, options_.repeats, 0,
                  rounds_of(coder.name + " on threads"));
    for (const std::size_t i : {1, 3}) {
      results_.push_back({.name = "codec_" + coder.name + "_" + contenders[i].name,
                          .value = gigabytes_per_second(set, contenders[i]),
                          .unit = "GB/s",
                          .baseline = gigabytes_per_second(set, contenders[i - 1])});
    }
  }
  return {};
}

// The best ratio at kFrontierSpeed or more, at least that of copying.
struct Lead {
  double ours = 0;
  double theirs = 1;
  void take(double ratio, double speed, bool is_ours) {
    if (speed < kFrontierSpeed) return;
    double& best = is_ours ? ours : theirs;
    best = std::max(best, ratio);
  }
  Figure figure(const std::string& name) const {
    return {.name = name, .value = ours / theirs, .unit = "ratio", .goal = 1.0};
  }
};

Status CodecBench::frontier() {
  const auto unrepeated = [&](std::size_t plane_bytes) {
    const int heads = static_cast<int>(heads_in(plane_bytes));
    const std::size_t all = PlaneSet::planes_without_repeats(*captured_, heads, head_dim());
    const std::size_t most = std::min(kFrontierBytesMax, options_.size_bytes) / plane_bytes;
    return PlaneSet::lay_out(*captured_, heads, head_dim(),
                             std::max<std::size_t>(2, std::min(all, most)));
  };
  KVLANE_ASSIGN(const PlaneSet slabs, unrepeated(kSlabBytes));
  KVLANE_ASSIGN(const PlaneSet pieces, unrepeated(kPieceBytes));
  const std::vector<Coder> others = yardsticks();
  std::vector<CodedSet> sets;
  for (const Coder& coder : coders_) sets.emplace_back(coder, slabs, books_);
  for (const Coder& coder : others) sets.emplace_back(coder, pieces, std::span<const Codebook>());
  std::vector<Contender> contenders;
  for (CodedSet& set : sets) {
    KVLANE_TRY(memory_.reserve(set.coded_room(), std::max(slabs.bytes(), pieces.bytes())));
    if (!set.comes_back(memory_)) {
      return internal_error(set.coder().name + " did not give planes back bit for bit");
    }
    contenders.push_back({set.coder().name + "_encode", [&] { set.encode(memory_); }, {}});
    contenders.push_back({set.coder().name + "_decode", [&] { set.decode(memory_); }, {}});
  }
  time_in_turns(contenders, TimedBy::kOneThread, options_.repeats, 0, rounds_of("frontier"));
  Lead encode;
  Lead decode;
  for (std::size_t i = 0; i < sets.size(); ++i) {
    const bool ours = i < coders_.size();
    const PlaneSet& set = ours ? slabs : pieces;
    const std::string name = "codec_frontier_" + sets[i].coder().name;
    const double encode_speed = gigabytes_per_second(set, contenders[2 * i]);
    const double decode_speed = gigabytes_per_second(set, contenders[2 * i + 1]);
    encode.take(sets[i].ratio(), encode_speed, ours);
    decode.take(sets[i].ratio(), decode_speed, ours);
    results_.push_back({name + "_ratio", sets[i].ratio(), "ratio"});
    results_.push_back({name + "_encode", encode_speed, "GB/s"});
    results_.push_back({name + "_decode", decode_speed, "GB/s"});
  }
  results_.push_back(encode.figure("codec_frontier_lead_encode"));
  results_.push_back(decode.figure("codec_frontier_lead_decode"));
  return {};
}

Status CodecBench::run() {
  KVLANE_TRY(choose_coders());
  KVLANE_TRY(capture());
  KVLANE_TRY(ratios());
  KVLANE_TRY(narrow_ratios());
  for (const Place place : kAllPlaces) KVLANE_TRY(speeds(place));
  KVLANE_TRY(threads());
  return options_.yardsticks ? frontier() : Status();
}

}  // namespace

Result<Report> bench_codec(const CodecBenchOptions& options) {
  Report report{describe_machine(1) + ", kernels " + std::string(isa_name(options.isa)),
                build_commit(),
                "",
                {}};
  CodecBench bench(options, report);
  KVLANE_TRY(bench.run());
  return report;
}

}  // namespace kvlane
