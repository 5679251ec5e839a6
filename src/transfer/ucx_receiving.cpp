// What comes over a UCX connection: checked before memory is taken for it, and signs of life.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "transfer/seconds_text.h"
#include "transfer/ucx_connection.h"

namespace kvlane {
namespace {

constexpr std::array<std::byte, 6> kControlBegin = {std::byte{0x8B}, std::byte{'K'}, std::byte{'V'},
                                                    std::byte{'U'},  std::byte{1},   std::byte{0}};

ByteView view(const void* bytes, std::size_t count) {
  return {static_cast<const std::byte*>(bytes), count};
}

// Of a header that has so many bytes.
std::uint64_t number_at_end(ByteView header) {
  std::uint64_t number = 0;
  std::memcpy(&number, header.last(sizeof number).data(), sizeof number);
  return number;
}

}  // namespace

// Null for a message that does not say of which connection it is, or of one that has ended.
UcxConnection* UcxConnection::find(void* loop, const ucp_am_recv_param_t* param) {
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return nullptr;
  const auto& known = static_cast<UcxLoop*>(loop)->by_endpoint;
  const auto found = known.find(param->reply_ep);
  return found == known.end() ? nullptr : found->second;
}

// UCS_OK lets UCX forget the message: a sender whose message nobody wants is done with it.
ucs_status_t UcxConnection::on_message(void* loop, const void* header, std::size_t header_bytes,
                                       void* data, std::size_t bytes,
                                       const ucp_am_recv_param_t* param) {
  UcxConnection* const self = find(loop, param);
  if (self == nullptr) return UCS_OK;
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  try {
    return self->receive(view(header, header_bytes), data, bytes, is_rendezvous);
  } catch (const std::bad_alloc&) {
    self->broken_ = UCS_ERR_NO_MEMORY;
    self->changed();
    return UCS_OK;
  }
}

ucs_status_t UcxConnection::receive(ByteView header, void* data, std::size_t bytes,
                                    bool is_rendezvous) {
  heard();
  if (!listens()) return UCS_OK;
  changed();
  refused_ = check(header, bytes, is_rendezvous);
  if (!refused_.ok()) return UCS_OK;
  const ByteView own = header.first(kMessageHeaderBytes);
  const std::uint64_t number = number_at_end(header);
  if (!is_rendezvous) {
    inbox_.take(number, own, view(data, bytes));
    return UCS_OK;
  }
  inbox_.take(number, own, bytes, data);
  return UCS_INPROGRESS;  // the descriptor is kept
}

// Whether such a message may be taken.
Status UcxConnection::check(ByteView header, std::size_t bytes, bool is_rendezvous) const {
  if (may_begin_message(header) && header.size() != kUcxMessageHeaderBytes) {
    return corrupt("a message came with a header of " + std::to_string(header.size()) +
                   " bytes, not " + std::to_string(kUcxMessageHeaderBytes));
  }
  KVLANE_ASSIGN(const MessageHeader parsed,
                parse_message_header(header.first(std::min(header.size(), kMessageHeaderBytes))));
  const std::uint64_t number = number_at_end(header);
  if (parsed.body_bytes != bytes) {
    return corrupt("a header says " + std::to_string(parsed.body_bytes) + " bytes where " +
                   std::to_string(bytes) + " came");
  }
  if (number == 0 && bytes > kControlBodyBytesMax) {
    return corrupt("the first message has " + std::to_string(bytes) + " bytes, at most " +
                   std::to_string(kControlBodyBytesMax) + " are allowed");
  }
  if (!is_rendezvous && bytes > kUcxEagerBytesMax) {
    return corrupt("a message of " + std::to_string(bytes) + " bytes came unasked, at most " +
                   std::to_string(kUcxEagerBytesMax) + " may");
  }
  if (!inbox_.expects(number)) {
    return corrupt("a message has number " + std::to_string(number) + ", which cannot be next");
  }
  return {};
}

ucs_status_t UcxConnection::on_control(void* loop, const void* header, std::size_t header_bytes,
                                       void*, std::size_t bytes, const ucp_am_recv_param_t* param) {
  UcxConnection* const self = find(loop, param);
  if (self == nullptr) return UCS_OK;
  self->heard();
  const ByteView fields = view(header, header_bytes);
  const bool known = fields.size() == kUcxControlHeaderBytes && bytes == 0 &&
                     std::ranges::equal(fields.first(kControlBegin.size()), kControlBegin) &&
                     fields[6] >= std::byte(Control::kPing) &&
                     fields[6] <= std::byte(Control::kClosed) && fields[7] == std::byte{0};
  if (known) {
    self->receive(static_cast<Control>(fields[6]), number_at_end(fields));
    self->changed();
  } else {
    self->refuse_later(corrupt("a control message is none of those known"));
  }
  return UCS_OK;
}

ucs_status_t UcxConnection::on_unknown(void* loop, const void*, std::size_t, void*, std::size_t,
                                       const ucp_am_recv_param_t* param) {
  if (UcxConnection* const self = find(loop, param); self != nullptr) {
    self->refuse_later(corrupt("a message has an id that is not of this protocol"));
  }
  return UCS_OK;
}

void UcxConnection::refuse_later(Status why) {
  if (!listens()) return;
  refused_ = std::move(why);
  changed();
}

void UcxConnection::receive(Control control, std::uint64_t number) {
  switch (control) {
    case Control::kPing:
      if (!is_closing()) send(Control::kPong);
      return;
    case Control::kPong: return;
    case Control::kClose:
      if (is_closing()) return send(Control::kClosed);
      if (!inbox_.expects(number)) return refuse_later(corrupt("an end came that cannot be one"));
      inbox_.take_end(number);
      return;
    case Control::kClosed:
      if (close_sent_) answered_ = true;
      return;
  }
}

// Hands on what is here, in order, as long as somebody listens.
void UcxConnection::deliver() {
  for (ByteView message = inbox_.front(); !message.empty(); message = inbox_.front()) {
    // A copy of the pointer: close() from within the call drops events_ later, fail() at once.
    const std::shared_ptr<LinkEvents> events = events_;
    if (events && !is_closing()) events->on_message(message);
    inbox_.pop();
  }
  if (is_closing()) {
    if (answered_) end();
    return;
  }
  if (inbox_.at_end()) return peer_closed();
  if (!refused_.ok()) return refuse(refused_);
  if (const Status status = inbox_.fetch(); !status.ok() && !broken_) fail(status);
}

// Whether messages are taken, not dropped.
bool UcxConnection::listens() const { return refused_.ok() && !broken_ && !is_closing(); }

// Signs of life.

void UcxConnection::heard() {
  silent_ticks_ = 0;
  if (std::exchange(heard_, true) || accepted_ || is_closing()) return;
  deadline_.expires_at(boost::asio::steady_timer::time_point::max());
}

void UcxConnection::tick() {
  if (is_closing() || !(heard_ || accepted_)) return;
  ++silent_ticks_;
  if (silent_ticks_ == kUcxTicksOfSilence / 2) send(Control::kPing);
  if (silent_ticks_ <= kUcxTicksOfSilence) return;
  fail(unavailable("the link to " + peer_ + " broke: no sign of the peer for " +
                   seconds_text(loop_->options.silence_timeout)));
}

}  // namespace kvlane
