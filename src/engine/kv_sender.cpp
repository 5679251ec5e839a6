// Encodes planes from their pages, packs sealed slabs, and hands frames to the transfer.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_sender.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace kvlane {
namespace {

// What one plane took of the time since `start`, in which `bytes` were moved with it.
Seconds plane_time(const PlaneShape& plane, std::size_t bytes, TimePoint start) {
  return (SteadyClock::now() - start) *
         (static_cast<double>(plane.bytes()) / static_cast<double>(bytes));
}

}  // namespace

KvSender::KvSender(const BlockPool& pool, SlabLane lane, const ModelIdentity& model,
                   std::shared_ptr<const KvFormat> format, CodecChoice& choice,
                   const std::vector<Codebook>& calibrated)
    : pool_(pool),
      model_(model),
      format_(std::move(format)),
      choice_(choice),
      lane_(std::move(lane)),
      books_(plane_shape(pool.shape(), kBlockTokens), pool.shape().layers, calibrated),
      sealed_books_(books_) {
  std::size_t coded_bytes = choice.bound(plane_shape(pool.shape(), kBlockTokens));
  if (format_) packed_.resize(format_->slab_bytes());
  if (format_ && format_->planes() != nullptr) {
    sealed_planes_.emplace(*format_);
    for (int layer = 0; layer < pool.shape().layers; ++layer) {
      coded_bytes = std::max({coded_bytes, choice.bound(sealed_planes_->k_shape(layer)),
                              choice.bound(sealed_planes_->v_shape(layer))});
    }
  }
  for (auto& coded : coded_) coded.resize(coded_bytes);
  trial_.resize(coded_bytes);
  thread_ = std::thread([this] { loop(); });
}

KvSender::~KvSender() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void KvSender::add(const std::shared_ptr<Job>& job, int layer, int first_block, int last_block,
                   const std::shared_ptr<const DeviceMark>& done) {
  if (first_block == last_block) return;
  {
    const std::lock_guard lock(mutex_);
    ++job->added_;
  }
  post([this, job, layer, first_block, last_block, done] {
    if (job->status_.ok()) {
      job->status_ = send_all(*job, layer, first_block, last_block, done.get());
    }
    {
      const std::lock_guard lock(mutex_);
      --job->added_;
    }
    encoded_.notify_all();
  });
}

void KvSender::wait(const Job& job) {
  std::unique_lock lock(mutex_);
  encoded_.wait(lock, [&job] { return job.added_ == 0; });
}

void KvSender::finish(const std::shared_ptr<Job>& job, TransferEnd end,
                      std::function<void(SentKv)> on_encoded) {
  const TimePoint computed = SteadyClock::now();
  post([job, end = std::move(end), computed, on_encoded = std::move(on_encoded)]() mutable {
    if (job->cancelled_ && job->status_.ok()) job->status_ = Job::why_cancelled();
    const double encode = seconds_since(computed);
    if (job->status_.ok()) {
      end.raw_bytes = job->kv_.raw;
      end.shipped_bytes = job->kv_.shipped;
      end.durations["encode"] = encode;
      job->outgoing_->finish(std::move(end));
    } else {
      job->outgoing_->fail(job->status_);
    }
    on_encoded({job->status_, job->kv_, encode});
  });
}

void KvSender::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  wake_.notify_one();
}

void KvSender::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Work work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

const Codec& KvSender::codec_for(const Job& job) const {
  return choice_.watches_links() ? choice_.for_slab(job.codec_, job.link_()) : job.codec_;
}

int KvSender::rows(const Job& job, int block) const {
  return std::min(kBlockTokens, job.tokens_ - block * kBlockTokens);
}

// A slab at a time where slabs are at hand; on a device as many as its buffers take, so `auto` may
// change the codec a few slabs later.
Status KvSender::send_all(Job& job, int layer, int first_block, int last_block,
                          const DeviceMark* done) {
  for (int block = first_block; block < last_block && !job.cancelled_;) {
    const int end = std::min(last_block, block + lane_.slabs_at_once());
    const Run run{job, codec_for(job), layer, block, end, done};
    SlabCoder* const coder = lane_.coder_of(run.codec);
    KVLANE_TRY(format_            ? send_from_coded_cache(run)
               : coder != nullptr ? send_from_device(run, *coder)
                                  : send_from_host(run));
    block = end;
  }
  return {};
}

// Runs of blocks that travel in one way: sealed slabs, or the rows that the sequence keeps.
Status KvSender::send_from_coded_cache(const Run& run) {
  const BlockTable& table = run.job.table_;
  const auto as_rows = [&](int block) { return table.arrives_as_rows(block, run.job.tokens_); };
  for (int block = run.first_block; block < run.last_block;) {
    const bool rows = as_rows(block);
    Run part = run;
    part.sealed = !rows;
    std::vector<BlockId> blocks;
    for (int i = block; i < run.last_block && as_rows(i) == rows; ++i) {
      blocks.push_back(rows ? table.rows_id(i) : table.id(i));
    }
    TimePoint start = SteadyClock::now();
    KVLANE_TRY(lane_.begin(rows ? table.rows_pool() : pool_, blocks, run.layer, run.done));
    for (const int end = block + static_cast<int>(blocks.size());
         block < end && !run.job.cancelled_; ++block) {
      KVLANE_ASSIGN(const std::byte* const slab, lane_.next());
      const Seconds fetched = lane_.on_host() ? Seconds(0) : SteadyClock::now() - start;
      KVLANE_TRY(rows ? send_slab(part, block, slab, fetched)
                      : send_sealed(part, block, slab, fetched));
      start = SteadyClock::now();
    }
    if (run.job.cancelled_) return {};
  }
  return {};
}

Status KvSender::send_sealed(const Run& run, int block, const std::byte* slab, Seconds fetched) {
  const SlabPlace place{run.layer, block * kBlockTokens};
  FrameHeader header = header_of(run, block);
  header.format = format_->slab_name();
  header.sealed = true;
  header.tables = format_->tables();
  header.rope_applied = format_->rope_applied();
  if (sealed_planes_ && run.codec.name() != "none") {
    header.codec = run.codec.name();
    KVLANE_TRY(send_frame(run, std::move(header), encode_sealed(run, slab, fetched)));
  } else {
    KVLANE_TRY(send_packed(run, place, slab, std::move(header), fetched));
  }
  if (sealed_planes_) try_another_on_sealed(run, place, slab, fetched);
  return {};
}

Status KvSender::send_packed(const Run& run, SlabPlace place, const std::byte* slab,
                             FrameHeader header, Seconds fetched) {
  header.k_bytes = static_cast<std::uint32_t>(format_->used_bytes(place, slab));
  return send_frame(run, std::move(header), [&](std::span<std::byte> packed, auto) {
    const TimePoint start = SteadyClock::now();
    format_->pack(place, slab, packed.data());
    if (!sealed_planes_) return;
    const PlaneShape v = sealed_planes_->v_shape(run.layer);
    choice_.learn(run.codec, v, v.bytes(), plane_time(v, packed.size(), start) + fetched / 2);
  });
}

CodedSlab KvSender::encode_sealed(const Run& run, const std::byte* slab, Seconds fetched) {
  const TimePoint start = SteadyClock::now();
  const int layer = run.layer;
  sealed_planes_->take(layer, slab);
  const Seconds taken = (fetched + (SteadyClock::now() - start)) / 2;
  const auto encode = [&](PlanePart part, const PlaneShape& shape, std::span<std::byte> plane) {
    return encode_plane(run, part, shape, dense_plane(shape, plane.data()), taken,
                        coded_[static_cast<int>(part)]);
  };
  return {encode(PlanePart::kK, sealed_planes_->k_shape(layer), sealed_planes_->k(layer)),
          encode(PlanePart::kV, sealed_planes_->v_shape(layer), sealed_planes_->v(layer))};
}

Status KvSender::send_from_host(const Run& run) {
  std::vector<BlockId> blocks;
  for (int block = run.first_block; block < run.last_block; ++block) {
    blocks.push_back(run.job.table_.id(block));
  }
  TimePoint start = SteadyClock::now();
  KVLANE_TRY(lane_.begin(pool_, blocks, run.layer, run.done));
  for (int block = run.first_block; block < run.last_block && !run.job.cancelled_; ++block) {
    KVLANE_ASSIGN(const std::byte* const slab, lane_.next());
    KVLANE_TRY(send_slab(run, block, slab, SteadyClock::now() - start));
    start = SteadyClock::now();
  }
  SlabCoder* const coder = lane_.coder();
  return coder == nullptr ? Status() : try_another_on_device(run, *coder);
}

Status KvSender::send_slab(const Run& run, int block, const std::byte* slab, Seconds fetched) {
  const KvShape& shape = pool_.shape();
  const PlaneShape plane = plane_shape(shape, rows(run.job, block));
  const auto encode = [&](PlanePart part, std::span<std::byte> coded) {
    return encode_plane(run, part, plane, plane_in(slab, shape, part), fetched / 2, coded);
  };
  if (run.codec.writes_bound()) {
    FrameHeader header = header_of_rows(run, block);
    header.k_bytes = header.v_bytes = static_cast<std::uint32_t>(run.codec.bound(plane));
    const auto body = [&](std::span<std::byte> k, std::span<std::byte> v) {
      encode(PlanePart::kK, k);
      encode(PlanePart::kV, v);
    };
    KVLANE_TRY(send_frame(run, std::move(header), body));
  } else {
    const ByteView k = encode(PlanePart::kK, coded_[0]);
    const ByteView v = encode(PlanePart::kV, coded_[1]);
    KVLANE_TRY(send_coded(run, block, {k, v}));
  }
  // Rows of a cache of rows would go through a device's codecs: send_from_host() tries those.
  if (format_ || lane_.coder() == nullptr) {
    try_another(run.codec, plane, plane_in(slab, shape, PlanePart::kV), fetched / 2);
  }
  return {};
}

// The same frames as from the host: codebooks follow the values slab by slab.
Status KvSender::send_from_device(Run run, SlabCoder& coder) {
  const Run whole = run;
  while (run.first_block < run.last_block && !run.job.cancelled_) {
    const TimePoint start = SteadyClock::now();
    const CodebookPair books = books_of(run);
    const bool counts = run.codec.name() == kCodebookCodec && (!books[0] || !books[1]);
    // What one slab's count finds serves the others.
    std::vector<DeviceSlab> slabs = slabs_of(run);
    if (counts) slabs.resize(1);
    KVLANE_ASSIGN(const std::span<const CodedSlab> coded, coder.encode(run.codec, slabs, run.done));
    const Seconds time = (SteadyClock::now() - start) / static_cast<double>(2 * slabs.size());
    for (const CodedSlab& slab : coded) {
      const PlaneShape plane = plane_shape(pool_.shape(), rows(run.job, run.first_block));
      for (const PlanePart part : {PlanePart::kK, PlanePart::kV}) {
        const ByteView body = part == PlanePart::kK ? slab.k : slab.v;
        choice_.learn(run.codec, plane, body.size(), time);
        learn_codebook(run, part, plane, body, books[static_cast<int>(part)] == nullptr);
      }
      KVLANE_TRY(send_coded(run, run.first_block++, slab));
      // When one does not fit any more, the slabs behind are coded again.
      if (books_of(run) != books) break;
    }
  }
  return try_another_on_device(whole, coder);
}

KvSender::CodebookPair KvSender::books_of(const Run& run) const {
  if (run.codec.name() != kCodebookCodec) return {};
  const MovingCodebooks& books = run.sealed ? sealed_books_ : books_;
  return {books.find(run.layer, PlanePart::kK), books.find(run.layer, PlanePart::kV)};
}

std::vector<DeviceSlab> KvSender::slabs_of(const Run& run) const {
  const CodebookPair books = books_of(run);
  std::vector<DeviceSlab> slabs;
  for (int block = run.first_block; block < run.last_block; ++block) {
    const auto* const slab = pool_.slab(run.job.table_.id(block), run.layer);
    slabs.push_back({reinterpret_cast<const std::byte*>(slab), rows(run.job, block), books});
  }
  return slabs;
}

Status KvSender::send_coded(const Run& run, int block, const CodedSlab& coded) {
  return send_frame(run, header_of_rows(run, block), coded);
}

FrameHeader KvSender::header_of_rows(const Run& run, int block) const {
  FrameHeader header = header_of(run, block);
  header.format = element_name(header.type);
  header.codec = run.codec.name();
  return header;
}

// What all frames of a job say.
FrameHeader KvSender::header_of(const Run& run, int block) const {
  const KvShape& shape = pool_.shape();
  FrameHeader header;
  header.model = model_;
  header.type = shape.type;
  header.layer = run.layer;
  header.kv_heads = shape.kv_heads;
  header.head_dim = shape.head_dim;
  header.position = std::int64_t{block} * kBlockTokens;
  header.tokens = rows(run.job, block);
  return header;
}

// `body` writes as much as `header` says.
Status KvSender::send_frame(const Run& run, FrameHeader header, const BodyWriter& body) {
  KvBytes& kv = run.job.kv_;
  kv.add_codec(header.codec);
  kv.raw += header.raw_bytes();
  kv.shipped += kFrameHeaderBytes + header.body_bytes();
  return run.job.outgoing_->add_slab(std::move(header), body);
}

Status KvSender::send_frame(const Run& run, FrameHeader header, const CodedSlab& coded) {
  KVLANE_TRY(set_body_lengths(header, coded.k, coded.v));
  return send_frame(run, std::move(header), body_of(coded.k, coded.v));
}

ByteView KvSender::encode_plane(const Run& run, PlanePart part, const PlaneShape& shape,
                                const PlaneView& plane, Seconds fetched,
                                std::span<std::byte> coded) {
  const TimePoint start = SteadyClock::now();
  const Codebook* const book = books_of(run)[static_cast<int>(part)];
  const std::size_t bytes = run.codec.encode(shape, plane, book, coded);
  assert(!run.codec.writes_bound() || bytes == run.codec.bound(shape));
  choice_.learn(run.codec, shape, bytes, SteadyClock::now() - start + fetched);
  const ByteView body(coded.data(), bytes);
  learn_codebook(run, part, shape, body, book == nullptr);
  return body;
}

void KvSender::learn_codebook(const Run& run, PlanePart part, const PlaneShape& shape,
                              ByteView body, bool counted) {
  if (run.codec.name() != kCodebookCodec) return;
  (run.sealed ? sealed_books_ : books_).learn(run.layer, part, shape, body, counted);
  planes_counted_ = books_.counted() + sealed_books_.counted();
  codebooks_replaced_ = books_.replaced() + sealed_books_.replaced();
}

// Keeps what is known about codecs that are not in use up to date. `fetched`: what bringing the
// plane here took, whatever its codec.
void KvSender::try_another(const Codec& used, const PlaneShape& shape, const PlaneView& plane,
                           Seconds fetched) {
  const TimePoint start = SteadyClock::now();
  const Codec* const codec = choice_.due(used, start);
  if (codec == nullptr) return;
  const TimedEncoding trial = time_encoding(*codec, shape, plane, trial_);
  choice_.learn_trial(*codec, shape, trial.bytes, trial.time + fetched, start, SteadyClock::now());
}

// The same with a sealed slab of values: its planes have to be made, or in `none` it is packed.
void KvSender::try_another_on_sealed(const Run& used, SlabPlace place, const std::byte* slab,
                                     Seconds fetched) {
  const TimePoint start = SteadyClock::now();
  const Codec* const codec = choice_.due(used.codec, start);
  if (codec == nullptr) return;
  const PlaneShape v = sealed_planes_->v_shape(used.layer);
  TimedEncoding trial;
  if (codec->name() == "none") {
    format_->pack(place, slab, packed_.data());
    trial = {v.bytes(), plane_time(v, format_->used_bytes(place, slab), start)};
  } else {
    sealed_planes_->take(used.layer, slab);
    const Seconds taken = SteadyClock::now() - start;
    trial = time_encoding(*codec, v, dense_plane(v, sealed_planes_->v(used.layer).data()), trial_);
    trial.time += taken / 2;
  }
  choice_.learn_trial(*codec, v, trial.bytes, trial.time + fetched / 2, start, SteadyClock::now());
}

// The same with the slabs of a run, on the way that they would take.
Status KvSender::try_another_on_device(const Run& used, SlabCoder& coder) {
  const TimePoint start = SteadyClock::now();
  const Codec* const codec = choice_.due(used.codec, start);
  if (codec == nullptr || used.job.cancelled_) return {};
  const Run trial{used.job, *codec, used.layer, used.first_block, used.last_block, nullptr};
  const PlaneShape shape = plane_shape(pool_.shape(), rows(used.job, used.first_block));
  if (lane_.coder_of(*codec) == nullptr) {
    const BlockId block = used.job.table_.id(used.first_block);
    KVLANE_TRY(lane_.begin(pool_, {&block, 1}, used.layer, nullptr));
    KVLANE_ASSIGN(const std::byte* const slab, lane_.next());
    const Seconds fetched = SteadyClock::now() - start;
    const PlaneView v = plane_in(slab, pool_.shape(), PlanePart::kV);
    const TimedEncoding encoding = time_encoding(*codec, shape, v, trial_);
    choice_.learn_trial(*codec, shape, encoding.bytes, encoding.time + fetched / 2, start,
                        SteadyClock::now());
    return {};
  }
  const std::vector<DeviceSlab> slabs = slabs_of(trial);
  KVLANE_ASSIGN(const std::span<const CodedSlab> coded, coder.encode(*codec, slabs, nullptr));
  const TimePoint end = SteadyClock::now();
  choice_.learn_trial(*codec, shape, coded[0].v.size(),
                      (end - start) / static_cast<double>(2 * slabs.size()), start, end);
  return {};
}

}  // namespace kvlane
