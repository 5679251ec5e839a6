// The engine's inside: an inbox of commands, requests and their sequences, one computing thread.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/inbox.h"
#include "engine/sequence.h"
#include "engine/state_keeper.h"
#include "plan/admission.h"
#include "plan/batching.h"
#include "transfer/hex.h"

namespace kvlane {

class EngineImpl final : public Engine {
 public:
  EngineImpl(const Model& model, const Tokenizer& tokenizer, Endpoint* endpoint,
             EngineOptions options, std::optional<SparseLayout> sparse_layout, EngineParts parts);
  ~EngineImpl() override;

  // Once: nothing is computed before.
  Status begin();

  int context() const override;
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
  Result<int> stored_tokens(std::span<const std::int32_t> prompt,
                            const std::string& cache_salt) const override;
  void flush_state() override;

 private:
  using RequestPtr = std::unique_ptr<Request>;

  // The format of what this engine keeps and ships.
  std::string kv_format() const {
    return options_.kv_format ? options_.kv_format->name() : element_name(pool_.shape().type);
  }
  // What names of blocks say of it: spec/block_name.md.
  std::string block_format() const {
    const std::uint64_t tables = options_.kv_format ? options_.kv_format->tables() : 0;
    return kv_format() + (tables != 0 ? "#" + hex_of_u64(tables) : "") +
           options_.state.lossy_mark();
  }
  // Whoever takes over another's blocks would miss the rows of its window.
  bool shares_blocks() const {
    const KvFormat* const format = options_.kv_format.get();
    if (options_.eviction) return false;         // nobody would know scores of what others computed
    if (options_.online_axes > 0) return false;  // rows change when the prompt is complete
    return options_.prefix_caching && (format == nullptr || (format->window() == KvWindow{} &&
                                                             !format->own_block().sees_ahead));
  }
  // The tokens that a token sees in all layers. 0: all, in some layer or where somebody keeps
  // coefficients of the whole prompt.
  int sight() const {
    const ModelConfig& config = model_.config();
    const bool everywhere = config.windowed_first == 0 && config.window < model_.context();
    return everywhere && options_.online_axes == 0 ? config.window : 0;
  }
  // Of a sequence that gives those back which it does not see any more, the blocks it holds at
  // most; 0: there is no such.
  int blocks_in_sight_max() const {
    return sight() == 0 ? 0 : blocks_for(sight() - 1 + options_.chunk_tokens) + 1;
  }
  int blocks_needed(const GenerationRequest& request) const;
  Status open_state();
  BlockTable new_table();
  std::unique_ptr<Sequence> new_sequence(Request& request, int index, const BlockName& root);

  // Any thread (engine.cpp).
  Result<RequestPtr> new_request(GenerationRequest generation,
                                 Request::Journey journey = Request::Journey::kNone);
  Result<std::shared_ptr<KvReceiver>> make_receiver(Request& request);
  Result<RequestId> enqueue(RequestPtr request);
  // A callable for any thread and any time: runs `act` on the engine's thread with the request, if
  // both still live then.
  template <class Act>
  auto later(RequestId id, Act act) {
    return [this, inbox = inbox_, id, act = std::move(act)](const auto&... args) {
      inbox->post([this, id, act, args...] {
        if (const auto found = live_.find(id); found != live_.end()) act(*found->second, args...);
      });
    };
  }

  // The engine's thread from here on. Life and death of requests (engine_life.cpp).
  void loop();
  void shut_down();
  void publish_load();
  void tell(Request& request, Update update);
  void end_answer(Sequence& sequence, FinishReason reason);
  void conclude(Request& request, Sequence& last, Update update, Status error);
  void fail(Request& request, const Status& why);
  void bury(Request& request);
  void expire_unattached();

  // Who runs (engine_queue.cpp).
  Rank rank(const Sequence& sequence) const;
  void queue(Sequence& sequence);
  void run(Sequence& sequence);
  void detach(Sequence& sequence);
  void leave(Sequence& sequence);
  void admit();
  int places_taken() const {
    return static_cast<int>(running_.size() + restoring_.size()) + receiving_;
  }
  enum class Started {
    kStarted,
    kLacksRoom,    // blocks, or a place
    kLacksFrames,  // memory for what it sends
    kFailed,       // the request is over
  };
  Started start(Sequence& sequence);
  Sequence* first_queued(bool without_frames) const;
  void go_on(Sequence& sequence);
  int blocks_to_start(const Sequence& sequence) const;
  bool may_have(const Sequence& sequence, int blocks) const;
  int known_blocks(const Sequence& sequence) const;
  int adopt_prefix(Sequence& sequence);
  void adopt_what_others_computed(Sequence& sequence);
  bool adopt_from_arena(Sequence& sequence, const BlockName& name);
  void give_back_unseen(Sequence& sequence);
  Sequence* least_important() const;
  void preempt(Sequence& sequence);
  void make_room();

  // To the state store and from it (engine_state.cpp).
  void save_blocks(Sequence& sequence);
  void forgo_saving(Sequence& sequence, int end);
  void count_unsaved(Sequence& sequence);
  void prefetch();
  void gather_hidden(PassHooks& hooks);
  void put_in_device_order(const KeptRows& kept);
  void complete_hidden(Sequence& sequence);
  void end_hidden(Sequence& sequence);
  bool is_being_restored(const Sequence& sequence) const;
  bool begin_restore(Sequence& sequence);
  std::optional<FoundState> find_in_sight(const Sequence& sequence, int& first);
  FoundState find_stored(const Sequence& sequence, int& first);
  bool advance_restores();
  void end_restore(Sequence& sequence);

  // Computing (engine_step.cpp).
  bool step();
  bool choose_batch();
  void gather_batch();
  bool takes_best(const Sequence& sequence) const;
  bool slabs_leave() const;
  void on_layer(int layer, const std::shared_ptr<const DeviceMark>& done);
  void restore_rows(int layer);
  void after_pass();
  Status end_prompt(Sequence& sequence);
  bool copy_blocks(const Sequence& from, Sequence& to);
  void draw();
  void accept(Sequence& sequence, std::int32_t token, std::optional<TokenLogprobs> logprobs);
  void answer_prompt(Sequence& sequence, const std::vector<PrefillOutcome::First>& first);
  void publish_blocks(Sequence& sequence);

  // Journeys (engine_journey.cpp).
  std::size_t messages_bytes_max(const Request& request) const;
  Status check_departure(const Request& request) const;
  Status depart(Request& request);
  void hand_over(Request& request, int layer, int last_block,
                 const std::shared_ptr<const DeviceMark>& done);
  void finish_sending(Request& request);
  void on_peer_answer(Request& request, const Result<Durations>& delivered);
  void settle(Request& request);
  Status expect_arrival(Request& request);
  void arrive(Request& request, const Result<ReceivedKv>& received);

  const Model& model_;
  const Tokenizer& tokenizer_;
  Endpoint* const endpoint_;
  const EngineOptions options_;

  const std::optional<SparseLayout> sparse_layout_;  // where tokens are evicted
  EngineParts parts_;
  BlockPool& pool_ = parts_.pool;
  BlockArena& arena_ = parts_.arena;
  ForwardPass* const forward_ = parts_.forward.get();
  CodecChoice* const codecs_ = parts_.codecs.get();
  const PassHooks::OnLayer layer_done_ = [this](int layer, const auto& done) {
    on_layer(layer, done);
  };
  const PassHooks::OnNormed hidden_shown_ = [this](int layer, ByteView normed) {
    keeper_->copy_hidden(layer, saved_rows_, normed);
  };
  const PassHooks::OnKept hidden_kept_ = [this](const KeptRows& kept) {
    if (!in_device_order_) put_in_device_order(kept);
    return keeper_->fetch_hidden(saved_rows_, kept);
  };

  const PassHooks::BeforeAttention rows_wanted_ = [this](int layer) { restore_rows(layer); };

  std::map<RequestId, RequestPtr> live_;
  std::vector<RequestPtr> dead_;    // over in this turn of the loop: somebody may still point there
  std::vector<Sequence*> queued_;   // in no order
  std::vector<Sequence*> running_;  // in order of priority and arrival
  int receiving_ = 0;               // that hold blocks, and places of the batch
  std::vector<Sequence*> restoring_;  // likewise, in the order in which they began
  ClientShares shares_;
  StepPace pace_;

  // The current pass.
  struct Slot {
    Sequence* sequence;
    int tokens;
    bool wants_logits;
    std::vector<PrefillOutcome::First> drawn;  // one token, or one for each answer to a prompt
  };
  std::vector<Slot> slots_;
  std::vector<ForwardSpan> spans_;
  std::vector<PassRows> saved_rows_;  // whose hidden states are saved
  std::vector<int> saved_spans_;      // of these
  bool in_device_order_ = false;      // they are, and have its rows
  std::vector<Sequence*> batch_;
  std::vector<int> missing_;
  std::vector<int> shares_of_step_;
  int answers_in_step_ = 0;
  double outside_seconds_ = 0;  // of the current step: forward pass, sampling, restores
  double restore_seconds_ = 0;  // of this, restores
  double rows_seconds_ = 0;     // of the current pass: making rows of coefficients

  std::atomic<RequestId> next_id_ = 1;
  std::atomic<int> waiting_ = 0;  // accepted and not yet started
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  EngineLoad totals_;  // its sums
  mutable std::mutex load_mutex_;
  EngineLoad load_;

  std::unique_ptr<KvSender> sender_;
  std::unique_ptr<StateKeeper> keeper_;  // null: without a state store
  std::thread thread_;
};

}  // namespace kvlane
