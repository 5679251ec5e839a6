// The sending side of KV: turns finished slabs into frames, on a thread of its own, while the
// engine computes the next layer. Rows go through codecs, whose speed and codebooks it watches, and
// so do sealed slabs of values (quant/slab_planes.h); those of codes travel as they are.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cache/block_pool.h"
#include "codec/codec.h"
#include "codec/moving_codebooks.h"
#include "engine/codec_choice.h"
#include "engine/engine.h"
#include "model/slab_lane.h"
#include "quant/kv_format.h"
#include "quant/sealed_planes.h"
#include "transfer/endpoint.h"

namespace kvlane {

// What the sender tells about a job once its last frame is handed over.
struct SentKv {
  Status status;
  KvBytes kv;
  double encode = 0;  // seconds after the end of the computation that encoding still took
};

// Thread-safe. The engine keeps a job's blocks until `on_encoded` came, or wait() returned.
class KvSender {
 public:
  // One sequence on its way out.
  class Job {
   public:
    // `codec` is what the transfer has named; `link` tells the speed of its link.
    Job(std::shared_ptr<OutgoingTransfer> outgoing, const BlockTable& table, int tokens,
        const Codec& codec, std::function<std::optional<LinkSpeed>()> link)
        : outgoing_(std::move(outgoing)),
          table_(table),
          tokens_(tokens),
          codec_(codec),
          link_(std::move(link)) {}
    // Ends the transfer and skips what is not encoded yet; on_encoded still comes.
    void cancel() {
      cancelled_ = true;
      outgoing_->fail(why_cancelled());
    }

   private:
    friend class KvSender;
    static Status why_cancelled() { return aborted("the request was aborted"); }
    const std::shared_ptr<OutgoingTransfer> outgoing_;
    const BlockTable& table_;
    const int tokens_;  // of the prompt: the last block holds what is left
    const Codec& codec_;
    const std::function<std::optional<LinkSpeed>()> link_;
    std::atomic<bool> cancelled_ = false;
    int added_ = 0;  // that are not encoded yet; guarded by the sender's mutex
    // Touched by the sender's thread only.
    Status status_;
    KvBytes kv_;
  };

  // `choice` is told what its codecs achieve. `calibrated`: see MovingCodebooks. `lane` leads to
  // the pool's blocks. `format`, null without one: of sealed blocks in a coded cache, where jobs
  // have their rows.
  KvSender(const BlockPool& pool, SlabLane lane, const ModelIdentity& model,
           std::shared_ptr<const KvFormat> format, CodecChoice& choice,
           const std::vector<Codebook>& calibrated);
  ~KvSender();  // encodes what is queued, then joins

  // Blocks [first_block, last_block) of `layer` are final for this job, on a device once it reaches
  // `done`, if that is not null.
  void add(const std::shared_ptr<Job>& job, int layer, int first_block, int last_block,
           const std::shared_ptr<const DeviceMark>& done);
  // Returns when all that was added for this job is encoded.
  void wait(const Job& job);
  // Everything was added. `end` is completed with bytes and the duration "encode" and sent.
  void finish(const std::shared_ptr<Job>& job, TransferEnd end,
              std::function<void(SentKv)> on_encoded);

  // Planes whose encoder had to count them, and those of them that had a codebook which did not fit
  // any more.
  std::int64_t planes_counted() const { return planes_counted_; }
  std::int64_t codebooks_replaced() const { return codebooks_replaced_; }

 private:
  using Work = std::function<void()>;

  void post(Work work);
  void loop();
  // Blocks of a job in one codec, or those of them that are left; final once a device has reached
  // `done`.
  struct Run {
    Job& job;
    const Codec& codec;
    int layer;
    int first_block, last_block;
    const DeviceMark* done;
    bool sealed = false;
  };
  using CodebookPair = std::array<const Codebook*, 2>;  // of K and of V; null: to be counted

  const Codec& codec_for(const Job& job) const;
  int rows(const Job& job, int block) const;
  CodebookPair books_of(const Run& run) const;
  std::vector<DeviceSlab> slabs_of(const Run& run) const;
  Status send_all(Job& job, int layer, int first_block, int last_block, const DeviceMark* done);
  Status send_from_coded_cache(const Run& run);
  Status send_sealed(const Run& run, int block, const std::byte* slab, Seconds fetched);
  Status send_packed(const Run& run, SlabPlace place, const std::byte* slab, FrameHeader header,
                     Seconds fetched);
  CodedSlab encode_sealed(const Run& run, const std::byte* slab, Seconds fetched);
  Status send_from_host(const Run& run);
  Status send_slab(const Run& run, int block, const std::byte* slab, Seconds fetched);
  Status send_from_device(Run run, SlabCoder& coder);
  Status send_coded(const Run& run, int block, const CodedSlab& coded);
  FrameHeader header_of_rows(const Run& run, int block) const;
  FrameHeader header_of(const Run& run, int block) const;
  Status send_frame(const Run& run, FrameHeader header, const BodyWriter& body);
  Status send_frame(const Run& run, FrameHeader header, const CodedSlab& coded);
  ByteView encode_plane(const Run& run, PlanePart part, const PlaneShape& shape,
                        const PlaneView& plane, Seconds fetched, std::span<std::byte> coded);
  void learn_codebook(const Run& run, PlanePart part, const PlaneShape& shape, ByteView body,
                      bool counted);
  void try_another(const Codec& used, const PlaneShape& shape, const PlaneView& plane,
                   Seconds fetched);
  void try_another_on_sealed(const Run& used, SlabPlace place, const std::byte* slab,
                             Seconds fetched);
  Status try_another_on_device(const Run& used, SlabCoder& coder);

  const BlockPool& pool_;
  const ModelIdentity model_;
  const std::shared_ptr<const KvFormat> format_;
  CodecChoice& choice_;
  // Touched by the sender's thread only.
  SlabLane lane_;
  MovingCodebooks books_;
  // Of planes of sealed slabs, which lack the small values that rows have.
  MovingCodebooks sealed_books_;
  std::array<std::vector<std::byte>, 2> coded_;  // K and V: what a plane may take coded
  std::vector<std::byte> trial_;
  std::vector<std::byte> packed_;              // a sealed slab as it would travel
  std::optional<SealedPlanes> sealed_planes_;  // or what goes to codecs instead, if it has planes

  std::atomic<std::int64_t> planes_counted_ = 0;
  std::atomic<std::int64_t> codebooks_replaced_ = 0;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable encoded_;  // something of a job
  std::deque<Work> queue_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvlane
