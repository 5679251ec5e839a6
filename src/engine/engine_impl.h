// The engine's inside: an inbox of commands, a map of sequences, one computing thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/inbox.h"
#include "engine/sequence.h"
#include "model/forward.h"

namespace kvlane {

class EngineImpl final : public Engine {
 public:
  EngineImpl(const Model& model, const Tokenizer& tokenizer, Endpoint* endpoint,
             EngineOptions options, BlockPool pool, std::unique_ptr<Forward> forward,
             const Codec& codec);
  ~EngineImpl() override;

  Status validate(const GenerationRequest& request) const override;
  Result<RequestId> submit(GenerationRequest request, OnUpdate on_update) override;
  Result<RequestId> prefill_and_push(GenerationRequest request, const Address& peer,
                                     const TransferId& transfer, OnPrefilled on_prefilled) override;
  Result<RequestId> prefill_and_park(GenerationRequest request, const TransferId& transfer,
                                     OnPrefilled on_prefilled) override;
  Result<RequestId> reserve(GenerationRequest request, const TransferId& transfer) override;
  Status attach(RequestId request, OnUpdate on_update) override;
  Result<RequestId> fetch_and_decode(GenerationRequest request, const Address& peer,
                                     const TransferId& transfer, OnUpdate on_update) override;
  void abort(RequestId request) override;
  EngineLoad load() const override;
  void wait_idle() override;

 private:
  using SequencePtr = std::unique_ptr<Sequence>;

  // The format of what this engine keeps and ships.
  std::string kv_format() const { return element_name(pool_.shape().type); }

  // Any thread (engine.cpp).
  Result<SequencePtr> new_sequence(GenerationRequest request);
  Result<RequestId> enqueue(SequencePtr sequence);
  Result<RequestId> receive(SequencePtr sequence,
                            const std::function<Status(std::shared_ptr<TransferSink>)>& start);
  // Takes a place in the batch and all blocks the sequence can ever need: kExhausted if there is
  // none.
  Status seat(Sequence& sequence);
  void unseat(Sequence& sequence);
  // A callable for any thread and any time: runs `act` on the engine's thread with the sequence, if
  // both still live then.
  template <class Act>
  auto later(RequestId id, Act act) {
    return [this, inbox = inbox_, id, act = std::move(act)](const auto&... args) {
      inbox->post([this, id, act, args...] {
        if (const auto found = live_.find(id); found != live_.end()) act(*found->second, args...);
      });
    };
  }

  // The engine's thread: life and death of sequences (engine.cpp).
  void loop();
  void shut_down();
  void publish_load();
  void tell(Sequence& sequence, Update update);
  void conclude(Sequence& sequence, FinishReason reason, const Status& error);
  void expire_unattached();

  // The engine's thread: computing (engine_step.cpp).
  void admit();
  bool step();
  void on_layer(int layer);
  void after_prefill_chunk(Sequence& sequence, std::span<const float> logits);
  void accept_token(Sequence& sequence, std::int32_t token);
  void start_decoding(Sequence& sequence);

  // The engine's thread: journeys (engine_journey.cpp).
  Status depart(Sequence& sequence);
  void finish_sending(Sequence& sequence);
  void on_peer_answer(Sequence& sequence, const Result<Durations>& delivered);
  void arrive(Sequence& sequence, const Result<ReceivedKv>& received);
  void fail(Sequence& sequence, const Status& why);
  void settle(Sequence& sequence);

  const Model& model_;
  const Tokenizer& tokenizer_;
  Endpoint* const endpoint_;
  const EngineOptions options_;
  const Codec& codec_;

  mutable std::mutex pool_mutex_;  // guards taking and returning blocks of pool_, and seated_
  BlockPool pool_;
  int seated_ = 0;  // sequences that hold blocks; at most sequences_max, so every pass fits
  std::unique_ptr<Forward> forward_;
  std::map<RequestId, SequencePtr> live_;  // in order of arrival

  // The current pass.
  struct Slot {
    Sequence* sequence;
    int tokens;
    bool wants_logits;
  };
  std::vector<Slot> slots_;
  std::vector<ForwardSpan> spans_;

  std::atomic<RequestId> next_id_ = 1;
  std::atomic<int> waiting_ = 0;  // accepted and not yet admitted
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  mutable std::mutex load_mutex_;
  EngineLoad load_;

  std::unique_ptr<KvSender> sender_;
  std::thread thread_;
};

}  // namespace kvlane
