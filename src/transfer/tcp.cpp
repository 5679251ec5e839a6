// The TCP network: its thread, listeners, timers and the list of its links.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/tcp.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <map>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "transfer/shared_listener.h"
#include "transfer/tcp_streams.h"

namespace kvlane {
namespace {

namespace asio = boost::asio;
using boost::asio::ip::tcp;
using Error = boost::system::error_code;
using Timer = asio::steady_timer;

Address to_address(const tcp::endpoint& endpoint) {
  return {endpoint.address().to_string(), endpoint.port()};
}

Result<tcp::endpoint> resolve(asio::io_context& io, const Address& address) {
  Error error;
  const auto numeric = asio::ip::make_address(address.host, error);
  if (!error) return tcp::endpoint(numeric, address.port);
  const auto found = tcp::resolver(io).resolve(address.host, std::to_string(address.port),
                                               tcp::resolver::numeric_service, error);
  if (error || found.empty()) {
    return not_found("the name of " + to_string(address) + " was not found: " + error.message());
  }
  return found.begin()->endpoint();
}

// The user's handle. The link itself lives as long as its connections.
class TcpLink : public Link {
 public:
  explicit TcpLink(std::shared_ptr<TcpStreams> streams) : streams_(std::move(streams)) {}
  ~TcpLink() override { streams_->close(); }
  Status post(std::shared_ptr<const Bytes> message) override {
    return streams_->post(std::move(message));
  }
  bool is_over() const override { return streams_->is_over(); }
  void close() override { streams_->close(); }
  std::string peer() const override { return streams_->peer(); }
  LinkPath path() const override { return streams_->path(); }
  int streams() const override { return streams_->streams(); }
  std::uint32_t streams_wanted() const override { return streams_->streams_wanted(); }
  std::optional<StreamKey> stream_key() override { return streams_->stream_key(); }
  void add_streams(const StreamKey& key) override { streams_->add_streams(key); }
  std::optional<LinkSpeed> speed() const override { return streams_->speed(); }

 private:
  const std::shared_ptr<TcpStreams> streams_;
};

struct Listener {
  Listener(asio::io_context& io, Network::Acceptor on_accept)
      : socket(io), pause(io), acceptor(std::move(on_accept)) {}
  tcp::acceptor socket;
  std::shared_ptr<SharedListener> shared;  // null: TCP alone
  Timer pause;
  Network::Acceptor acceptor;
};

class TcpNetwork : public Network {
 public:
  explicit TcpNetwork(const TcpOptions& options)
      : loop_(std::make_shared<TcpLoop>(options)),
        work_(loop_->io.get_executor()),
        timer_(loop_->io) {}
  ~TcpNetwork() override;

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  Result<Address> listen(const Address& address, Acceptor acceptor) override;
  Result<std::shared_ptr<Link>> connect(const Address& peer,
                                        std::shared_ptr<LinkEvents> events) override;
  TimePoint now() const override { return SteadyClock::now(); }
  void call_after(Seconds delay, std::function<void()> task) override;

 private:
  void run();
  void accept(const std::shared_ptr<Listener>& listener);
  void on_accepted(const Listener& listener, tcp::socket socket);
  std::shared_ptr<TcpStreams> make_link(tcp::socket socket, std::string peer,
                                        TcpConnection::Origin origin);
  void keep(const std::shared_ptr<TcpStreams>& link);
  void hear_offers(SharedListener& shared, const tcp::endpoint& bound);
  SharedListener::Match match(const SharedOffer& offer,
                              const std::shared_ptr<SharedAgreement>& agreement);
  void arm_timer();
  void stop();

  const std::shared_ptr<TcpLoop> loop_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;

  // On the loop's thread only.
  Timer timer_;
  std::multimap<TimePoint, std::function<void()>> tasks_;
  std::vector<std::shared_ptr<Listener>> listeners_;

  std::thread thread_;
};

TcpNetwork::~TcpNetwork() {
  if (!thread_.joinable()) return;  // start() failed
  asio::post(loop_->io, [this] { stop(); });
  work_.reset();
  thread_.join();
}

// Ends when nothing is under way any more, that is after stop().
void TcpNetwork::run() {
  for (bool running = true; running;) {
    try {
      loop_->io.run();
      running = false;
    } catch (const std::exception&) {
      // Out of memory inside a handler: its link stalls and runs into a time limit, the rest goes
      // on.
      asio::post(loop_->io, [this] { arm_timer(); });
    }
  }
}

void TcpNetwork::stop() {
  loop_->stopping = true;
  tasks_.clear();
  timer_.cancel();
  for (const auto& listener : listeners_) {
    Error ignored;
    listener->socket.close(ignored);
    listener->pause.cancel();
    if (listener->shared) listener->shared->close();
  }
  listeners_.clear();
  for (const auto& weak : loop_->links) {
    if (const auto link = weak.lock()) link->stop();
  }
}

Result<Address> TcpNetwork::listen(const Address& address, Acceptor acceptor) {
  KVLANE_ASSIGN(const tcp::endpoint endpoint, resolve(loop_->io, address));
  const auto listener = std::make_shared<Listener>(loop_->io, std::move(acceptor));
  tcp::acceptor& socket = listener->socket;
  Error error;
  socket.open(endpoint.protocol(), error);
  if (!error) socket.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) socket.bind(endpoint, error);
  if (!error) socket.listen(asio::socket_base::max_listen_connections, error);
  const tcp::endpoint bound = error ? tcp::endpoint() : socket.local_endpoint(error);
  if (error) {
    return unavailable("cannot listen at " + to_string(address) + ": " + error.message());
  }
  if (loop_->options.shared_memory) {
    listener->shared = SharedListener::open(loop_->io, bound.port());
  }
  asio::post(loop_->io, [this, listener, bound] {
    listeners_.push_back(listener);
    accept(listener);
    if (listener->shared) hear_offers(*listener->shared, bound);
  });
  return to_address(bound);
}

void TcpNetwork::hear_offers(SharedListener& shared, const tcp::endpoint& bound) {
  shared.start([this, bound](const SharedOffer& offer, std::shared_ptr<SharedAgreement> agreement) {
    // A relay on this host, at another address, for instance.
    if (!offer.is_to(bound)) return SharedListener::Match::kRefused;
    return match(offer, agreement);
  });
}

// The accepted connection that an offer of shared memory means, if there is one.
SharedListener::Match TcpNetwork::match(const SharedOffer& offer,
                                        const std::shared_ptr<SharedAgreement>& agreement) {
  for (const auto& weak : loop_->links) {
    const auto link = weak.lock();
    if (!link) continue;
    const auto match = link->take(offer, agreement);
    if (match != SharedListener::Match::kUnknown) return match;
  }
  return SharedListener::Match::kUnknown;
}

void TcpNetwork::accept(const std::shared_ptr<Listener>& listener) {
  listener->socket.async_accept([this, listener](const Error& error, tcp::socket socket) {
    if (loop_->stopping) return;
    if (!error) {
      on_accepted(*listener, std::move(socket));
      return accept(listener);
    }
    listener->pause.expires_after(kAcceptPause);
    listener->pause.async_wait([this, listener](const Error&) {
      if (!loop_->stopping) accept(listener);
    });
  });
}

void TcpNetwork::on_accepted(const Listener& listener, tcp::socket socket) {
  Error error;
  const tcp::endpoint peer = socket.remote_endpoint(error);
  // Too many, or already gone: the socket closes here.
  if (error || loop_->accepted >= loop_->options.accepted_max) return;
  const std::shared_ptr<TcpStreams> link =
      make_link(std::move(socket), to_string(to_address(peer)), TcpConnection::Origin::kAccepted);
  std::shared_ptr<LinkEvents> events = listener.acceptor(std::make_shared<TcpLink>(link));
  if (!events) return;
  keep(link);
  link->start(std::move(events));
}

std::shared_ptr<TcpStreams> TcpNetwork::make_link(tcp::socket socket, std::string peer,
                                                  TcpConnection::Origin origin) {
  auto connection =
      std::make_shared<TcpConnection>(loop_, std::move(socket), std::move(peer), origin);
  return std::make_shared<TcpStreams>(loop_, std::move(connection), origin);
}

Result<std::shared_ptr<Link>> TcpNetwork::connect(const Address& peer,
                                                  std::shared_ptr<LinkEvents> events) {
  const std::shared_ptr<TcpStreams> link =
      make_link(tcp::socket(loop_->io), to_string(peer), TcpConnection::Origin::kOpened);
  asio::post(loop_->io, [this, link, peer, events = std::move(events)]() mutable {
    keep(link);
    loop_->stopping ? link->stop() : link->connect(peer, std::move(events));
  });
  return std::shared_ptr<Link>(std::make_shared<TcpLink>(link));
}

void TcpNetwork::keep(const std::shared_ptr<TcpStreams>& link) {
  std::erase_if(loop_->links, [](const auto& weak) { return weak.expired(); });
  loop_->links.push_back(link);
}

void TcpNetwork::call_after(Seconds delay, std::function<void()> task) {
  const TimePoint when = now() + ticks(delay);
  asio::post(loop_->io, [this, when, task = std::move(task)]() mutable {
    if (loop_->stopping) return;
    tasks_.emplace(when, std::move(task));
    arm_timer();
  });
}

void TcpNetwork::arm_timer() {
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

Result<std::unique_ptr<Network>> make_tcp_network(const TcpOptions& options) {
  auto network = std::make_unique<TcpNetwork>(options);
  try {
    network->start();
  } catch (const std::system_error& error) {
    return exhausted(std::string("no thread for the network: ") + error.what());
  }
  return std::unique_ptr<Network>(std::move(network));
}

}  // namespace kvlane
