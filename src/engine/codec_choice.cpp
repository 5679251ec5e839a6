// Measuring codecs, and asking the policy.
// SPDX-License-Identifier: Apache-2.0
#include "engine/codec_choice.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/bf16.h"
#include "base/random.h"
#include "codec/splitzip.h"

namespace kvlane {
namespace {

// Of the test at the start: runs of one codec, and how long they may take together.
constexpr int kTestRuns = 5;
constexpr Seconds kTestLimit{0.005};
// So slow that only the bytes count.
constexpr LinkPace kSlowLink{1e6};

LinkPace to_pace(const LinkSpeed& link) { return {link.bytes_per_second, link.receiver_bound}; }

// Bell-shaped values, as K and V have them in each channel.
std::vector<std::byte> test_plane(const PlaneShape& shape) {
  std::vector<std::byte> plane(shape.bytes());
  for (std::size_t i = 0; i + 2 <= plane.size(); i += 2) {
    const PhiloxCounter dice = philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0});
    double sum = -2;
    for (const std::uint32_t die : dice) sum += die * 0x1p-32;
    const std::uint16_t bits = to_bf16(static_cast<float>(sum)).bits;
    std::memcpy(&plane[i], &bits, sizeof bits);
  }
  return plane;
}

double per_second(std::size_t bytes, Seconds time) {
  return static_cast<double>(bytes) / std::max(time.count(), 1e-9);
}

double ratio_of(const PlaneShape& shape, std::size_t coded_bytes) {
  return static_cast<double>(shape.bytes()) /
         static_cast<double>(std::max<std::size_t>(coded_bytes, 1));
}

// The best of a few runs each: what else the machine does at its start is not the codec's.
CodecPace test_codec(const Codec& codec, const PlaneShape& shape, ByteView plane) {
  std::vector<std::byte> coded(codec.bound(shape));
  std::vector<std::byte> decoded(shape.bytes());
  Seconds encode{1e9};
  Seconds decode{1e9};
  std::size_t coded_bytes = 0;
  const TimePoint begin = SteadyClock::now();
  for (int run = 0; run < kTestRuns; ++run) {
    const TimedEncoding encoding =
        time_encoding(codec, shape, dense_plane(shape, plane.data()), coded);
    coded_bytes = encoding.bytes;
    const TimePoint start = SteadyClock::now();
    (void)codec.decode(shape, {coded.data(), coded_bytes}, decoded);
    const TimePoint end = SteadyClock::now();
    encode = std::min<Seconds>(encode, encoding.time);
    decode = std::min<Seconds>(decode, end - start);
    if (run > 0 && end - begin > kTestLimit) break;
  }
  return {ratio_of(shape, coded_bytes), per_second(shape.bytes(), encode),
          per_second(shape.bytes(), decode)};
}

std::vector<std::string> known_codecs() {
  std::vector<std::string> names;
  for (std::string_view rest = codec_names(); !rest.empty();) {
    const std::size_t end = std::min(rest.find(", "), rest.size());
    names.emplace_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return names;
}

}  // namespace

TimedEncoding time_encoding(const Codec& codec, const PlaneShape& shape, const PlaneView& plane,
                            std::span<std::byte> coded) {
  std::optional<WrittenCodebook> counted;
  if (codec.name() == kCodebookCodec) {
    const std::size_t bytes = codec.encode(shape, plane, nullptr, coded);
    counted = written_codebook(shape, coded.first(bytes));
  }
  const TimePoint start = SteadyClock::now();
  const std::size_t bytes = codec.encode(shape, plane, counted ? &counted->book : nullptr, coded);
  return {bytes, SteadyClock::now() - start};
}

Result<std::unique_ptr<CodecChoice>> CodecChoice::create(std::string_view name, Isa isa,
                                                         const PlaneShape& plane) {
  std::vector<Candidate> candidates;
  if (name != kAutoCodec) {
    KVLANE_ASSIGN(const Codec* codec, find_codec(name, isa));
    candidates.push_back({codec, {}});
    return std::unique_ptr<CodecChoice>(new CodecChoice(std::move(candidates), plane));
  }
  const std::vector<std::byte> values = test_plane(plane);
  for (const std::string& known : known_codecs()) {
    KVLANE_ASSIGN(const Codec* codec, find_codec(known, isa));
    candidates.push_back({codec, test_codec(*codec, plane, values)});
  }
  const auto none = std::ranges::find_if(
      candidates, [](const Candidate& each) { return each.codec->name() == "none"; });
  std::iter_swap(candidates.begin(), none);
  return std::unique_ptr<CodecChoice>(new CodecChoice(std::move(candidates), plane));
}

const Codec& CodecChoice::for_transfer(const std::optional<LinkSpeed>& link) const {
  if (fixed()) return *candidates_[0].codec;
  const std::lock_guard lock(mutex_);
  std::vector<CodecPace> paces;
  for (const Candidate& candidate : candidates_) paces.push_back(candidate.pace);
  std::size_t best = link ? pick_codec(paces, to_pace(*link)) : 0;
  if (best == 0) best = pick_codec(paces, kSlowLink);
  return *candidates_[best].codec;
}

const Codec& CodecChoice::for_slab(const Codec& named, const std::optional<LinkSpeed>& link) const {
  if (fixed()) return named;
  const std::lock_guard lock(mutex_);
  const Candidate& none = candidates_[0];
  const auto at = std::ranges::find(candidates_, &named, &Candidate::codec);
  if (!link || at == candidates_.end()) return *none.codec;
  const CodecPace paces[] = {none.pace, at->pace};
  return pick_codec(paces, to_pace(*link)) == 0 ? *none.codec : named;
}

std::size_t CodecChoice::bound(const PlaneShape& shape) const {
  std::size_t most = 0;
  for (const Candidate& candidate : candidates_) {
    most = std::max(most, candidate.codec->bound(shape));
  }
  return most;
}

void CodecChoice::learn(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes,
                        Seconds time) {
  const std::lock_guard lock(mutex_);
  if (!fixed()) learn_locked(codec, shape, coded_bytes, time);
}

void CodecChoice::learn_locked(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes,
                               Seconds time) {
  const auto at = std::ranges::find(candidates_, &codec, &Candidate::codec);
  if (at == candidates_.end() || shape.elements() == 0) return;
  // A part of a plane tells a part as much. Until there are enough planes, their plain mean.
  const double share =
      static_cast<double>(shape.elements()) / static_cast<double>(plane_.elements());
  at->weight += share;
  const double weight = std::max(kPaceWeight, 1 / std::max(at->weight, 1.0)) * share;
  // Means of times and sizes, not of speeds and ratios: what counts is how long it takes together.
  const auto move = [weight](double& figure, double now) {
    figure = 1 / (1 / figure + weight * (1 / now - 1 / figure));
  };
  move(at->pace.encode, per_second(shape.bytes(), time));
  move(at->pace.ratio, ratio_of(shape, coded_bytes));
}

const Codec* CodecChoice::due(const Codec& used, TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (fixed() || now < trial_after_) return nullptr;
  next_trial_ = (next_trial_ + 1) % candidates_.size();
  if (candidates_[next_trial_].codec == &used) next_trial_ = (next_trial_ + 1) % candidates_.size();
  return candidates_[next_trial_].codec;
}

void CodecChoice::learn_trial(const Codec& codec, const PlaneShape& shape, std::size_t coded_bytes,
                              Seconds time, TimePoint start, TimePoint end) {
  const std::lock_guard lock(mutex_);
  learn_locked(codec, shape, coded_bytes, time);
  const Seconds spent = end - start;
  trial_after_ = end + std::chrono::duration_cast<SteadyClock::duration>(spent / kTrialShare);
}

std::optional<CodecPace> CodecChoice::pace(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  for (const Candidate& candidate : candidates_) {
    if (candidate.codec->name() == name) return candidate.pace;
  }
  return std::nullopt;
}

}  // namespace kvlane
