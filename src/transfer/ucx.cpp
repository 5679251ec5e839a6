// The UCX network: its thread, which alone calls UCX, listeners, timers and the list of
// connections.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <future>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "transfer/ucx_connection.h"
#include "transfer/ucx_library.h"

namespace kvlane {
namespace {

namespace asio = boost::asio;
using boost::asio::ip::tcp;
using Error = boost::system::error_code;
using Timer = asio::steady_timer;

// After the connections' own limit for their last messages, for UCX to let go of them.
constexpr Seconds kEndLimit{1};

Address to_address(const sockaddr_storage& storage) {
  tcp::endpoint endpoint;
  if (storage.ss_family == AF_INET || storage.ss_family == AF_INET6) {
    const std::size_t bytes =
        storage.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(endpoint.data(), &storage, bytes);
    endpoint.resize(bytes);
  }
  return {endpoint.address().to_string(), endpoint.port()};
}

// The user's handle. The connection itself lives as long as UCX knows it.
class UcxLink : public Link {
 public:
  explicit UcxLink(std::shared_ptr<UcxConnection> connection)
      : connection_(std::move(connection)) {}
  ~UcxLink() override { connection_->close(); }
  Status post(std::shared_ptr<const Bytes> message) override {
    return connection_->post(std::move(message));
  }
  bool is_over() const override { return connection_->is_closing(); }
  void close() override { connection_->close(); }
  std::string peer() const override { return connection_->peer(); }
  LinkPath path() const override { return LinkPath::kUcx; }
  std::optional<LinkSpeed> speed() const override { return connection_->speed(); }

 private:
  const std::shared_ptr<UcxConnection> connection_;
};

class UcxNetwork : public Network {
 public:
  UcxNetwork(const UcxOptions& options, std::unique_ptr<UcxWorker> worker)
      : loop_(std::make_shared<UcxLoop>(options)),
        work_(loop_->io.get_executor()),
        descriptor_(loop_->io),
        timer_(loop_->io),
        ticks_(loop_->io) {
    loop_->worker = std::move(worker);
  }
  ~UcxNetwork() override;

  // Before start().
  Status receive_messages();
  void start();

  Result<Address> listen(const Address& address, Acceptor acceptor) override;
  Result<std::shared_ptr<Link>> connect(const Address& peer,
                                        std::shared_ptr<LinkEvents> events) override;
  TimePoint now() const override { return SteadyClock::now(); }
  void call_after(Seconds delay, std::function<void()> task) override;

 private:
  struct Listener {
    UcxNetwork* network = nullptr;
    Acceptor acceptor;
    ucp_listener_h handle = nullptr;
    std::vector<ucp_conn_request_h> requests;  // not answered yet
  };
  static void on_request(ucp_conn_request_h request, void* listener);

  void run();
  void run_once();
  void drain();
  bool finished() const;
  void wait_for_ucx();
  Result<Address> open(const tcp::endpoint& endpoint, const Address& address, Acceptor acceptor);
  void answer_requests();
  void answer(Listener& listener, ucp_conn_request_h request);
  void keep(const std::shared_ptr<UcxConnection>& connection);
  void arm_timer();
  void tick();
  void stop();

  const std::shared_ptr<UcxLoop> loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;

  // On the loop's thread only.
  bool stopping_ = false;
  bool waiting_ = false;  // for UCX
  TimePoint end_;         // when patience ends, once stopping
  asio::posix::stream_descriptor descriptor_;
  Timer timer_;
  Timer ticks_;
  std::multimap<TimePoint, std::function<void()>> tasks_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::vector<std::shared_ptr<UcxConnection>> connections_;
  std::vector<std::shared_ptr<UcxConnection>> at_work_;  // as long as loop_->changed

  std::thread thread_;
};

// UCX 1.13 looks an id up in its table before it checks that it is in there, and leaves entries
// that nobody set as they were in memory: so the table gets all ids there are, the last one first.
Status UcxNetwork::receive_messages() {
  UcxWorker& worker = *loop_->worker;
  for (unsigned id = kUcxIds; id-- > 0;) {
    const auto handler = id == kUcxMessageId   ? UcxConnection::on_message
                         : id == kUcxControlId ? UcxConnection::on_control
                                               : UcxConnection::on_unknown;
    KVLANE_TRY(worker.set_handler(id, handler, loop_.get()));
  }
  return {};
}

void UcxNetwork::start() {
  thread_ = std::thread([this] { run(); });
}

UcxNetwork::~UcxNetwork() {
  if (!thread_.joinable()) return;  // start() failed
  asio::post(loop_->io, [this] { stop(); });
  thread_.join();
}

// The loop.

void UcxNetwork::run() {
  asio::post(loop_->io, [this] {
    descriptor_.assign(loop_->worker->descriptor());
    tick();
  });
  while (!finished()) {
    try {
      run_once();
    } catch (const std::exception&) {
      // Out of memory: what it was for stalls and runs into a time limit, the rest goes on.
      asio::post(loop_->io, [this] { arm_timer(); });
    }
  }
  for (const auto& connection : connections_) connection->end();
  // What handlers are left finds nothing to do; none may keep a connection alive.
  (void)descriptor_.release();  // it is UCX's
  ticks_.cancel();
  work_.reset();
  loop_->io.run();
  loop_->worker.reset();
  connections_.clear();
}

// Handlers first, then UCX until it has nothing to do; then sleeps until either has.
void UcxNetwork::run_once() {
  loop_->io.poll();
  drain();
  if (finished()) return;
  // It says "busy" when something came in between.
  if (ucx().ucp_worker_arm(loop_->worker->get()) != UCS_OK) return;
  wait_for_ucx();
  loop_->io.run_one();
}

void UcxNetwork::drain() {
  for (bool moved = true; moved;) {
    moved = ucx().ucp_worker_progress(loop_->worker->get()) != 0;
    answer_requests();
    std::swap(at_work_, loop_->changed);
    for (const auto& connection : at_work_) connection->work();
    moved = moved || !at_work_.empty();
    at_work_.clear();
  }
}

bool UcxNetwork::finished() const {
  if (!stopping_) return false;
  const auto gone = [](const auto& connection) { return connection->gone(); };
  return std::ranges::all_of(connections_, gone) || now() >= end_;
}

// Asio looks at a descriptor anew for every wait, so none of its edges is missed.
void UcxNetwork::wait_for_ucx() {
  if (std::exchange(waiting_, true)) return;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this](const Error&) { waiting_ = false; });
}

void UcxNetwork::tick() {
  if (stopping_) return;
  for (const auto& connection : connections_) connection->tick();
  std::erase_if(connections_, [](const auto& connection) { return connection->gone(); });
  ticks_.expires_after(std::chrono::duration_cast<Timer::duration>(loop_->options.silence_timeout /
                                                                   kUcxTicksOfSilence));
  ticks_.async_wait([this](const Error& error) {
    if (!error) tick();
  });
}

void UcxNetwork::stop() {
  stopping_ = true;
  tasks_.clear();
  timer_.cancel();
  // It also wakes the loop when patience ends.
  end_ = now() + std::chrono::duration_cast<SteadyClock::duration>(kEndLimit);
  ticks_.expires_at(end_);
  ticks_.async_wait([](const Error&) {});
  for (const auto& listener : listeners_) {
    for (ucp_conn_request_h request : listener->requests) {
      (void)ucx().ucp_listener_reject(listener->handle, request);
    }
    ucx().ucp_listener_destroy(listener->handle);
  }
  listeners_.clear();
  for (const auto& connection : connections_) connection->stop();
}

// Listening.

Result<Address> UcxNetwork::listen(const Address& address, Acceptor acceptor) {
  Error error;
  tcp::endpoint endpoint(asio::ip::make_address(address.host, error), address.port);
  if (error) {
    asio::io_context io;
    const auto found = tcp::resolver(io).resolve(address.host, std::to_string(address.port),
                                                 tcp::resolver::numeric_service, error);
    if (error || found.empty()) {
      return not_found("the name of " + to_string(address) + " was not found: " + error.message());
    }
    endpoint = found.begin()->endpoint();
  }
  if (std::this_thread::get_id() == thread_.get_id()) {
    return open(endpoint, address, std::move(acceptor));
  }
  std::promise<Result<Address>> bound;
  asio::post(loop_->io, [&, this] { bound.set_value(open(endpoint, address, acceptor)); });
  return bound.get_future().get();
}

Result<Address> UcxNetwork::open(const tcp::endpoint& endpoint, const Address& address,
                                 Acceptor acceptor) {
  auto listener = std::make_unique<Listener>();
  listener->network = this;
  listener->acceptor = std::move(acceptor);
  listeners_.reserve(listeners_.size() + 1);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = endpoint.data();
  params.sockaddr.addrlen = static_cast<socklen_t>(endpoint.size());
  params.conn_handler.cb = on_request;
  params.conn_handler.arg = listener.get();
  ucs_status_t status = ucx().ucp_listener_create(loop_->worker->get(), &params, &listener->handle);
  if (status != UCS_OK) {
    return unavailable("cannot listen at " + to_string(address) + ": " + ucx_text(status));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucx().ucp_listener_query(listener->handle, &attributes);
  listeners_.push_back(std::move(listener));
  if (status != UCS_OK) {
    return unavailable("cannot tell where " + to_string(address) + " is: " + ucx_text(status));
  }
  return to_address(attributes.sockaddr);
}

void UcxNetwork::on_request(ucp_conn_request_h request, void* listener) {
  auto& self = *static_cast<Listener*>(listener);
  try {
    self.requests.push_back(request);
  } catch (const std::bad_alloc&) {
    (void)ucx().ucp_listener_reject(self.handle, request);
  }
}

void UcxNetwork::answer_requests() {
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    Listener& listener = *listeners_[i];
    while (!listener.requests.empty()) {
      const ucp_conn_request_h request = listener.requests.front();
      listener.requests.erase(listener.requests.begin());
      answer(listener, request);
    }
  }
}

void UcxNetwork::answer(Listener& listener, ucp_conn_request_h request) {
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  const ucs_status_t status = ucx().ucp_conn_request_query(request, &attributes);
  if (stopping_ || status != UCS_OK || loop_->accepted >= loop_->options.accepted_max) {
    (void)ucx().ucp_listener_reject(listener.handle, request);
    return;
  }
  const auto connection = std::make_shared<UcxConnection>(
      loop_, to_string(to_address(attributes.client_address)), true);
  std::shared_ptr<LinkEvents> events;
  if (listener.acceptor) events = listener.acceptor(std::make_shared<UcxLink>(connection));
  if (!events) {
    (void)ucx().ucp_listener_reject(listener.handle, request);
    return;
  }
  keep(connection);
  connection->accept(request, std::move(events));
}

Result<std::shared_ptr<Link>> UcxNetwork::connect(const Address& peer,
                                                  std::shared_ptr<LinkEvents> events) {
  const auto connection = std::make_shared<UcxConnection>(loop_, to_string(peer), false);
  asio::post(loop_->io, [this, connection, peer, events = std::move(events)]() mutable {
    keep(connection);
    stopping_ ? connection->end() : connection->connect(peer, std::move(events));
  });
  return std::shared_ptr<Link>(std::make_shared<UcxLink>(connection));
}

void UcxNetwork::keep(const std::shared_ptr<UcxConnection>& connection) {
  std::erase_if(connections_, [](const auto& other) { return other->gone(); });
  connections_.push_back(connection);
  loop_->changed.reserve(2 * connections_.size());
  at_work_.reserve(2 * connections_.size());
}

// Timers.

void UcxNetwork::call_after(Seconds delay, std::function<void()> task) {
  const TimePoint when = now() + std::chrono::duration_cast<SteadyClock::duration>(delay);
  asio::post(loop_->io, [this, when, task = std::move(task)]() mutable {
    if (stopping_) return;
    tasks_.emplace(when, std::move(task));
    arm_timer();
  });
}

void UcxNetwork::arm_timer() {
  if (tasks_.empty()) return;
  timer_.expires_at(tasks_.begin()->first);
  timer_.async_wait([this](const Error& error) {
    if (error) return;  // another wait has replaced this one
    while (!tasks_.empty() && tasks_.begin()->first <= now()) {
      const auto due = tasks_.extract(tasks_.begin());
      due.mapped()();
    }
    arm_timer();
  });
}

}  // namespace

bool has_ucx() { return true; }

Result<std::unique_ptr<Network>> make_ucx_network(const UcxOptions& options) {
  if (options.devices.empty()) {
    return invalid_argument(
        "UCX needs the names of its devices, or it would listen on all of this machine");
  }
  KVLANE_ASSIGN(std::unique_ptr<UcxWorker> worker, UcxWorker::create(options.devices));
  auto network = std::make_unique<UcxNetwork>(options, std::move(worker));
  KVLANE_TRY(network->receive_messages());
  try {
    network->start();
  } catch (const std::system_error& error) {
    return exhausted(std::string("no thread for the network: ") + error.what());
  }
  return std::unique_ptr<Network>(std::move(network));
}

}  // namespace kvlane
