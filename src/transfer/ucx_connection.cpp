// Opening, sending and ending. UCX calls back from within ucp_worker_progress(): such calls note
// what has happened, and work() does what is to be done about it when UCX has returned.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx_connection.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <utility>

#include "transfer/seconds_text.h"
#include "transfer/ucx_library.h"

namespace kvlane {
namespace {

namespace asio = boost::asio;
using boost::asio::ip::tcp;
using Error = boost::system::error_code;
using Lock = std::lock_guard<std::mutex>;

// Messages and bytes that UCX has at the same time, unless one alone is larger.
constexpr std::size_t kUnderWayMax = 32;
constexpr std::size_t kUnderWayBytesMax = std::size_t{8} << 20;

// UCX reads headers until they are sent; those of a kind are the same for all.
constexpr std::array<std::byte, kUcxControlHeaderBytes> control_header(int kind) {
  return {std::byte{0x8B}, std::byte{'K'}, std::byte{'V'}, std::byte{'U'},
          std::byte{1},    std::byte{0},   std::byte(kind)};
}
constexpr std::array<std::array<std::byte, kUcxControlHeaderBytes>, 4> kControlHeaders = {
    control_header(1), control_header(2), control_header(3), control_header(4)};

void append(Bytes& bytes, std::uint64_t number) {
  const ByteView added = std::as_bytes(std::span(&number, 1));
  bytes.insert(bytes.end(), added.begin(), added.end());
}

ucp_request_param_t request_param(ucp_send_nbx_callback_t done, void* user_data,
                                  std::uint32_t flags) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = done;
  param.user_data = user_data;
  param.flags = flags;
  return param;
}

}  // namespace

UcxConnection::UcxConnection(std::shared_ptr<UcxLoop> loop, std::string peer, bool accepted)
    : loop_(std::move(loop)),
      peer_(std::move(peer)),
      accepted_(accepted),
      takes_room_(accepted),
      resolver_(loop_->io),
      deadline_(loop_->io),
      inbox_(loop_->worker->get(), [this] { changed(); }) {
  if (accepted_) ++loop_->accepted;
}

UcxConnection::~UcxConnection() { make_room(); }

void UcxConnection::make_room() {
  if (std::exchange(takes_room_, false)) --loop_->accepted;
}

// Something has happened that work() is for. Never throws: the list has room for all connections.
void UcxConnection::changed() {
  if (!std::exchange(changed_, true)) loop_->changed.push_back(shared_from_this());
}

// Opening.

void UcxConnection::accept(ucp_conn_request_h request, std::shared_ptr<LinkEvents> events) {
  events_ = std::move(events);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  open(params);
}

void UcxConnection::connect(const Address& address, std::shared_ptr<LinkEvents> events) {
  if (is_closing()) return end();
  events_ = std::move(events);
  const Seconds limit = loop_->options.connect_timeout;
  end_after(limit, unavailable("no connection to " + peer_ + " within " + seconds_text(limit)));
  Error not_numeric;
  const auto numeric = asio::ip::make_address(address.host, not_numeric);
  if (!not_numeric) return connect_to({numeric, address.port});
  resolver_.async_resolve(
      address.host, std::to_string(address.port), tcp::resolver::numeric_service,
      [self = shared_from_this()](const Error& error, const tcp::resolver::results_type& found) {
        if (error || found.empty()) {
          return self->fail(
              unavailable("the name of " + self->peer_ + " was not found: " + error.message()));
        }
        const auto is_v4 = [](const auto& entry) { return entry.endpoint().address().is_v4(); };
        const auto v4 = std::find_if(found.begin(), found.end(), is_v4);
        self->connect_to(v4 != found.end() ? v4->endpoint() : found.begin()->endpoint());
      });
}

void UcxConnection::connect_to(const tcp::endpoint& address) {
  if (is_closing()) return end();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = address.data();
  params.sockaddr.addrlen = static_cast<socklen_t>(address.size());
  open(params);
  // Its answer says that the connection stands.
  send(Control::kPing);
}

void UcxConnection::open(ucp_ep_params_t& params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = on_error;
  params.err_handler.arg = this;
  const ucs_status_t status = ucx().ucp_ep_create(loop_->worker->get(), &params, &endpoint_);
  if (status == UCS_OK) {
    loop_->by_endpoint[endpoint_] = this;
  } else {
    endpoint_ = nullptr;
    broken_ = status;
  }
  changed();
}

// Once, from within UCX: nothing comes any more, and nothing is sent.
void UcxConnection::on_error(void* connection, ucp_ep_h, ucs_status_t status) {
  auto& self = *static_cast<UcxConnection*>(connection);
  self.broken_ = status;
  self.changed();
}

void UcxConnection::work() {
  changed_ = false;
  {
    const Lock lock(mutex_);
    posted_ = false;
    if (ended_) return;
  }
  deliver();
  if (broken_ && !is_closing()) {
    const std::string why = ucx_text(*broken_);
    return fail(unavailable(heard_ || accepted_ ? "the link to " + peer_ + " broke: " + why
                                                : "no connection to " + peer_ + ": " + why));
  }
  if (broken_) return end();
  const bool owed = send();
  const std::shared_ptr<LinkEvents> events = events_;
  if (owed && events) events->on_writable();
}

// Sending.

Status UcxConnection::post(std::shared_ptr<const Bytes> message) {
  const Lock lock(mutex_);
  if (closing_ || ended_) return unavailable("the link to " + peer_ + " is closed");
  if (queued_bytes_ >= loop_->options.queue_bytes_max) {
    refused_post_ = true;
    return exhausted("the link to " + peer_ + " has " + std::to_string(queued_bytes_) +
                     " bytes queued");
  }
  queued_bytes_ += message->size();
  queue_.push_back(std::move(message));
  if (!std::exchange(posted_, true)) {
    asio::post(loop_->io, [self = shared_from_this()] { self->work(); });
  }
  return {};
}

// Forgets what was sent, gives UCX more. Whether on_writable is owed.
bool UcxConnection::send() {
  if (endpoint_ == nullptr) return false;
  bool owed = false;
  bool flushed = false;
  std::size_t waits = in_flight_.size();
  {
    const Lock lock(mutex_);
    if (ended_) return false;
    while (!in_flight_.empty() && in_flight_.front()->done) {
      const std::size_t bytes = in_flight_.front()->message->size();
      queued_bytes_ -= bytes;
      in_flight_bytes_ -= bytes;
      in_flight_.pop_front();
    }
    waits = in_flight_.size();
    while (
        !queue_.empty() && in_flight_.size() < kUnderWayMax &&
        (in_flight_bytes_ == 0 || in_flight_bytes_ + queue_.front()->size() <= kUnderWayBytesMax)) {
      in_flight_bytes_ += queue_.front()->size();
      in_flight_.push_back(std::make_unique<Sending>(Sending{this, std::move(queue_.front()), {}}));
      queue_.pop_front();
    }
    if (refused_post_ && queued_bytes_ <= loop_->options.queue_bytes_max / 2) {
      refused_post_ = false;
      owed = true;
    }
    flushed = closing_ && queue_.empty();
  }
  measure();
  for (; waits < in_flight_.size(); ++waits) start(*in_flight_[waits]);
  if (flushed && !std::exchange(close_sent_, true)) send(Control::kClose);
  return owed;
}

void UcxConnection::start(Sending& sending) {
  const ByteView message(*sending.message);
  const ByteView begin = message.first(std::min(message.size(), kMessageHeaderBytes));
  const ByteView body = message.subspan(begin.size());
  sending.header.assign(begin.begin(), begin.end());
  append(sending.header, sent_++);
  const std::uint32_t how =
      body.size() > kUcxEagerBytesMax ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  ucp_request_param_t param = request_param(on_sent, &sending, how | UCP_AM_SEND_FLAG_REPLY);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  ++outstanding_;
  const ucs_status_ptr_t request =
      ucx().ucp_am_send_nbx(endpoint_, kUcxMessageId, sending.header.data(), sending.header.size(),
                            body.data(), body.size(), &param);
  if (!UCS_PTR_IS_PTR(request)) sent(sending, UCS_PTR_STATUS(request));
}

void UcxConnection::on_sent(void* request, ucs_status_t status, void* sending) {
  auto& message = *static_cast<Sending*>(sending);
  ucx().ucp_request_free(request);
  message.connection->sent(message, status);
}

// UCX reads the message no more.
void UcxConnection::sent(Sending& sending, ucs_status_t status) {
  --outstanding_;
  sending.done = true;
  if (status != UCS_OK && !broken_) broken_ = status;
  if (status == UCS_OK && sending.message->size() > kUcxEagerBytesMax + kMessageHeaderBytes) {
    fetched_bytes_ += sending.message->size();
    heard();  // that the peer has fetched it
  }
  changed();
}

void UcxConnection::send(Control control) {
  if (endpoint_ == nullptr || broken_) return;
  ByteView header = kControlHeaders.at(static_cast<std::size_t>(control) - 1);
  if (control == Control::kClose) {
    close_header_.assign(header.begin(), header.end() - sizeof sent_);
    append(close_header_, sent_);
    header = close_header_;
  }
  const ucp_request_param_t param =
      request_param(on_control_sent, this, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY);
  const ucs_status_ptr_t request = ucx().ucp_am_send_nbx(endpoint_, kUcxControlId, header.data(),
                                                         header.size(), nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request)) ++outstanding_;
  if (UCS_PTR_IS_ERR(request)) {
    broken_ = UCS_PTR_STATUS(request);
    changed();
  }
}

void UcxConnection::on_control_sent(void* request, ucs_status_t, void* connection) {
  auto& self = *static_cast<UcxConnection*>(connection);
  ucx().ucp_request_free(request);
  --self.outstanding_;
  self.changed();
}

// What the peer has fetched counts. What it was sent with the message may still be anywhere.
void UcxConnection::measure() {
  const bool waiting = in_flight_bytes_ > kUcxEagerBytesMax;
  const LinkProgress progress{.bytes = fetched_bytes_};
  const TimePoint now = SteadyClock::now();
  const Lock lock(mutex_);
  if (waiting) {
    meter_.waiting(now, progress);
  } else if (meter_.measuring()) {
    meter_.idle(now, progress);
  }
}

std::optional<LinkSpeed> UcxConnection::speed() const {
  const Lock lock(mutex_);
  return meter_.speed();
}

// Ending.

void UcxConnection::close() {
  const Lock lock(mutex_);
  if (ended_ || std::exchange(closing_, true)) return;
  asio::post(loop_->io, [self = shared_from_this()] { self->begin_closing(kLingerLimit); });
}

void UcxConnection::stop() {
  {
    const Lock lock(mutex_);
    if (ended_) return;
    closing_ = true;
  }
  begin_closing(kStopLimit);
}

// closing_ is set: no message is queued any more, no event is told.
void UcxConnection::begin_closing(Seconds limit) {
  events_.reset();
  inbox_.drop();
  // A peer of which nothing was heard yet may have what it was sent all the same.
  if (endpoint_ == nullptr) return end();
  end_after(limit, {});
  changed();
}

// The peer broke the protocol: tells the user and the peer.
void UcxConnection::refuse(const Status& why) {
  const std::shared_ptr<LinkEvents> events = std::exchange(events_, nullptr);
  (void)post(std::make_shared<const Bytes>(encode_error({}, why)));
  {
    const Lock lock(mutex_);
    closing_ = true;
  }
  begin_closing(kLingerLimit);
  if (events) events->on_closed(why.with_context(peer_));
}

// The peer wants nothing any more, and will send nothing. It ends the connection when it knows that
// we know.
void UcxConnection::peer_closed() {
  const std::shared_ptr<LinkEvents> events = std::exchange(events_, nullptr);
  bool expected = false;
  {
    const Lock lock(mutex_);
    expected = std::exchange(closing_, true);
    queue_.clear();
  }
  inbox_.drop();
  close_sent_ = true;
  send(Control::kClosed);
  end_after(kLingerLimit, {});
  if (events && !expected) events->on_closed(aborted(peer_ + " closed the link"));
}

void UcxConnection::fail(Status why) {
  const std::shared_ptr<LinkEvents> events = std::exchange(events_, nullptr);
  const bool expected = is_closing();
  end();
  if (events && !expected) events->on_closed(std::move(why));
}

// What UCX still has comes back with an error.
void UcxConnection::end() {
  events_.reset();
  make_room();
  {
    const Lock lock(mutex_);
    ended_ = true;
    queue_.clear();
  }
  resolver_.cancel();
  deadline_.cancel();
  inbox_.drop();
  if (endpoint_ == nullptr) return;
  loop_->by_endpoint.erase(endpoint_);
  ++outstanding_;
  const ucp_request_param_t param =
      request_param(on_endpoint_closed, this, UCP_EP_CLOSE_FLAG_FORCE);
  const ucs_status_ptr_t request =
      ucx().ucp_ep_close_nbx(std::exchange(endpoint_, nullptr), &param);
  if (!UCS_PTR_IS_PTR(request)) --outstanding_;
}

void UcxConnection::on_endpoint_closed(void* request, ucs_status_t, void* connection) {
  ucx().ucp_request_free(request);
  --static_cast<UcxConnection*>(connection)->outstanding_;
}

bool UcxConnection::gone() const {
  const Lock lock(mutex_);
  return ended_ && endpoint_ == nullptr && outstanding_ == 0 && inbox_.outstanding() == 0;
}

void UcxConnection::end_after(Seconds limit, Status why) {
  deadline_.expires_after(std::chrono::duration_cast<asio::steady_timer::duration>(limit));
  deadline_.async_wait([self = shared_from_this(), why = std::move(why)](const Error& error) {
    // A deadline that was moved meanwhile may come all the same if it had already passed.
    if (error || self->deadline_.expiry() > asio::steady_timer::clock_type::now()) return;
    why.ok() ? self->end() : self->fail(why);
  });
}

bool UcxConnection::is_closing() const {
  const Lock lock(mutex_);
  return closing_ || ended_;
}

}  // namespace kvlane
