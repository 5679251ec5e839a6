// Links through shared memory: who gets one, who stays on TCP, and peers that are hostile, frozen
// or dead. Such peers are plain sockets and segments.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <thread>

#include "transfer/shared_listener.h"
#include "transfer/shared_offer.h"
#include "transfer/tcp.h"
#include "transfer/test_support.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

std::pair<sockaddr_un, socklen_t> name_of(std::uint16_t port) {
  const std::string name = shared_memory_name(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::ranges::copy(name, address.sun_path);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())};
}

std::uint16_t port_of(int socket) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  return ntohs(address.sin_port);
}

// Reads are given up after some seconds.
void limit_reads(int socket) {
  const timeval limit{10, 0};
  (void)::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

void send_with_files(int socket, ByteView bytes, const std::vector<int>& files) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(8 * sizeof(int))> control{};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!files.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), files.data(), files.size() * sizeof(int));
  }
  EXPECT_EQ(::sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

// A connector of plain sockets: it does what a test says, and nothing by itself.
class Connector {
 public:
  explicit Connector(std::uint16_t port)
      : tcp_(::socket(AF_INET, SOCK_STREAM, 0)), door_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_in address = loopback(port);
    EXPECT_EQ(::connect(tcp_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    const auto [name, bytes] = name_of(port);
    EXPECT_EQ(::connect(door_.get(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
    limit_reads(tcp_.get());
    limit_reads(door_.get());
    segment_ = std::move(*SharedSegment::create(kRingBytesMin, &file_));
    const auto ip = boost::asio::ip::make_address("127.0.0.1");
    offer_ = {{ip, port_of(tcp_.get())}, {ip, port}, kRingBytesMin};
  }

  void offer() { send_with_files(door_.get(), encode_shared_offer(offer_), {file_.get()}); }
  // What is said at the door: -1 when it was closed instead.
  int answer() {
    std::uint8_t byte = 0;
    return ::recv(door_.get(), &byte, 1, 0) == 1 ? byte : -1;
  }
  void say(std::uint8_t byte) { (void)::send(door_.get(), &byte, 1, MSG_NOSIGNAL); }
  // Offers, hears yes, and says go.
  void agree() {
    offer();
    ASSERT_EQ(answer(), 1);
    say(2);
  }
  RingControl& out() { return segment_->control(0); }
  RingControl& in() { return segment_->control(1); }
  // Writes to the ring, which has room, and rings.
  void send(ByteView bytes) {
    RingWriter writer(out(), segment_->bytes(0));
    writer.put(bytes);
    say(3);
  }
  // Whether the link was ended at the other side, within some seconds.
  bool is_closed() {
    std::byte byte{};
    return ::recv(tcp_.get(), &byte, 1, 0) <= 0 && errno != EAGAIN;
  }

  OwnedFile tcp_;
  OwnedFile door_;
  OwnedFile file_;
  std::unique_ptr<SharedSegment> segment_;
  SharedOffer offer_;
};

// A network that listens, and the recorder of the last link it accepted.
class SharedMemory : public ::testing::Test {
 protected:
  SharedMemory() { start({.shared_ring_bytes = kRingBytesMin}); }
  ~SharedMemory() override {
    here_network_.reset();
    network_.reset();
  }
  void start(const TcpOptions& options) {
    network_ = std::move(*make_tcp_network(options));
    here_network_ = std::move(*make_tcp_network(options));
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      const std::lock_guard lock(mutex_);
      accepted_.push_back(std::move(link));
      return there_;
    });
  }
  void connect() { link_ = *here_network_->connect(address_, here_); }
  void listen_anew() {
    const std::lock_guard lock(mutex_);
    there_ = std::make_shared<RecordingEvents>();
  }
  // The last, once there are so many.
  std::shared_ptr<Link> accepted(std::size_t count = 1) {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        if (accepted_.size() >= count) return accepted_.back();
      }
      std::this_thread::yield();
    }
  }
  static Bytes small(int number) {
    return encode_error(id_of(1), aborted("number " + std::to_string(number)));
  }
  static Bytes large(std::size_t body) {
    return encode_slab(id_of(1), Bytes(body, std::byte{0x77}));
  }
  // Messages go from here to there and back.
  void expect_works(LinkPath path) {
    connect();
    ASSERT_TRUE(link_->post(share(small(1))).ok());
    ASSERT_TRUE(there_->wait_messages(1));
    ASSERT_TRUE(accepted()->post(share(small(2))).ok());
    ASSERT_TRUE(accepted()->post(share(large(300'000))).ok());
    ASSERT_TRUE(here_->wait_messages(2));
    EXPECT_EQ(here_->messages()[1], large(300'000));
    EXPECT_EQ(link_->path(), path);
    EXPECT_EQ(accepted()->path(), path);
  }

  std::shared_ptr<RecordingEvents> here_ = std::make_shared<RecordingEvents>();
  std::shared_ptr<RecordingEvents> there_ = std::make_shared<RecordingEvents>();
  std::mutex mutex_;
  std::vector<std::shared_ptr<Link>> accepted_;
  std::shared_ptr<Link> link_;
  Address address_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Network> here_network_;
};

TEST_F(SharedMemory, CarriesMessagesOnOneHost) { expect_works(LinkPath::kSharedMemory); }

TEST_F(SharedMemory, NeedsBothSides) {
  for (const bool here : {false, true}) {
    start({.shared_memory = !here, .shared_ring_bytes = kRingBytesMin});
    here_network_ = std::move(*make_tcp_network({.shared_memory = here}));
    listen_anew();
    here_ = std::make_shared<RecordingEvents>();
    expect_works(LinkPath::kTcp);
  }
}

TEST_F(SharedMemory, WithoutMemoryThereIsTcp) {
  start({.shared_ring_bytes = 12345});  // as when the system gives none
  expect_works(LinkPath::kTcp);
}

TEST_F(SharedMemory, ALimitOnFilesLeavesTcp) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  expect_works(LinkPath::kTcp);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST_F(SharedMemory, ATakenNameLeavesTcp) {
  Address address;
  {
    auto other = std::move(*make_tcp_network({.shared_memory = false}));
    address = *other->listen({"127.0.0.1", 0}, {});
  }
  const OwnedFile squatter(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto [name, bytes] = name_of(address.port);
  ASSERT_EQ(::bind(squatter.get(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  address_ = *network_->listen(address, [this](std::shared_ptr<Link> link) {
    const std::lock_guard lock(mutex_);
    accepted_.push_back(std::move(link));
    return there_;
  });
  expect_works(LinkPath::kTcp);
}

TEST_F(SharedMemory, MessagesMayBeLongerThanARing) {
  connect();
  std::vector<Bytes> sent;
  for (int i = 0; i < 40; ++i) {
    sent.push_back(i % 3 == 0 ? small(i) : large(std::size_t(i) * 13'333));
    ASSERT_TRUE(link_->post(share(sent.back())).ok());
  }
  sent.push_back(large(kSlabBodyBytesMax));
  while (!link_->post(share(sent.back())).ok()) std::this_thread::yield();
  ASSERT_TRUE(there_->wait_messages(sent.size()));
  EXPECT_TRUE(there_->messages() == sent);
}

TEST_F(SharedMemory, OffersThatAreWrongAreRefused) {
  using Spoil = void (*)(Connector&);
  const Spoil kinds[] = {
      [](Connector& c) { c.offer_.ring_bytes = 2 * kRingBytesMin; },
      [](Connector& c) { c.offer_.connector.port(1); },
      [](Connector& c) { c.offer_.acceptor.port(1); },
      [](Connector& c) { c.file_.reset(::dup(c.tcp_.get())); },
  };
  for (const Spoil spoil : kinds) {
    listen_anew();
    Connector peer(address_.port);
    spoil(peer);
    peer.offer();
    EXPECT_EQ(peer.answer(), -1);
    // The link goes on over TCP.
    const Bytes message = small(1);
    ASSERT_EQ(::send(peer.tcp_.get(), message.data(), message.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(message.size()));
    EXPECT_TRUE(there_->wait_messages(1));
  }
}

TEST_F(SharedMemory, OffersNeedOneFileAndTheirBytes) {
  struct Case {
    std::size_t bytes;
    int files;
  };
  for (const Case& wrong : {Case{56, 0}, Case{56, 2}, Case{56, 8}, Case{55, 1}, Case{1, 1}}) {
    listen_anew();
    Connector peer(address_.port);
    Bytes offer = encode_shared_offer(peer.offer_);
    offer.resize(wrong.bytes);
    send_with_files(peer.door_.get(), offer, std::vector<int>(wrong.files, peer.file_.get()));
    EXPECT_EQ(peer.answer(), -1) << wrong.bytes << " bytes, " << wrong.files << " files";
  }
  listen_anew();
  Connector silent(address_.port);
  EXPECT_EQ(silent.answer(), -1);
}

TEST_F(SharedMemory, WhoSaysNothingDoesNotHoldTheNetwork) {
  Connector silent(address_.port);
  accepted();
  const TimePoint begin = SteadyClock::now();
  network_.reset();
  EXPECT_LT(seconds_since(begin), 0.8) << "less than an offer is waited for";
  EXPECT_EQ(silent.answer(), -1);
}

TEST_F(SharedMemory, OneConnectionIsOfferedOnce) {
  Connector first(address_.port);
  first.agree();
  const auto events = there_;
  first.send(small(1));
  ASSERT_TRUE(events->wait_messages(1));
  listen_anew();
  Connector second(address_.port);
  second.offer_ = first.offer_;
  second.offer();
  EXPECT_EQ(second.answer(), -1);
  EXPECT_FALSE(events->closed().has_value());
}

TEST_F(SharedMemory, AnOfferMustBeTheFirstThing) {
  Connector peer(address_.port);
  const Bytes message = small(1);
  ASSERT_EQ(::send(peer.tcp_.get(), message.data(), message.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(message.size()));
  ASSERT_TRUE(there_->wait_messages(1));
  peer.offer();
  EXPECT_EQ(peer.answer(), -1);
  // The same when it was the acceptor who spoke first.
  listen_anew();
  Connector other(address_.port);
  ASSERT_TRUE(accepted(2)->post(share(message)).ok());
  Bytes got(message.size());
  ASSERT_EQ(::recv(other.tcp_.get(), got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(got.size()));
  other.offer();
  EXPECT_EQ(other.answer(), -1);
}

// A connector that hears yes too late, or dies before it says go.
TEST_F(SharedMemory, WithoutAGoTheLinkStaysOnTcp) {
  Connector peer(address_.port);
  peer.offer();
  ASSERT_EQ(peer.answer(), 1);
  const Bytes message = small(1);
  ASSERT_TRUE(accepted()->post(share(message)).ok());
  std::byte byte{};
  EXPECT_EQ(::recv(peer.tcp_.get(), &byte, 1, MSG_DONTWAIT), -1) << "it waits for the go";
  peer.door_.reset();
  Bytes got(message.size());
  ASSERT_EQ(::recv(peer.tcp_.get(), got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, message);
  EXPECT_EQ(accepted()->path(), LinkPath::kTcp);
}

// An acceptor whose name is there and does not answer: a worker that is frozen, for instance.
TEST_F(SharedMemory, AnAcceptorThatDoesNotAnswerGetsTcp) {
  const OwnedFile listener(::socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in any = loopback(0);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const std::uint16_t port = port_of(listener.get());
  const OwnedFile door(::socket(AF_UNIX, SOCK_STREAM, 0));
  const auto [name, bytes] = name_of(port);
  ASSERT_EQ(::bind(door.get(), reinterpret_cast<const sockaddr*>(&name), bytes), 0);
  ASSERT_EQ(::listen(door.get(), 1), 0);
  link_ = *here_network_->connect({"127.0.0.1", port}, here_);
  const Bytes message = small(1);
  ASSERT_TRUE(link_->post(share(message)).ok());
  const OwnedFile accepted(::accept(listener.get(), nullptr, nullptr));
  limit_reads(accepted.get());
  Bytes got(message.size());
  ASSERT_EQ(::recv(accepted.get(), got.data(), got.size(), MSG_WAITALL),
            static_cast<ssize_t>(got.size()));
  EXPECT_EQ(got, message);
  EXPECT_EQ(link_->path(), LinkPath::kTcp);
}

TEST_F(SharedMemory, ImpossiblePositionsEndTheLink) {
  using Spoil = void (*)(Connector&);
  const Spoil kinds[] = {
      [](Connector& c) { c.out().written += kRingBytesMin + 1; },
      [](Connector& c) { c.out().written = ~std::uint64_t{0}; },
      [](Connector& c) { c.out().written = 0; },  // less than was there already
      [](Connector& c) { c.in().read = 1; },      // more than was written
      [](Connector& c) { c.in().read = ~std::uint64_t{0}; },
  };
  for (const Spoil spoil : kinds) {
    listen_anew();
    Connector peer(address_.port);
    peer.agree();
    peer.send(small(1));
    ASSERT_TRUE(there_->wait_messages(1));
    // Positions of readers are looked at when there is something to write.
    spoil(peer);
    peer.say(3);
    (void)accepted()->post(share(small(2)));
    ASSERT_TRUE(there_->wait_closed());
    EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
    EXPECT_THAT(there_->closed()->message(), HasSubstr("impossible position"));
    EXPECT_TRUE(peer.is_closed());
  }
}

TEST_F(SharedMemory, BadMessagesAreRefusedAsOverTcp) {
  Connector peer(address_.port);
  peer.agree();
  Bytes wrong = small(1);
  wrong[20] ^= std::byte{1};
  peer.send(wrong);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
  EXPECT_THAT(there_->closed()->message(), HasSubstr("checksum"));
  EXPECT_TRUE(peer.is_closed());
  const Result<Message> answer =
      parse_message(ByteView(peer.segment_->bytes(1)).first(peer.in().written.load()));
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->header.type, MessageType::kError);
}

// Whoever writes to a ring while it is read can spoil his own messages and no more.
TEST_F(SharedMemory, ARingThatChangesAllTheTimeOnlyEndsItsLink) {
  Connector peer(address_.port);
  peer.agree();
  for (std::uint32_t i = 0; i < 20'000 && !there_->closed(); ++i) {
    const auto random = philox4x32(21, {i, 0, 0, 0});
    peer.segment_->bytes(0)[random[0] % kRingBytesMin] = std::byte(random[1]);
    peer.out().written.fetch_add(random[2] % 64);
    peer.out().writer_waits = random[3];
    peer.in().reader_waits = random[3];
    peer.say(3);
  }
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_TRUE(there_->messages().empty());
}

TEST_F(SharedMemory, BytesOverTcpEndTheLink) {
  Connector peer(address_.port);
  peer.agree();
  peer.send(small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  ASSERT_EQ(::send(peer.tcp_.get(), "x", 1, MSG_NOSIGNAL), 1);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
  EXPECT_THAT(there_->closed()->message(), HasSubstr("over TCP"));
}

// Over TCP after the offer, and then go all the same.
TEST_F(SharedMemory, BytesOverTcpBeforeTheGoEndTheLink) {
  for (const bool whole : {true, false}) {
    listen_anew();
    Connector peer(address_.port);
    peer.offer();
    ASSERT_EQ(peer.answer(), 1);
    const Bytes message = small(1);
    const std::size_t bytes = whole ? message.size() : 20;
    ASSERT_EQ(::send(peer.tcp_.get(), message.data(), bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
    if (whole) {
      ASSERT_TRUE(there_->wait_messages(1));
    }
    peer.say(2);
    ASSERT_TRUE(there_->wait_closed());
    EXPECT_EQ(there_->closed()->code(), Code::kCorrupt);
    EXPECT_THAT(there_->closed()->message(), HasSubstr("over TCP"));
    EXPECT_TRUE(peer.is_closed());
  }
}

// The end of either socket stands behind the last byte of the ring.
TEST_F(SharedMemory, EveryCutMessageIsAnError) {
  const Bytes message = small(1);
  for (std::size_t size = 0; size < message.size(); ++size) {
    listen_anew();
    {
      Connector peer(address_.port);
      peer.agree();
      Bytes both = message;
      both.insert(both.end(), message.begin(), message.begin() + std::ptrdiff_t(size));
      peer.send(both);
      (size % 2 == 0 ? peer.tcp_ : peer.door_).reset();
      ASSERT_TRUE(there_->wait_closed());
    }
    EXPECT_EQ(there_->messages().size(), 1U);
    EXPECT_EQ(there_->closed()->code(), size == 0 ? Code::kAborted : Code::kUnavailable) << size;
  }
}

// A process of its own that agrees, sends one message and then waits to be killed.
pid_t agree_in_another_process(std::uint16_t port, const Bytes& message) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  Connector peer(port);
  peer.agree();
  peer.send(message);
  for (;;) (void)::pause();
}

TEST_F(SharedMemory, APeerThatIsKilledEndsTheLink) {
  const pid_t child = agree_in_another_process(address_.port, small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  EXPECT_EQ(accepted()->path(), LinkPath::kSharedMemory);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_TRUE(there_->wait_closed());
  EXPECT_EQ(accepted()->post(share(small(2))).code(), Code::kUnavailable);
  (void)::waitpid(child, nullptr, 0);
}

// Its ring and then the queue are full; post() refuses and the link stands, until the peer is dead.
TEST_F(SharedMemory, APeerThatIsFrozenTakesNoMoreThanTheQueue) {
  start({.queue_bytes_max = 1 << 20, .shared_ring_bytes = kRingBytesMin});
  const pid_t child = agree_in_another_process(address_.port, small(1));
  ASSERT_TRUE(there_->wait_messages(1));
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  const auto message = share(large(1 << 18));
  std::size_t taken = 0;
  Status status;
  for (; status.ok(); ++taken) status = accepted()->post(message);
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_LE(taken, 6U);
  EXPECT_FALSE(there_->wait_writable(1, 0.3));
  EXPECT_FALSE(there_->closed().has_value());
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_TRUE(there_->wait_closed());
  (void)::waitpid(child, nullptr, 0);
}

// Takes each message for a while, and holds the network's thread so long.
struct SlowEvents : LinkEvents {
  explicit SlowEvents(Seconds time) : pause(time) {}
  void on_message(ByteView message) override {
    std::this_thread::sleep_for(pause);
    bytes += message.size();
  }
  void on_closed(Status) override { closed = true; }
  const Seconds pause;
  std::atomic<std::size_t> bytes = 0;
  std::atomic<bool> closed = false;
};

TEST_F(SharedMemory, SpeedIsThatOfAReaderWhoIsTheBottleneck) {
  const auto slow = std::make_shared<SlowEvents>(Seconds(0.005));
  const auto address =
      *network_->listen({"127.0.0.1", 0}, [this, slow](std::shared_ptr<Link> link) {
        const std::lock_guard lock(mutex_);
        accepted_.push_back(std::move(link));
        return slow;
      });
  link_ = *here_network_->connect(address, here_);
  ASSERT_TRUE(link_->post(share(small(1))).ok());  // a first message has a limit of its own
  const auto message = share(large(1 << 18));
  EXPECT_FALSE(link_->speed());
  const TimePoint start = SteadyClock::now();
  constexpr std::size_t kMessages = 100;
  for (std::size_t sent = 0; sent < kMessages;) {
    link_->post(message).ok() ? ++sent : (std::this_thread::sleep_for(Seconds(0.002)), sent);
  }
  while (slow->bytes < kMessages * message->size() && !slow->closed)
    std::this_thread::sleep_for(Seconds(0.001));
  const double seen = double(slow->bytes) / seconds_since(start);
  ASSERT_TRUE(link_->speed());
  EXPECT_NEAR(link_->speed()->bytes_per_second, seen, 0.3 * seen);
  EXPECT_TRUE(link_->speed()->receiver_bound);
}

// Back-pressure and its end, between two networks.
TEST_F(SharedMemory, TheQueueHasALimitAndTellsWhenThereIsRoom) {
  start({.queue_bytes_max = 1 << 20, .shared_ring_bytes = kRingBytesMin});
  const auto slow = std::make_shared<SlowEvents>(Seconds(0.05));
  const auto address =
      *network_->listen({"127.0.0.1", 0}, [this, slow](std::shared_ptr<Link> link) {
        const std::lock_guard lock(mutex_);
        accepted_.push_back(std::move(link));
        return slow;
      });
  link_ = *here_network_->connect(address, here_);
  ASSERT_TRUE(link_->post(share(small(1))).ok());
  const auto message = share(large(1 << 18));
  for (int round = 1; round <= 3; ++round) {
    Status status;
    while (status.ok()) status = link_->post(message);
    ASSERT_EQ(status.code(), Code::kExhausted);
    EXPECT_THAT(status.message(), HasSubstr("bytes queued"));
    EXPECT_TRUE(here_->wait_writable(round));
  }
  EXPECT_FALSE(slow->closed);
}

// While nothing is said, nobody works.
TEST_F(SharedMemory, AnIdleLinkTakesNoProcessorTime) {
  expect_works(LinkPath::kSharedMemory);
  const auto used = [] {
    rusage all{};
    (void)::getrusage(RUSAGE_SELF, &all);
    return double(all.ru_utime.tv_sec + all.ru_stime.tv_sec) +
           1e-6 * double(all.ru_utime.tv_usec + all.ru_stime.tv_usec);
  };
  const double before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(used() - before, 0.1);
}

}  // namespace
}  // namespace kvlane
