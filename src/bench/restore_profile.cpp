// One sequence, computed as a server would, then taken apart and restored.
// SPDX-License-Identifier: Apache-2.0
#include "bench/restore_profile.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "bench/codec_pace.h"
#include "bench/figures.h"
#include "bench/read_rate.h"
#include "codec/codec.h"
#include "cpu/parallel.h"
#include "model/forward.h"
#include "model/hidden_restorer.h"

namespace kvlane {
namespace {

constexpr int kShortest = 64;  // tokens
constexpr int kPackedSlabs = 64;

class Profiler {
 public:
  Profiler(const Model& model, const KvFormat* format, const ProfileOptions& options)
      : model_(model), format_(format), options_(options), shape_(model.config().kv_shape()) {}

  Result<MachineProfile> run() {
    const int most = std::min(options_.tokens_max, model_.context());
    if (most < kShortest || options_.repeats < 1) {
      return invalid_argument("a profile needs a context of " + std::to_string(kShortest) +
                              " tokens and one repeat at least");
    }
    for (int tokens = kShortest; tokens <= most; tokens *= 2) lengths_.push_back(tokens);
    for (int i = 0; i < lengths_.back(); ++i) {
      tokens_.push_back(static_cast<std::int32_t>(
          philox4x32(1, {static_cast<std::uint32_t>(i), 0, 0, 0})[0] % model_.config().vocab));
    }
    profile_.model = model_.identity();
    profile_.kv_format = format_ ? format_->name() : "bf16";
    profile_.layers = shape_.layers;
    KVLANE_TRY(open_caches());
    KVLANE_TRY(time_prefill());
    KVLANE_TRY(format_ ? time_slabs() : time_codecs());
    KVLANE_TRY(time_projection());
    if (!options_.directories.empty()) KVLANE_TRY(time_reading());
    return std::move(profile_);
  }

 private:
  void say(std::string_view what) const {
    if (options_.progress) options_.progress(what);
  }

  Status open_caches() {
    const int blocks = blocks_for(lengths_.back());
    int row_blocks = blocks;
    if (format_) {
      const KvWindow window = format_->window();
      row_blocks =
          std::min(blocks, kRestorePieceTokens / kBlockTokens + 2 + window.sink + window.recent);
      KVLANE_ASSIGN(auto sealed,
                    BlockPool::create_sealed(shape_, format_->slab_sizes(),
                                             blocks * format_->slab_sizes().block_bytes()));
      sealed_ = std::make_unique<BlockPool>(std::move(sealed));
    }
    KVLANE_ASSIGN(auto rows, BlockPool::create(shape_, row_blocks * shape_.block_bytes()));
    rows_ = std::make_unique<BlockPool>(std::move(rows));
    table_ = std::make_unique<BlockTable>(format_ ? BlockTable(*sealed_, *rows_, format_->window())
                                                  : BlockTable(*rows_));
    KVLANE_ASSIGN(forward_, Forward::create(model_, kRestorePieceTokens, 1, format_));
    return {};
  }

  // Seconds after each chunk of `count` tokens, from the empty cache.
  Result<std::vector<double>> prefill(int count, PassHooks hooks = {}) {
    table_->clear();
    KVLANE_TRY(table_->grow(count));
    std::vector<double> after;
    double seconds = 0;
    for (int at = 0; at < count; at += kRestorePieceTokens) {
      const int chunk = std::min(kRestorePieceTokens, count - at);
      const ForwardSpan span{table_.get(), std::span(tokens_).subspan(at, chunk), 0};
      KVLANE_TRY(forward_->run({&span, 1}, hooks));
      seconds += forward_->times().total;
      after.push_back(seconds);
    }
    return after;
  }

  // Of each length the median; those above a chunk are stations of the longest one.
  Result<std::vector<TimedTokens>> time_passes(std::string_view what, const PassHooks& hooks) {
    std::vector<std::vector<double>> seconds(lengths_.size());
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      say(what);
      std::size_t i = 0;
      for (; i < lengths_.size() && lengths_[i] < kRestorePieceTokens; ++i) {
        KVLANE_ASSIGN(const auto after, prefill(lengths_[i], hooks));
        seconds[i].push_back(after.back());
      }
      KVLANE_ASSIGN(const auto after, prefill(lengths_.back(), hooks));
      for (; i < lengths_.size(); ++i) {
        seconds[i].push_back(after[lengths_[i] / kRestorePieceTokens - 1]);
      }
    }
    std::vector<TimedTokens> points;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      points.push_back({lengths_[i], median(seconds[i])});
    }
    return points;
  }

  Status time_prefill() {
    KVLANE_TRY(prefill(std::min(kRestorePieceTokens, lengths_.back())).status());  // warms up
    KVLANE_ASSIGN(profile_.prefill, time_passes("prefill", {}));
    for (TimedTokens& point : profile_.prefill) point.seconds /= shape_.layers;
    return {};
  }

  // All layers one after another, as a restore has them, so that weights come from memory.
  Result<double> restore_seconds(HiddenRestorer& restorer, const HiddenFormat& hidden,
                                 ByteView stored, int tokens) {
    table_->clear();
    KVLANE_TRY(table_->grow(tokens));
    KVLANE_TRY(table_->open_arriving_rows(tokens));
    const TimePoint start = SteadyClock::now();
    for (int layer = 0; layer < shape_.layers; ++layer) {
      const ByteView rows = stored.first(tokens * hidden.stored_bytes());
      KVLANE_TRY(restorer.restore({table_.get(), tokens, 0, tokens}, layer, {&rows, 1}));
    }
    return seconds_since(start) / shape_.layers;
  }

  // From tokens as far as K and V of the first layer, whose hidden states then serve as all
  // layers'.
  Status time_projection() {
    PassHooks first_layer;
    first_layer.kv_layers = 1;
    KVLANE_ASSIGN(profile_.project, time_passes("K and V of a layer", first_layer));
    std::vector<std::byte> hidden_rows;
    first_layer.on_normed = [&](int, ByteView rows) {
      hidden_rows.insert(hidden_rows.end(), rows.begin(), rows.end());
    };
    const int tokens = lengths_.back();
    KVLANE_TRY(prefill(tokens, first_layer).status());
    for (const char* name : {"hidden", "hidden:int8"}) {
      KVLANE_ASSIGN(const HiddenFormat hidden, HiddenFormat::parse(name, model_));
      KVLANE_ASSIGN(const auto restorer,
                    HiddenRestorer::create(model_, hidden, kRestorePieceTokens, format_));
      std::vector<std::byte> stored(tokens * hidden.stored_bytes());
      KVLANE_TRY(hidden.encode(hidden_rows, tokens, stored.data()));
      std::vector<double> seconds;
      for (int repeat = -1; repeat < options_.repeats; ++repeat) {
        say("projection of hidden states");
        KVLANE_ASSIGN(const double once, restore_seconds(*restorer, hidden, stored, tokens));
        if (repeat >= 0) seconds.push_back(once);
      }
      profile_.forms.push_back({name, RestoreSource::kHidden,
                                static_cast<double>(hidden.stored_bytes()),
                                median(seconds) / tokens});
    }
    return {};
  }

  // Rows of 16 bits in each codec.
  Status time_codecs() {
    const auto bytes = static_cast<double>(shape_.slab_bytes() / kBlockTokens);
    for (const char* name : {"none", "splitzip", "splitzip:channel"}) {
      say("codecs");
      KVLANE_ASSIGN(const Codec* const codec, find_codec(name, model_.isa()));
      KVLANE_ASSIGN(const CodecPace pace, measure_pace(*codec, *table_, lengths_.back()));
      const std::string suffix = codec->name() == "none" ? "" : "+" + std::string(name);
      profile_.forms.push_back({"kv" + suffix, RestoreSource::kSlabs, bytes / pace.ratio,
                                bytes / pace.decode / parallel_threads()});
    }
    return {};
  }

  // Sealed slabs as they travel.
  Status time_slabs() {
    say("slabs");
    const int slabs = std::min(kPackedSlabs, lengths_.back() / kBlockTokens * shape_.layers);
    std::vector<std::byte> packed;
    KVLANE_ASSIGN(const PageBuffer slab, PageBuffer::allocate(format_->slab_bytes()));
    std::vector<double> seconds;
    double bytes = 0;
    for (int i = 0; i < slabs; ++i) {
      const int block = i / shape_.layers;
      const SlabPlace place{i % shape_.layers, block * kBlockTokens};
      const std::byte* const sealed = table_->sealed(block, place.layer);
      packed.resize(format_->used_bytes(place, sealed));
      format_->pack(place, sealed, packed.data());
      const TimePoint start = SteadyClock::now();
      KVLANE_TRY(format_->unpack(place, packed, slab.data()));
      seconds.push_back(seconds_since(start));
      bytes += static_cast<double>(packed.size());
    }
    profile_.forms.push_back({format_->slab_name(), RestoreSource::kSlabs,
                              bytes / slabs / kBlockTokens,
                              median(seconds) / kBlockTokens / parallel_threads()});
    return {};
  }

  Status time_reading() {
    say("reading");
    KVLANE_ASSIGN(const ReadRates rates,
                  measure_read_rates(options_.directories, options_.file_bytes));
    for (std::size_t i = 0; i < options_.directories.size(); ++i) {
      profile_.directories.push_back({options_.directories[i].string(), rates.each[i]});
    }
    profile_.read_rate = rates.together;
    return {};
  }

  const Model& model_;
  const KvFormat* const format_;
  const ProfileOptions& options_;
  const KvShape shape_;
  MachineProfile profile_;
  std::vector<int> lengths_;
  std::vector<std::int32_t> tokens_;
  std::unique_ptr<BlockPool> rows_, sealed_;
  std::unique_ptr<BlockTable> table_;
  std::unique_ptr<Forward> forward_;
};

}  // namespace

Result<MachineProfile> measure_restore_profile(const Model& model, const KvFormat* format,
                                               const ProfileOptions& options) {
  return Profiler(model, format, options).run();
}

}  // namespace kvlane
