// Transfers of a sequence's KV from a prefill worker to a decode worker. Protocol:
// spec/transfer.md.
//
// Pushed: the decode worker expects a transfer id, the prefill worker connects and sends slabs as
// they appear. Parked: the prefill worker keeps the frames under the id, with a lease, until the
// decode worker fetches them. In both cases the receiver checks identity and checksums, hands each
// slab to its sink exactly once, asks again for those that did not come, and acknowledges the end.
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
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
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

// What is coming: sent before the first slab.
struct TransferBegin {
  int tokens = 0;  // of the sequence whose KV follows
  int layers = 0;  // slabs to expect: layers * blocks_for(tokens)
  std::string format;
  std::string codec;

  friend bool operator==(const TransferBegin&, const TransferBegin&) = default;
};

// What only the prefill worker knows: sent after the last slab.
struct TransferEnd {
  std::int32_t first_token = 0;     // sampled by the prefill worker
  std::uint64_t seed = 0;           // of the sampler, so that decode draws on as one process would
  std::uint64_t raw_bytes = 0;      // valid rows x 2 bytes
  std::uint64_t shipped_bytes = 0;  // frames, headers included
  // The prefill worker's account up to here. The endpoint adds to "transfer" what a pushed sequence
  // waited for its link after it was complete.
  Durations durations;
  double since_begin = 0;  // filled in by the sending endpoint: seconds from BEGIN to here
};

// Where a received sequence goes. Calls come one at a time, in the order below, from the network's
// thread. The last one is on_end or on_failed, unless the transfer is cancelled; then the endpoint
// lets go of the sink.
class TransferSink {
 public:
  virtual ~TransferSink() = default;
  // An error ends the transfer; on_failed follows, and the sender is told.
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

// The sending half of one transfer. Thread-safe. Frames are kept until the receiver has
// acknowledged the end (it may ask again for some); they count against
// EndpointOptions::outgoing_bytes_max.
class OutgoingTransfer {
 public:
  virtual ~OutgoingTransfer() = default;  // before finish(): fails the transfer with kAborted
  // kExhausted when the arena is full: the transfer goes on without this frame, try again or give
  // up. kInvalidArgument when it is no frame of this transfer or came before. Else the error that
  // ended the transfer.
  virtual Status add_frame(Bytes frame) = 0;
  // All frames are there, else the transfer fails with kInvalidArgument.
  virtual void finish(TransferEnd end) = 0;
  virtual void fail(const Status& why) = 0;
};

// Called exactly once, from the network's thread: the receiver's durations, or why the transfer
// failed (fail() and cancel() included).
using OnDelivered = std::function<void(Result<Durations>)>;

struct EndpointOptions {
  Address bind{"127.0.0.1", 0};
  std::string advertised_host;  // what peers are told; the bound host when empty
  ModelIdentity model{};
  std::string format = "bf16";
  std::string codecs = "none, splitzip";      // told in the handshake
  Seconds idle_timeout{10};                   // no message for a running transfer: it failed
  Seconds lease{60};                          // how long parked frames wait to be fetched
  std::size_t outgoing_bytes_max = 1U << 30;  // frames kept for peers, parked ones included
  std::string engine;  // names this worker in messages for people; random when empty
  // Told about every peer that was turned away (another protocol, another model): for a log.
  std::function<void(const std::string& peer, const Status& why)> on_refused;
};

// One worker's door to the others. Thread-safe. Created with a network that outlives it.
class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> start(Network& network, EndpointOptions options);
  // Fails all running transfers with kAborted: these last calls come from the thread of the
  // destructor, and nothing is called afterwards. Not from within a sink or callback.
  virtual ~Endpoint() = default;

  // Where peers reach this endpoint.
  virtual Address address() const = 0;

  // Sending. kInvalidArgument if the id is in use, kExhausted when
  // a limit of spec/transfer.md section 9 is reached. Whatever fails later is told to
  // `on_delivered`.
  virtual Result<std::shared_ptr<OutgoingTransfer>> push(const Address& peer, const TransferId& id,
                                                         const TransferBegin& begin,
                                                         OnDelivered on_delivered) = 0;
  virtual Result<std::shared_ptr<OutgoingTransfer>> park(const TransferId& id,
                                                         const TransferBegin& begin,
                                                         OnDelivered on_delivered) = 0;

  // Receiving. `expect` waits for a push at most `wait`; `fetch` asks `peer` for parked frames.
  // Errors as above; the sink is then not called.
  virtual Status expect(const TransferId& id, Seconds wait, std::shared_ptr<TransferSink> sink) = 0;
  virtual Status fetch(const Address& peer, const TransferId& id,
                       std::shared_ptr<TransferSink> sink) = 0;

  // Ends a transfer on either side with kAborted; unknown ids are ignored. When it returns, the
  // sink is not and will not be called, except from within one of its own calls. So it may wait for
  // a call that is under way: hold no lock that the sink takes.
  virtual void cancel(const TransferId& id) = 0;
};

}  // namespace kvlane
