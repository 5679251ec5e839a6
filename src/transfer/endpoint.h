// Transfers of a sequence's KV from a prefill worker to a decode worker. Protocol:
// spec/transfer.md.
//
// Pushed: the decode worker expects a transfer id, the prefill worker connects and sends slabs as
// they appear. Parked: the prefill worker keeps the frames under the id, with a lease, until the
// decode worker fetches them. In both cases the receiver checks identity and checksums, hands each
// slab to its sink exactly once, asks again for those that did not come, and acknowledges the end.
//
// Flow control: a sender sets memory for all frames of a transfer aside before it computes them. A
// receiver may expect a push before it has room for it; the frames then wait in that memory.
//
// Threads: every call here is thread-safe and returns at once. Sinks and callbacks are called from
// the network's thread, one at a time, with no lock of the endpoint held: they may call the
// endpoint. They must not block and must not throw.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "format/cache_format.h"
#include "format/frame.h"
#include "transfer/link.h"

namespace kvlane {

// 128 random bits that name one transfer; the only key to its data, so never guessable.
struct TransferId {
  std::array<std::uint8_t, 16> bytes{};
  auto operator<=>(const TransferId&) const = default;
};
TransferId random_transfer_id();
std::string to_string(const TransferId& id);  // 32 lower-case hexadecimal digits
Result<TransferId> parse_transfer_id(std::string_view text);

// Durations in seconds by the names of the time account.
using Durations = std::map<std::string, double>;

// Tells prompts apart: SHA-256 of their tokens, each as 32 bits, little-endian.
using PromptDigest = std::array<std::byte, 32>;
// kInternal when OpenSSL refuses.
Result<PromptDigest> prompt_digest(std::span<const std::int32_t> tokens);

// What is coming: sent before the first slab.
struct TransferBegin {
  int tokens = 0;      // of the sequence whose KV follows
  int layers = 0;      // slabs to expect: layers * blocks_for(tokens)
  std::string format;  // of the cache
  std::string codec;
  // Of the sequence's tokens, prompt_digest(). Equal lengths are no proof: who mixes transfers up
  // would get the answer to another's prompt, and keep it under its own prompt's name.
  std::optional<PromptDigest> prompt;

  friend bool operator==(const TransferBegin&, const TransferBegin&) = default;
};

// The first token of one answer, sampled by the prefill worker.
struct FirstToken {
  std::int32_t token = 0;
  // Natural logarithms of probabilities, for who asked for them: of the token, and of the most
  // likely ones, best first.
  std::optional<float> logprob;
  std::vector<std::pair<std::int32_t, float>> top;

  friend bool operator==(const FirstToken&, const FirstToken&) = default;
};
inline constexpr std::size_t kFirstTokensMax = 128;  // answers to one prompt
inline constexpr std::size_t kTopLogprobsMax = 20;   // as OpenAI's API allows

// What only the prefill worker knows: sent after the last slab.
struct TransferEnd {
  std::vector<FirstToken> first;    // of each answer: 1 ... kFirstTokensMax
  std::uint64_t seed = 0;           // of the sampler, so that decode draws on as one process would
  std::uint64_t raw_bytes = 0;      // valid rows x 2 bytes
  std::uint64_t shipped_bytes = 0;  // frames, headers included
  int cached_tokens = 0;            // of the prompt: those that the prefill worker had already
  // The prefill worker's account up to here. The endpoint adds what the complete sequence waited:
  // for its link to "transfer" (if pushed), for room at the receiver to "wait_for_memory".
  Durations durations;
  // Filled in by the sending endpoint: seconds from BEGIN to when only the network held it up.
  double since_begin = 0;
};

// Where a received sequence goes. Calls come one at a time, in the order below, from the network's
// thread. The last one is on_end or on_failed, unless the transfer is cancelled; then the endpoint
// lets go of the sink.
class TransferSink {
 public:
  virtual ~TransferSink() = default;
  // An error ends the transfer; on_failed follows, and the sender is told. May come before there is
  // room: see Endpoint::expect_waiting.
  virtual Status on_begin(const TransferBegin& begin) = 0;
  // The frame's header is valid, of this model and inside the announced range; its body's checksum
  // is right. Each (layer, block) comes once, in any order. The planes point into a buffer that is
  // gone when the call returns. An error ends the transfer; on_failed follows, and the sender is
  // told.
  virtual Status on_slab(const Frame& frame) = 0;
  // Everything has arrived and was accepted. Returns the durations to tell the sender.
  virtual Durations on_end(const TransferEnd& end) = 0;
  // The transfer will not complete; the last call.
  virtual void on_failed(const Status& why) = 0;
};

// What a transfer takes of its sender's memory when no frame is longer than `frame_bytes_max`.
std::size_t outgoing_bytes_needed(const TransferBegin& begin, std::size_t frame_bytes_max);

// The sending half of one transfer. Thread-safe. Frames are kept until the receiver has
// acknowledged the end: it may ask again for some, or have no room for them yet.
class OutgoingTransfer {
 public:
  virtual ~OutgoingTransfer() = default;  // before finish(): fails the transfer with kAborted
  // The frame of that header, in which checksums are filled in. `body` writes the planes, of the
  // lengths in the header, to where they are sent from. kInvalidArgument when it is no frame of
  // this transfer, came before, or goes beyond what the transfer set aside; it then goes on without
  // this frame. Else the error that ended the transfer.
  virtual Status add_slab(FrameHeader header, const BodyWriter& body) = 0;
  // All frames are there, and `end` has a first token, else the transfer fails with
  // kInvalidArgument. What was set aside and not needed is free again.
  virtual void finish(TransferEnd end) = 0;
  virtual void fail(const Status& why) = 0;
};

// Called exactly once, from the network's thread: the receiver's durations, or why the transfer
// failed (fail() included).
using OnDelivered = std::function<void(Result<Durations>)>;

struct EndpointOptions {
  Address bind{"127.0.0.1", 0};
  std::string advertised_host;  // what peers are told; the bound host when empty
  ModelIdentity model{};
  std::string format = "bf16";  // of the cache, its window included
  std::uint64_t tables = 0;     // of that format: KvFormat::tables()
  std::string mark;  // of K and V in it that are not those of others: told behind its name
  std::string codecs = "none, splitzip";  // told in the handshake
  Seconds idle_timeout{10};               // no message for a running transfer: it failed
  // How long all frames of a transfer wait to be fetched, or for the receiver to have room.
  Seconds lease{60};
  // The arena: memory for frames on their way to peers, apart from the one that attention reads.
  std::size_t outgoing_bytes_max = 1U << 30;
  std::string engine;  // names this worker in messages for people; random when empty
  // Told about every peer that was turned away (another protocol, another model): for a log.
  std::function<void(const std::string& peer, const Status& why)> on_refused;
};

// Links that stand, by what carries them.
struct LinkCounts {
  int tcp = 0;
  int shared_memory = 0;
  int ucx = 0;
  int tcp_streams = 0;  // connections of all those over TCP
};

// One worker's door to the others. Thread-safe. Created with a network that outlives it.
//
// An id is free again, on every thread, as soon as the last call about its transfer is made. If
// that call has not returned, whoever begins the next transfer of that id waits for it: hold no
// lock that a sink or callback takes. From within the call itself, the id is still in use.
class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> start(Network& network, EndpointOptions options);
  // Fails all running transfers with kAborted: these last calls come from the thread of the
  // destructor, and nothing is called afterwards. Not from within a sink or callback.
  virtual ~Endpoint() = default;

  // Where peers reach this endpoint.
  virtual Address address() const = 0;

  // Sending. Sets `bytes_max` of the arena aside: outgoing_bytes_needed(). kExhausted when they are
  // not free now, or another limit of spec/transfer.md section 9 is reached: try again when a
  // transfer was finished or delivered. kInvalidArgument if the id is in use or the arena is
  // smaller than `bytes_max`. Whatever fails later is told to `on_delivered`.
  virtual Result<std::shared_ptr<OutgoingTransfer>> push(const Address& peer, const TransferId& id,
                                                         const TransferBegin& begin,
                                                         std::size_t bytes_max,
                                                         OnDelivered on_delivered) = 0;
  virtual Result<std::shared_ptr<OutgoingTransfer>> park(const TransferId& id,
                                                         const TransferBegin& begin,
                                                         std::size_t bytes_max,
                                                         OnDelivered on_delivered) = 0;
  // Bytes of the arena: no transfer may set more aside.
  virtual std::size_t outgoing_bytes_max() const = 0;
  // Those of them that are not set aside. More before `on_delivered` is called, never less.
  virtual std::size_t outgoing_bytes_free() const = 0;
  // How fast the link to `peer` takes what is pushed; without a peer, the slowest of the links that
  // fetch from here. Empty while no such link stands that has ever been the bottleneck.
  virtual std::optional<LinkSpeed> link_speed(const std::optional<Address>& peer) const = 0;
  // In both directions: opened here, or accepted.
  virtual LinkCounts links() const = 0;

  // Receiving. `expect` waits for a push at most `wait`; `fetch` asks `peer` for parked frames.
  // Errors as above; the sink is then not called.
  virtual Status expect(const TransferId& id, Seconds wait, std::shared_ptr<TransferSink> sink) = 0;
  virtual Status fetch(const Address& peer, const TransferId& id,
                       std::shared_ptr<TransferSink> sink) = 0;
  // As `expect`, while there is no room yet: the sender keeps the frames until grant(), and the
  // sink gets on_begin at most. `wait` is for both, the push and the room; without room in time,
  // the transfer fails with kExhausted on both sides.
  virtual Status expect_waiting(const TransferId& id, Seconds wait,
                                std::shared_ptr<TransferSink> sink) = 0;
  // There is room now: the sink may be called with slabs from here on, even before this returns.
  // kNotFound when the transfer into `sink` is over or was never expected, even if another has its
  // id now. Nothing changes if there was room.
  virtual Status grant(const TransferId& id, const TransferSink& sink) = 0;
  // Ends the transfer into `sink` on both sides with kAborted; nothing happens if there is none, or
  // another has its id. When it returns, the sink is not and will not be called, except from within
  // one of its own calls. So it may wait for a call that is under way: hold no lock that the sink
  // takes.
  virtual void cancel(const TransferId& id, const TransferSink& sink) = 0;
};

}  // namespace kvlane
