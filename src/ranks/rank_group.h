// The head's end of a group of ranks: who has joined, and what it asks of them (spec/ranks.md).
//
// To the engine a group is what a device is: a forward pass, copies between blocks, and lanes to
// slabs, over memory that the engine names and never touches.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cache/memory_copy.h"
#include "format/slab_sizes.h"
#include "model/accelerator.h"
#include "model/forward_pass.h"
#include "model/model.h"
#include "quant/kv_format.h"
#include "ranks/letter.h"
#include "ranks/rank_link.h"
#include "transfer/endpoint.h"

namespace kvlane {

struct RankGroupOptions {
  int stages = 1;
  int ranks = 1;  // of each stage
  TransferId key;
  Address bind{"127.0.0.1", 0};
  Seconds join_patience{900};  // large weights from a slow disk
  // Asked while ranks are waited for: an error (a rank's process is gone) ends that.
  std::function<Status()> alive;
  // Told once, from any thread, when a rank has gone: nothing goes on without it.
  std::function<void(const Status& why)> on_lost;
};

// The places of all blocks: addresses that nobody can read, so that pools and arenas count in them.
class PlaceRange {
 public:
  static Result<PlaceRange> reserve(std::size_t bytes);
  PlaceRange() = default;
  PlaceRange(PlaceRange&& other) noexcept : range_(std::exchange(other.range_, {})) {}
  PlaceRange& operator=(PlaceRange&& other) noexcept {
    std::swap(range_, other.range_);
    return *this;
  }
  PlaceRange(const PlaceRange&) = delete;
  ~PlaceRange();
  std::span<std::byte> bytes() const { return range_; }

 private:
  std::span<std::byte> range_;
};

// Thread-safe. Ends after everything that was made of it.
class RankGroup {
 public:
  static Result<std::unique_ptr<RankGroup>> listen(std::unique_ptr<Network> network,
                                                   RankGroupOptions options);
  ~RankGroup();

  int stages() const { return options_.stages; }
  int ranks() const { return options_.ranks; }
  Address address() const { return address_; }
  // Why nothing goes on; ok while all is well.
  Status lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  // Waits until all ranks of this model are here.
  Status wait_for_ranks(const Model& model);
  // Once, then: ranks take their memory, of which the plan says how much. `format`, of the whole
  // model, outlives this; null: rows of 16 bits.
  Status prepare(const KvShape& shape, const KvFormat* format, Plan plan);

  // What blocks of such memory are called.
  std::span<std::byte> places(RankMemory memory) const;
  // Between blocks, in all ranks.
  MemoryCopy copies();
  // Slabs between places and memory of this process.
  std::unique_ptr<DeviceLane> lane();
  std::unique_ptr<ForwardPass> forward(const Model& model);

  // Letters about state stores (ranks/state_letter.h), to all ranks at once. What is asked is told
  // by the request's number, and answered by each of them; order is that of the ranks.
  using Encode = std::function<Bytes(int rank, std::uint64_t request)>;
  Status tell_all(ByteView letter) { return send_to_all(letter); }
  // Waits. What answers bring (Reply::bytes); the first error, if any is one.
  Result<std::vector<Bytes>> ask_all(const Encode& encode);
  // Does not wait: `done` comes once, on the network's thread, with the first error of any, or
  // never, when a rank is lost or the group ends before.
  Status ask_all_later(const Encode& encode, std::function<void(const Status&)> done);
  // Told, on the network's thread, when a rank has something to do for a restore. Ends what was
  // set before; empty: nobody is.
  void set_on_wake(std::function<void()> on_wake);
  // Of the stores of all ranks, as of the last pass: of each kind the largest.
  struct StateFigures {
    std::uint64_t save_failures = 0;
    std::uint64_t hidden_tokens_lost = 0;
  };
  StateFigures state_figures() const;

 private:
  friend class RankedForward;
  friend class RankLane;

  // What the ranks said of the pass that runs.
  struct Running {
    std::uint64_t number = 0;
    // Of each rank:
    std::vector<int> layers;  // so many of its own are final
    std::vector<std::optional<Bytes>> ends;
  };
  // A place that a slab or a block begins at.
  struct Place {
    BlockPlace block;
    int layer;
  };
  // For whom does not wait.
  struct Later {
    int left;
    Status first;
    std::function<void(const Status&)> done;
  };
  struct Answer {
    bool there = false;
    Bytes letter;
    std::shared_ptr<Later> later{};
  };

  explicit RankGroup(RankGroupOptions options) : options_(std::move(options)), members_(all()) {}
  int all() const { return options_.stages * options_.ranks; }

  std::shared_ptr<LinkEvents> accept(std::shared_ptr<Link> link);
  Status on_letter(RankLink& link, Bytes letter);
  Status on_join(RankLink& link, ByteView letter);
  Status on_layer(int rank, const LayerDone& done);
  Status on_reply(Bytes letter, std::function<void()>& then);
  void on_gone(const RankLink& link, const Status& why);
  void lose(const Status& why);
  Result<int> number_of(const RankLink& link) const;

  // Until `done`, while ranks start.
  template <class Done>
  Status wait_while_alive(const Done& done, const char* what);
  Status send_to_all(ByteView letter);
  // Whether the layer is final in all ranks of its stage, or all ranks have ended the pass; for
  // whom holds the lock.
  bool is_final(int layer) const;
  bool has_ended() const;
  // Until `done`, which is asked with the lock held; an error when a rank is lost, as all are that
  // tell nothing for too long.
  Status wait_until(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);
  // Sends what `encode` makes of a request's number.
  Result<std::uint64_t> ask(int rank, const std::function<Bytes(std::uint64_t request)>& encode,
                            std::shared_ptr<Later> later = {});
  // The answer, a letter of kind REPLY; waits for it.
  Result<Bytes> answer(std::uint64_t request);
  Result<Place> place_of(const std::byte* at) const;
  // Of a slab in such memory, the bytes that this rank has.
  PagePlace part_of(const Place& place, int rank) const;
  // Whether this rank of a stage is one of those that together have each byte once.
  bool is_read(const Place& place, int rank) const;
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes);

  struct Member {
    std::shared_ptr<RankLink> link;  // null: not there yet
    Join join;
    bool ready = false;
  };

  const RankGroupOptions options_;
  Address address_;
  KvShape shape_;
  const KvFormat* format_ = nullptr;
  bool whole_slabs_ = false;        // each rank of a stage has all of its slabs
  std::optional<SlabSizes> sizes_;  // of the cache's blocks
  PlaceRange blocks_, rows_, arena_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  Status lost_;
  bool ending_ = false;
  std::uint64_t news_ = 0;  // letters that ranks have sent
  Running running_;
  std::uint64_t next_request_ = 1;
  std::map<std::uint64_t, Answer> answers_;  // of requests that somebody waits for
  std::function<void()> on_wake_;
  StateFigures state_figures_;
  std::unique_ptr<Network> network_;  // ends first: it calls this
};

}  // namespace kvlane
