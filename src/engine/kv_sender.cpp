// Gathers planes, encodes them and hands frames to the transfer.
// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvlane {

KvSender::KvSender(const BlockPool& pool, const ModelIdentity& model, std::string format,
                   const Codec& codec)
    : pool_(pool), model_(model), format_(std::move(format)), codec_(codec) {
  const PlaneShape largest = plane_shape(pool.shape(), kBlockTokens);
  plane_.resize(largest.bytes());
  coded_k_.resize(codec.bound(largest));
  coded_v_.resize(codec.bound(largest));
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

void KvSender::add(const std::shared_ptr<Job>& job, int layer, int first_block, int last_block) {
  if (first_block == last_block) return;
  post([this, job, layer, first_block, last_block] {
    for (int block = first_block; block < last_block; ++block) encode(*job, layer, block);
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

void KvSender::encode(Job& job, int layer, int block) {
  if (job.cancelled_ || !job.status_.ok()) return;
  const KvShape& shape = pool_.shape();
  FrameHeader header;
  header.model = model_;
  header.format = format_;
  header.codec = codec_.name();
  header.type = shape.type;
  header.layer = layer;
  header.kv_heads = shape.kv_heads;
  header.head_dim = shape.head_dim;
  header.position = std::int64_t{block} * kBlockTokens;
  header.tokens = std::min(kBlockTokens, job.tokens_ - block * kBlockTokens);

  const BlockId id = job.table_.id(block);
  const PlaneShape plane = plane_shape(shape, header.tokens);
  const std::size_t head_bytes = plane.bytes() / shape.kv_heads;
  const auto encode_plane = [&](std::size_t page_offset, std::vector<std::byte>& coded) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::memcpy(plane_.data() + head * head_bytes, pool_.page(id, layer, head) + page_offset,
                  head_bytes);
    }
    const ByteView values(plane_.data(), plane.bytes());
    return ByteView(coded.data(), codec_.encode(plane, values, nullptr, coded));
  };
  const ByteView k = encode_plane(0, coded_k_);
  const ByteView v = encode_plane(shape.page_plane_elements(), coded_v_);
  const std::size_t raw_bytes = header.raw_bytes();
  auto frame = build_frame(std::move(header), k, v);
  if (!frame.ok()) {
    job.status_ = frame.status();
    return;
  }
  job.kv_.raw += raw_bytes;
  job.kv_.shipped += frame->size();
  job.status_ = job.outgoing_->add_frame(std::move(*frame));
}

}  // namespace kvlane
