// Three threads: the network's takes letters in, one computes passes, one carries out what the head
// orders of the cache meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_process.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "model/forward.h"
#include "ranks/letter.h"
#include "ranks/peer_exchange.h"
#include "ranks/rank_cache.h"
#include "ranks/rank_link.h"
#include "ranks/rank_state.h"

namespace kvlane {
namespace {

// Letters that wait for a thread. Ends once, with a reason; what came before is still taken.
class LetterBox {
 public:
  void put(Bytes letter) {
    {
      const std::lock_guard lock(mutex_);
      letters_.push_back(std::move(letter));
    }
    changed_.notify_all();
  }
  void end(const Status& why) {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) ended_ = why;
    }
    changed_.notify_all();
  }
  Result<Bytes> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !letters_.empty() || ended_; });
    if (letters_.empty()) return *ended_;
    Bytes letter = std::move(letters_.front());
    letters_.pop_front();
    return letter;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Bytes> letters_;
  std::optional<Status> ended_;
};

class RankProcess : public std::enable_shared_from_this<RankProcess> {
 public:
  RankProcess(Network& network, const Model& model, const RankProcessOptions& options)
      : network_(network),
        model_(model),
        options_(options),
        key_(options.key),
        part_(model.part()),
        exchange_(part_, options.patience) {}

  Status run() {
    KVLANE_TRY(join());
    KVLANE_ASSIGN(const Bytes letter, passes_.take());
    KVLANE_ASSIGN(const Plan plan, decode_plan(letter));
    KVLANE_TRY(prepare(plan));
    KVLANE_TRY(connect(plan));
    KVLANE_TRY(head_->send(encode_ready()));
    std::thread orders([this] { carry_out_orders(); });
    Status ended = compute_passes();
    orders_.end(aborted("the rank has ended"));
    orders.join();
    state_.reset();
    return ended;
  }

  // Nothing is called afterwards that needs what run() had.
  void close(const Status& why) {
    exchange_.fail(why);
    if (const auto head = std::exchange(head_, nullptr)) head->close();
  }

 private:
  Status join() {
    const auto self = shared_from_this();
    KVLANE_ASSIGN(
        const Address bound,
        network_.listen(options_.bind, [self](const std::shared_ptr<Link>& link) {
          return RankLink::accept(
              self->network_, self->key_, link,
              [self](RankLink& from, Bytes letter) {
                return self->on_peer(from, std::move(letter));
              },
              [self](RankLink& from, const Status& why) { self->on_peer_gone(from, why); });
        }));
    const std::string& host = options_.advertised_host;
    Join join{part_.stages,
              part_.ranks,
              number_of(part_),
              model_.identity(),
              {host.empty() ? bound.host : host, bound.port}};
    KVLANE_ASSIGN(head_,
                  RankLink::connect(
                      network_, options_.head, options_.key,
                      [self](RankLink&, Bytes letter) { return self->on_head(std::move(letter)); },
                      [self](RankLink&, const Status& why) { self->on_head_gone(why); }));
    return head_->send(encode_join(join));
  }

  Status prepare(const Plan& plan) {
    KVLANE_ASSIGN(format_, options_.make_format(plan.format));
    if (model_.context() != plan.context) {
      return invalid_argument("sequences have at most " + std::to_string(plan.context) +
                              " tokens at the head and " + std::to_string(model_.context()) +
                              " at this rank");
    }
    if (format_ != nullptr && format_->tables() != plan.tables) {
      return invalid_argument("this rank has other tables of KV format '" + format_->name() +
                              "' than the head");
    }
    KVLANE_ASSIGN(RankCache cache,
                  RankCache::create(model_.whole_config(), part_, format_.get(), plan));
    cache_.emplace(std::move(cache));
    RankExchange* const exchange = part_.whole() ? nullptr : &exchange_;
    KVLANE_ASSIGN(forward_,
                  Forward::create(model_, plan.rows_max, plan.logits_max, format_.get(), exchange));
    if (!plan.state) return {};
    RankStateParts parts{model_, *cache_, *forward_, format_.get(), exchange, nullptr};
    if (options_.open_store) {
      KVLANE_ASSIGN(parts.store, options_.open_store(plan.rows_max));
    }
    KVLANE_ASSIGN(state_, RankState::open(std::move(parts), plan, [head = head_](ByteView letter) {
                    return head->send(letter);
                  }));
    return {};
  }

  // Links to peers of higher numbers; the others come here.
  Status connect(const Plan& plan) {
    const auto self = shared_from_this();
    for (const int rank : peers_of(part_)) {
      if (rank < number_of(part_)) continue;
      if (rank >= static_cast<int>(plan.ranks.size())) return corrupt("the head's plan is short");
      KVLANE_ASSIGN(
          const std::shared_ptr<RankLink> link,
          RankLink::connect(
              network_, plan.ranks[rank], options_.key,
              [self, rank](RankLink&, Bytes letter) {
                return self->on_values(rank, std::move(letter));
              },
              [self](RankLink& from, const Status& why) { self->on_peer_gone(from, why); }));
      KVLANE_TRY(exchange_.add(rank, link));
      KVLANE_TRY(exchange_.greet(rank));
    }
    std::unique_lock lock(mutex_);
    const bool complete = peers_changed_.wait_for(
        lock, options_.patience, [&] { return exchange_.complete() || !lost_.ok(); });
    KVLANE_TRY(lost_);
    if (!complete) return timed_out("other ranks of this group did not come");
    lock.unlock();
    for (const int rank : peers_of(part_)) {
      if (rank < number_of(part_)) KVLANE_TRY(exchange_.greet(rank));
    }
    return {};
  }

  // The network's thread.

  Status on_head(Bytes letter) {
    KVLANE_ASSIGN(const LetterKind kind, kind_of(letter));
    switch (kind) {
      case LetterKind::kPlan:
      case LetterKind::kPass:
      case LetterKind::kFlush:
      case LetterKind::kRestore:
      case LetterKind::kAdvance:
      case LetterKind::kForget:
      case LetterKind::kComplete:
      case LetterKind::kEndRows: passes_.put(std::move(letter)); return {};
      case LetterKind::kCopy:
      case LetterKind::kRead:
      case LetterKind::kWrite:
      case LetterKind::kSave:
      case LetterKind::kFind:
      case LetterKind::kPrefetch: orders_.put(std::move(letter)); return {};
      default: return corrupt("the head sent a letter that is not for ranks");
    }
  }

  void on_head_gone(const Status& why) {
    // An orderly end is the head's way to say that all is done.
    const Status end = why.code() == Code::kAborted ? aborted("the head has ended") : why;
    lose(end);
    passes_.end(end);
  }

  // Of a link that was accepted: first it says whose it is.
  Status on_peer(RankLink& from, Bytes letter) {
    const auto known = accepted_.find(&from);
    if (known != accepted_.end()) return on_values(known->second, std::move(letter));
    KVLANE_ASSIGN(const LetterKind kind, kind_of(letter));
    if (kind != LetterKind::kPeer) return corrupt("a rank did not say which one it is");
    KVLANE_ASSIGN(const int rank, decode_peer(letter));
    KVLANE_TRY(exchange_.add(rank, from.shared_from_this()));
    accepted_.emplace(&from, rank);
    const std::lock_guard lock(mutex_);
    peers_changed_.notify_all();
    return {};
  }

  Status on_values(int rank, Bytes letter) {
    KVLANE_ASSIGN(const LetterKind kind, kind_of(letter));
    if (kind == LetterKind::kValues) return exchange_.deliver(rank, std::move(letter));
    if (kind != LetterKind::kPeer) return corrupt("a rank sent a letter that is not for ranks");
    KVLANE_ASSIGN(const int told, decode_peer(letter));
    return told == rank ? Status() : corrupt("a rank is another one than the head said");
  }

  // Strangers come and go; without a peer there is no pass any more.
  void on_peer_gone(RankLink& from, const Status& why) {
    if (!exchange_.has(from)) return;
    const Status gone = unavailable("a rank of this group has gone: " + why.message());
    lose(gone);
    // One that ended in order has told the head, or the head it.
    if (why.code() != Code::kAborted) passes_.end(gone);
  }

  void lose(const Status& why) {
    exchange_.fail(why);
    const std::lock_guard lock(mutex_);
    if (lost_.ok()) lost_ = why;
    peers_changed_.notify_all();
  }

  // The computing thread.

  Status compute_passes() {
    for (;;) {
      auto letter = passes_.take();
      if (!letter.ok()) {
        return letter.status().code() == Code::kAborted ? Status() : letter.status();
      }
      KVLANE_ASSIGN(const LetterKind kind, kind_of(*letter));
      if (kind != LetterKind::kPass) {
        if (state_ == nullptr) return corrupt("the head orders of a state store that there is not");
        KVLANE_TRY(state_->compute(kind, *letter));
        continue;
      }
      KVLANE_ASSIGN(const Pass pass, decode_pass(*letter));
      PassEnd end{pass.number, compute(pass), forward_->times(), {}};
      if (state_ != nullptr) {
        end.save_failures = state_->save_failures();
        end.hidden_tokens_lost = state_->hidden_tokens_lost();
      }
      const bool tells = part_.ends() && part_.rank == 0 && end.status.ok();
      if (tells) end.logits = logits(pass);
      KVLANE_TRY(head_->send(encode_pass_end(end)));
      // Others wait for what this rank has not sent.
      if (!in_step_) return end.status;
    }
  }

  Status compute(const Pass& pass) {
    in_step_ = false;
    std::vector<BlockTable> tables;
    tables.reserve(pass.spans.size());
    std::vector<ForwardSpan> spans;
    for (const PassSpan& span : pass.spans) {
      KVLANE_ASSIGN(BlockTable table, cache_->table(span));
      KVLANE_TRY(check(span));
      tables.push_back(std::move(table));
      spans.push_back({&tables.back(), span.tokens, span.logits});
    }
    Status told;
    PassHooks hooks;
    hooks.on_layer = [&](int layer, const auto&) {
      if (told.ok()) told = head_->send(encode_layer({pass.number, layer}));
    };
    if (state_ != nullptr && state_->begin_pass(pass)) {
      hooks.on_normed = [this](int layer, ByteView normed) { state_->copy(layer, normed); };
    }
    const Status computed = forward_->run(spans, hooks);
    in_step_ = forward_->in_step() && told.ok();
    KVLANE_TRY(computed);
    return told;
  }

  Status check(const PassSpan& span) const {
    bool fine = !span.tokens.empty() && span.logits <= std::ssize(span.tokens) &&
                span.tokens_before <= model_.context() - std::ssize(span.tokens);
    for (const std::int32_t token : span.tokens) {
      fine = fine && token >= 0 && token < model_.config().vocab;
    }
    return fine ? Status() : corrupt("a pass has tokens that this model does not have");
  }

  ByteView logits(const Pass& pass) const {
    std::size_t rows = 0;
    for (const PassSpan& span : pass.spans) rows += span.logits;
    if (rows == 0) return {};
    return std::as_bytes(
        std::span<const float>(forward_->logits(0).data(), rows * model_.config().vocab));
  }

  // The thread of orders.

  void carry_out_orders() {
    for (auto letter = orders_.take(); letter.ok(); letter = orders_.take()) {
      if (Status done = carry_out(*letter); !done.ok()) return passes_.end(done);
    }
  }

  // An order that fails is answered; what cannot be read, or not be answered, ends the rank.
  Status carry_out(ByteView letter) {
    KVLANE_ASSIGN(const LetterKind kind, kind_of(letter));
    if (kind == LetterKind::kSave || kind == LetterKind::kFind || kind == LetterKind::kPrefetch) {
      if (state_ == nullptr) return corrupt("the head orders of a state store that there is not");
      return state_->carry_out(kind, letter);
    }
    if (kind == LetterKind::kCopy) {
      KVLANE_ASSIGN(const CopyOrder copy, decode_copy(letter));
      return head_->send(encode_reply({copy.request, cache_->copy(copy.to, copy.from), {}}));
    }
    const bool writes = kind == LetterKind::kWrite;
    KVLANE_ASSIGN(const SlabOrder order, writes ? decode_write(letter) : decode_read(letter));
    auto slab = cache_->slab(order.place, order.layer);
    Reply reply{order.request, slab.status(), {}};
    if (slab.ok() && writes && order.bytes.size() != slab->size()) {
      reply.status = corrupt("the head writes a slab of another size");
    } else if (slab.ok() && writes) {
      std::copy(order.bytes.begin(), order.bytes.end(), slab->begin());
    } else if (slab.ok()) {
      reply.bytes = *slab;
    }
    return head_->send(encode_reply(reply));
  }

  Network& network_;
  const Model& model_;
  const RankProcessOptions& options_;
  const TransferId key_;
  const ModelPart part_;
  PeerExchange exchange_;
  std::shared_ptr<RankLink> head_;
  std::map<const RankLink*, int> accepted_;  // the network's thread alone
  LetterBox passes_;
  LetterBox orders_;
  std::mutex mutex_;
  std::condition_variable peers_changed_;
  Status lost_;

  std::shared_ptr<const KvFormat> format_;
  std::optional<RankCache> cache_;
  std::unique_ptr<Forward> forward_;
  std::unique_ptr<RankState> state_;  // null: there is no state store
  bool in_step_ = true;               // with the other ranks, behind the last pass
};

}  // namespace

Status run_rank(Network& network, const Model& model, const RankProcessOptions& options) {
  const auto process = std::make_shared<RankProcess>(network, model, options);
  Status ended = process->run();
  process->close(ended.ok() ? aborted("the rank has ended") : ended);
  return ended;
}

}  // namespace kvlane
