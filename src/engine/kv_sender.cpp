// Encodes planes from their pages and hands frames to the transfer.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_sender.h"

#include <algorithm>
#include <utility>

namespace kvlane {
namespace {

// The K, or the V, of a slab.
PlaneView plane_in(const std::byte* slab, const KvShape& shape, PlanePart part) {
  return {slab + (part == PlanePart::kV ? shape.page_bytes() / 2 : 0), shape.page_bytes()};
}

}  // namespace

KvSender::KvSender(const BlockPool& pool, SlabLane lane, const ModelIdentity& model,
                   std::string format, CodecChoice& choice, const std::vector<Codebook>& calibrated)
    : pool_(pool),
      model_(model),
      format_(std::move(format)),
      choice_(choice),
      lane_(std::move(lane)),
      books_(plane_shape(pool.shape(), kBlockTokens), pool.shape().layers, calibrated) {
  const PlaneShape largest = plane_shape(pool.shape(), kBlockTokens);
  for (auto& coded : coded_) coded.resize(choice.bound(largest));
  trial_.resize(choice.bound(largest));
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
  post([this, job, layer, first_block, last_block, done] {
    if (job->status_.ok()) {
      job->status_ = encode_run(*job, layer, first_block, last_block, done.get());
    }
  });
}

void KvSender::finish(const std::shared_ptr<Job>& job, TransferEnd end,
                      std::function<void(SentKv)> on_encoded) {
  const TimePoint computed = SteadyClock::now();
  post([job, end = std::move(end), computed, on_encoded = std::move(on_encoded)]() mutable {
    if (job->cancelled_ && job->status_.ok()) job->status_ = aborted("the request was aborted");
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

Status KvSender::encode_run(Job& job, int layer, int first_block, int last_block,
                            const DeviceMark* done) {
  if (job.cancelled_) return {};
  std::vector<BlockId> blocks;
  for (int block = first_block; block < last_block; ++block) {
    blocks.push_back(job.table_.id(block));
  }
  KVLANE_TRY(lane_.begin(pool_, blocks, layer, done));
  for (int block = first_block; block < last_block && !job.cancelled_; ++block) {
    KVLANE_ASSIGN(const std::byte* const slab, lane_.next());
    KVLANE_TRY(encode(job, layer, block, slab));
  }
  return {};
}

Status KvSender::encode(Job& job, int layer, int block, const std::byte* slab) {
  const KvShape& shape = pool_.shape();
  const Codec& codec =
      choice_.watches_links() ? choice_.for_slab(job.codec_, job.link_()) : job.codec_;
  FrameHeader header;
  header.model = model_;
  header.format = format_;
  header.codec = codec.name();
  header.type = shape.type;
  header.layer = layer;
  header.kv_heads = shape.kv_heads;
  header.head_dim = shape.head_dim;
  header.position = std::int64_t{block} * kBlockTokens;
  header.tokens = std::min(kBlockTokens, job.tokens_ - block * kBlockTokens);

  const PlaneShape plane = plane_shape(shape, header.tokens);
  const PlaneView k = plane_in(slab, shape, PlanePart::kK);
  const PlaneView v = plane_in(slab, shape, PlanePart::kV);
  const ByteView coded_k = encode_plane(codec, layer, PlanePart::kK, plane, k);
  const ByteView coded_v = encode_plane(codec, layer, PlanePart::kV, plane, v);
  try_another(codec, plane, v);
  job.kv_.add_codec(header.codec);
  job.kv_.raw += header.raw_bytes();
  job.kv_.shipped += kFrameHeaderBytes + coded_k.size() + coded_v.size();
  return job.outgoing_->add_slab(std::move(header), coded_k, coded_v);
}

ByteView KvSender::encode_plane(const Codec& codec, int layer, PlanePart part,
                                const PlaneShape& shape, const PlaneView& plane) {
  const TimePoint start = SteadyClock::now();
  std::vector<std::byte>& coded = coded_[static_cast<int>(part)];
  const bool has_codebook = codec.name() == kCodebookCodec;
  const Codebook* const book = has_codebook ? books_.find(layer, part) : nullptr;
  const std::size_t bytes = codec.encode(shape, plane, book, coded);
  choice_.learn(codec, shape, bytes, SteadyClock::now() - start);
  const ByteView body(coded.data(), bytes);
  if (!has_codebook) return body;
  books_.learn(layer, part, shape, body, book == nullptr);
  planes_counted_ = books_.counted();
  codebooks_replaced_ = books_.replaced();
  return body;
}

// Keeps what is known about codecs that are not in use up to date.
void KvSender::try_another(const Codec& used, const PlaneShape& shape, const PlaneView& plane) {
  const TimePoint start = SteadyClock::now();
  const Codec* const codec = choice_.due(used, start);
  if (codec == nullptr) return;
  const TimedEncoding trial = time_encoding(*codec, shape, plane, trial_);
  choice_.learn_trial(*codec, shape, trial.bytes, trial.time, start, SteadyClock::now());
}

}  // namespace kvlane
