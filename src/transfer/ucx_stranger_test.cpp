// Peers that speak UCX, but break the protocol on it: each is told why, and its link ends.
// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <thread>

#include "transfer/test_network.h"
#include "transfer/test_support.h"
#include "transfer/ucx_connection.h"
#include "transfer/ucx_library.h"

namespace kvlane {
namespace {

using ::testing::HasSubstr;
using testing::id_of;
using testing::RecordingEvents;

// A UCX endpoint without our network around it. Remembers the messages that come.
class UcxStranger {
 public:
  explicit UcxStranger(std::uint16_t port) : worker_(std::move(*UcxWorker::create("lo"))) {
    EXPECT_TRUE(worker_->set_handler(kUcxControlId, ignore, this).ok());
    EXPECT_TRUE(worker_->set_handler(kUcxMessageId, remember, this).ok());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
    params.sockaddr = {reinterpret_cast<sockaddr*>(&address), sizeof address};
    params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params.err_handler.cb = [](void* self, ucp_ep_h, ucs_status_t) {
      static_cast<UcxStranger*>(self)->broken = true;
    };
    params.err_handler.arg = this;
    EXPECT_EQ(ucx().ucp_ep_create(worker_->get(), &params, &endpoint_), UCS_OK);
  }
  ~UcxStranger() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucx().ucp_ep_close_nbx(endpoint_, &param);
    finish(request);
    for (const ucs_status_ptr_t sent : sent_) finish(sent);
  }
  UcxStranger(const UcxStranger&) = delete;
  UcxStranger& operator=(const UcxStranger&) = delete;

  void send(unsigned id, Bytes header, Bytes body, unsigned how, bool says_who = true) {
    headers_.push_back(std::move(header));
    bodies_.push_back(std::move(body));
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = how;
    if (says_who) param.flags |= UCP_AM_SEND_FLAG_REPLY;
    sent_.push_back(ucx().ucp_am_send_nbx(endpoint_, id, headers_.back().data(),
                                          headers_.back().size(), bodies_.back().data(),
                                          bodies_.back().size(), &param));
  }
  // Lets UCX do its work until `done` or some seconds have passed.
  bool progress(const std::function<bool()>& done, double seconds = 10) {
    const TimePoint start = SteadyClock::now();
    while (!done() && seconds_since(start) < seconds) {
      (void)ucx().ucp_worker_progress(worker_->get());
    }
    return done();
  }

  bool broken = false;
  std::vector<Bytes> received;

 private:
  static ucs_status_t ignore(void*, const void*, std::size_t, void*, std::size_t,
                             const ucp_am_recv_param_t*) {
    return UCS_OK;
  }
  static ucs_status_t remember(void* self, const void* header, std::size_t header_bytes, void* data,
                               std::size_t bytes, const ucp_am_recv_param_t*) {
    const auto* const first = static_cast<const std::byte*>(header);
    const auto* const second = static_cast<const std::byte*>(data);
    Bytes message(first, first + header_bytes - 8);
    message.insert(message.end(), second, second + bytes);
    static_cast<UcxStranger*>(self)->received.push_back(std::move(message));
    return UCS_OK;
  }
  void finish(ucs_status_ptr_t request) {
    if (!UCS_PTR_IS_PTR(request)) return;
    (void)progress([&] { return ucx().ucp_request_check_status(request) != UCS_INPROGRESS; });
    ucx().ucp_request_free(request);
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<ucs_status_ptr_t> sent_;
  std::deque<Bytes> headers_;
  std::deque<Bytes> bodies_;
};

// The header of a message as UCX carries it.
Bytes numbered(ByteView message, std::uint64_t number) {
  Bytes header(message.begin(), message.begin() + kMessageHeaderBytes);
  header.resize(kUcxMessageHeaderBytes);
  std::memcpy(header.data() + kMessageHeaderBytes, &number, sizeof number);
  return header;
}
Bytes copy_of_body(ByteView message) {
  const ByteView body = message.subspan(kMessageHeaderBytes);
  return {body.begin(), body.end()};
}
Bytes control(std::uint8_t kind, std::uint64_t number = 0) {
  Bytes header = {std::byte{0x8B}, std::byte{'K'}, std::byte{'V'},  std::byte{'U'},
                  std::byte{1},    std::byte{0},   std::byte{kind}, std::byte{0}};
  header.resize(kUcxControlHeaderBytes);
  std::memcpy(header.data() + 8, &number, sizeof number);
  return header;
}
Bytes slab(std::size_t bytes) { return encode_slab(id_of(1), Bytes(bytes, std::byte{7})); }

class UcxStrangers : public ::testing::Test {
 protected:
  UcxStrangers() : network_(testing::network_over({LinkPath::kUcx, 1})) {
    address_ = *network_->listen({"127.0.0.1", 0}, [this](std::shared_ptr<Link> link) {
      links_.push_back(std::move(link));
      return there_;
    });
  }
  ~UcxStrangers() override { network_.reset(); }

  std::vector<std::shared_ptr<Link>> links_;
  std::shared_ptr<RecordingEvents> there_ = std::make_shared<RecordingEvents>();
  Address address_;
  std::unique_ptr<Network> network_;
};

struct Breach {
  const char* name;
  unsigned id;
  Bytes header;
  Bytes body;
  unsigned how;  // 0: as UCX likes
  const char* sentence;
  Code code = Code::kCorrupt;
};

std::vector<Breach> breaches() {
  const Bytes fetch = encode_fetch(id_of(1));
  Bytes flipped = fetch;
  flipped[20] ^= std::byte{1};
  Bytes version = fetch;
  version[4] = std::byte{2};
  const std::uint64_t sum = XXH3_64bits(version.data(), 40);
  std::memcpy(version.data() + 40, &sum, sizeof sum);
  Bytes wrong_magic = control(1);
  wrong_magic[3] = std::byte{'X'};
  constexpr unsigned kEager = UCP_AM_SEND_FLAG_EAGER;
  constexpr unsigned kRendezvous = UCP_AM_SEND_FLAG_RNDV;
  return {
      {"IdZero", 0, numbered(fetch, 1), {}, 0, "id that is not"},
      {"IdThree", 3, numbered(fetch, 1), Bytes(100'000), 0, "id that is not"},
      {"LastId", 65534, numbered(fetch, 1), {}, 0, "id that is not"},
      {"NoHeader", 1, {}, {}, kEager, "a header of 0 bytes"},
      {"ShortHeader", 1, fetch, {}, kEager, "a header of 48 bytes, not 56"},
      {"LongHeader", 1, Bytes(fetch.begin(), fetch.end()), {}, kEager, "a header of"},
      {"OtherProtocol", 1, Bytes(56, std::byte{'G'}), {}, kEager, "does not speak"},
      {"Flipped", 1, numbered(flipped, 1), {}, kEager, "checksum"},
      {"Version", 1, numbered(version, 1), {}, kEager, "version 2", Code::kUnsupported},
      {"MoreThanSaid", 1, numbered(fetch, 1), Bytes(1), kEager, "0 bytes where 1 came"},
      {"LessThanSaid", 1, numbered(slab(100), 1), Bytes(99), kEager, "100 bytes where 99 came"},
      {"LessIsFetched", 1, numbered(slab(100'000), 1), Bytes(99'999), kRendezvous, "99999 came"},
      {"Unasked", 1, numbered(slab(16385), 1), Bytes(16385), kEager, "16385 bytes came unasked"},
      {"Twice", 1, numbered(fetch, 0), {}, kEager, "number 0, which cannot be next"},
      {"FarAhead", 1, numbered(fetch, 1025), {}, kEager, "number 1025"},
      {"Endless", 1, numbered(fetch, ~std::uint64_t{0}), {}, kEager, "number 1844674407370955161"},
      {"NoControl", 2, {}, {}, kEager, "none of those known"},
      {"ShortControl", 2, {std::byte{0x8B}}, {}, kEager, "none of those known"},
      {"OtherControl", 2, wrong_magic, {}, kEager, "none of those known"},
      {"ControlZero", 2, control(0), {}, kEager, "none of those known"},
      {"ControlFive", 2, control(5), {}, kEager, "none of those known"},
      {"ControlWithBody", 2, control(1), Bytes(1), kEager, "none of those known"},
      {"EndInThePast", 2, control(3, 0), {}, kEager, "an end came"},
  };
}

TEST_F(UcxStrangers, BreachesEndTheLinkAndAreTold) {
  for (const Breach& breach : breaches()) {
    SCOPED_TRACE(breach.name);
    there_ = std::make_shared<RecordingEvents>();
    UcxStranger stranger(address_.port);
    const Bytes hello = encode_error(id_of(1), aborted("hello"));
    stranger.send(kUcxMessageId, numbered(hello, 0), copy_of_body(hello), UCP_AM_SEND_FLAG_EAGER);
    ASSERT_TRUE(stranger.progress([&] { return there_->wait_messages(1, 0); }));
    Bytes header = breach.header;
    if (breach.name == std::string("LongHeader")) header.resize(57);
    stranger.send(breach.id, std::move(header), breach.body, breach.how);
    ASSERT_TRUE(stranger.progress([&] { return there_->wait_closed(0); }));
    EXPECT_EQ(there_->closed()->code(), breach.code);
    EXPECT_THAT(there_->closed()->message(), HasSubstr(breach.sentence));
    EXPECT_THAT(there_->closed()->message(), HasSubstr("127.0.0.1:"));
    EXPECT_EQ(there_->messages().size(), 1U);
    ASSERT_TRUE(stranger.progress([&] { return !stranger.received.empty(); }));
    const Result<Message> answer = parse_message(stranger.received[0]);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(answer->header.type, MessageType::kError);
    // As an answer to CLOSE.
    stranger.send(kUcxControlId, control(4), {}, UCP_AM_SEND_FLAG_EAGER);
    EXPECT_TRUE(stranger.progress([&] { return stranger.broken; }));
  }
}

TEST_F(UcxStrangers, TheFirstMessageIsSmall) {
  UcxStranger stranger(address_.port);
  const Bytes message = slab(kControlBodyBytesMax + 1);
  stranger.send(kUcxMessageId, numbered(message, 0), copy_of_body(message), UCP_AM_SEND_FLAG_RNDV);
  ASSERT_TRUE(stranger.progress([&] { return there_->wait_closed(0); }));
  EXPECT_THAT(there_->closed()->message(), HasSubstr("the first message has 65537 bytes"));
  // It does not answer CLOSE, and is left behind all the same.
  EXPECT_TRUE(stranger.progress([&] { return stranger.broken; }, 5));
}

// One that overtakes the first is not fetched before that is here.
TEST_F(UcxStrangers, MessagesThatOvertakeWaitForTheFirst) {
  UcxStranger stranger(address_.port);
  const Bytes second = slab(1 << 20);
  const Bytes first = encode_error(id_of(1), aborted("hello"));
  stranger.send(kUcxMessageId, numbered(second, 1), copy_of_body(second), UCP_AM_SEND_FLAG_RNDV);
  EXPECT_FALSE(stranger.progress([&] { return there_->wait_messages(1, 0); }, 0.2));
  stranger.send(kUcxMessageId, numbered(first, 0), copy_of_body(first), UCP_AM_SEND_FLAG_EAGER);
  ASSERT_TRUE(stranger.progress([&] { return there_->wait_messages(2, 0); }));
  EXPECT_TRUE(there_->messages()[0] == first);
  EXPECT_TRUE(there_->messages()[1] == second);
  // So does an end.
  stranger.send(kUcxControlId, control(3, 3), {}, UCP_AM_SEND_FLAG_EAGER);
  EXPECT_FALSE(stranger.progress([&] { return there_->wait_closed(0); }, 0.2));
  stranger.send(kUcxMessageId, numbered(first, 2), copy_of_body(first), UCP_AM_SEND_FLAG_EAGER);
  ASSERT_TRUE(stranger.progress([&] { return there_->wait_closed(0); }));
  EXPECT_EQ(there_->closed()->code(), Code::kAborted);
  EXPECT_EQ(there_->messages().size(), 3U);
}

// Messages that do not say of which link they are cannot be anybody's.
TEST_F(UcxStrangers, NamelessMessagesAreDropped) {
  UcxStranger stranger(address_.port);
  const Bytes message = encode_error(id_of(1), aborted("hello"));
  stranger.send(kUcxMessageId, numbered(message, 7), copy_of_body(message), 0, false);
  stranger.send(kUcxControlId, control(9), {}, 0, false);
  stranger.send(77, control(9), Bytes(100'000), 0, false);
  stranger.send(kUcxMessageId, numbered(message, 0), copy_of_body(message), 0);
  ASSERT_TRUE(stranger.progress([&] { return there_->wait_messages(1, 0); }));
  EXPECT_FALSE(there_->closed().has_value());
}

}  // namespace
}  // namespace kvlane
