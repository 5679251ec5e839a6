// Messages of one UCX link on their way in: they are handed on in the order in which they were
// sent. UCX brings some along, others have to be fetched from the sender's memory, and some
// overtake others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "kvlane/status.h"
#include "transfer/message.h"

namespace kvlane {

// The longest body that comes with its message; a longer one is fetched.
inline constexpr std::size_t kUcxEagerBytesMax = std::size_t{16} << 10;
// How far a message may be ahead of the oldest that is not here. Senders have 32 under way.
inline constexpr std::uint64_t kUcxAheadMax = 1024;
// Fetched at the same time, unless one message alone is larger.
inline constexpr std::size_t kUcxFetchBytesMax = std::size_t{4} << 20;

// On the network's thread. Must live until outstanding() is zero.
class UcxInbox {
 public:
  // `changed` is called, from within UCX, when a fetch is over. It must not throw.
  UcxInbox(ucp_worker_h worker, std::function<void()> changed)
      : worker_(worker), changed_(std::move(changed)) {}

  // Whether a message with this number can come: it is new, not far ahead, and before the end.
  bool expects(std::uint64_t number) const;
  // A message that UCX brought along, whose bytes are copied. Of these three: expects(number).
  void take(std::uint64_t number, ByteView header, ByteView body);
  // One whose body is still with its sender. Takes over UCX's descriptor of it.
  void take(std::uint64_t number, ByteView header, std::size_t body_bytes, void* descriptor);
  // The peer's CLOSE; this would have been the number of its next message.
  void take_end(std::uint64_t number) { end_ = number; }

  // Fetches what comes next, nothing large before the first message is here. kExhausted without
  // memory, kUnavailable when UCX cannot.
  Status fetch();
  // The oldest message if it is here, until pop(). Else empty.
  ByteView front() const;
  void pop();
  // All messages before the peer's CLOSE were popped.
  bool at_end() const { return end_ == next_; }
  // Lets go of everything that is not being fetched.
  void drop();

  std::size_t outstanding() const { return fetching_; }

 private:
  struct Item {
    UcxInbox* inbox = nullptr;
    std::array<std::byte, kMessageHeaderBytes> header{};
    Bytes memory;            // only grows
    std::size_t bytes = 0;   // of it
    void* source = nullptr;  // UCX's descriptor, until it is fetched from
    bool here = false;
  };
  static void on_fetched(void* request, ucs_status_t status, std::size_t length, void* item);
  Item& add(std::uint64_t number, ByteView header, std::size_t body_bytes);
  Status fetch(Item& item);
  void arrived(Item& item, ucs_status_t status);
  void reserve(Item& item);
  void keep(Bytes memory);

  const ucp_worker_h worker_;
  const std::function<void()> changed_;
  std::uint64_t next_ = 0;  // number of the message to be handed on
  std::optional<std::uint64_t> end_;
  std::map<std::uint64_t, std::unique_ptr<Item>> held_;
  std::vector<std::unique_ptr<Item>> dropped_;  // while UCX still writes to their memory
  std::vector<Bytes> free_;
  std::size_t free_bytes_ = 0;
  std::size_t fetching_ = 0;  // of held_ and dropped_
  std::size_t fetching_bytes_ = 0;
  bool failed_ = false;
};

}  // namespace kvlane
