// The sending side of KV: turns finished slabs into frames, on a thread of its own, while the
// engine computes the next layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "codec/codec.h"
#include "engine/engine.h"
#include "transfer/endpoint.h"

namespace kvlane {

// What the sender tells about a job once its last frame is handed over.
struct SentKv {
  Status status;
  KvBytes kv;
  double encode = 0;  // seconds after the end of the computation that encoding still took
};

// Thread-safe. The engine keeps a job's blocks until `on_encoded` came.
class KvSender {
 public:
  // One sequence on its way out.
  class Job {
   public:
    Job(std::shared_ptr<OutgoingTransfer> outgoing, const BlockTable& table, int tokens)
        : outgoing_(std::move(outgoing)), table_(table), tokens_(tokens) {}
    // Skips what is not encoded yet; on_encoded still comes.
    void cancel() { cancelled_ = true; }

   private:
    friend class KvSender;
    const std::shared_ptr<OutgoingTransfer> outgoing_;
    const BlockTable& table_;
    const int tokens_;  // of the prompt: the last block holds what is left
    std::atomic<bool> cancelled_ = false;
    // Touched by the sender's thread only.
    Status status_;
    KvBytes kv_;
  };

  KvSender(const BlockPool& pool, const ModelIdentity& model, std::string format,
           const Codec& codec);
  ~KvSender();  // encodes what is queued, then joins

  // Blocks [first_block, last_block) of `layer` are final for this job.
  void add(const std::shared_ptr<Job>& job, int layer, int first_block, int last_block);
  // Everything was added. `end` is completed with bytes and the duration "encode" and sent.
  void finish(const std::shared_ptr<Job>& job, TransferEnd end,
              std::function<void(SentKv)> on_encoded);

 private:
  using Work = std::function<void()>;

  void post(Work work);
  void loop();
  void encode(Job& job, int layer, int block);

  const BlockPool& pool_;
  const ModelIdentity model_;
  const std::string format_;
  const Codec& codec_;
  std::vector<std::byte> plane_;              // [kv_heads][rows][head_dim]
  std::vector<std::byte> coded_k_, coded_v_;  // codec.bound(plane)

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Work> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvlane
