// UCX's context and worker, the settings they are made with, and its errors as sentences.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transfer/ucx.h"

namespace kvlane {

// Active messages of spec/transfer.md, section 12.
inline constexpr unsigned kUcxMessageId = 1;
inline constexpr unsigned kUcxControlId = 2;
inline constexpr unsigned kUcxIds = 65536;  // that a message can have

class UcxConnection;

// One context with one worker, both gone with it. Calls of UCX come from one thread at a time.
class UcxWorker {
 public:
  // kUnavailable without UCX's library, or when it cannot use the devices.
  static Result<std::unique_ptr<UcxWorker>> create(const std::string& devices);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // `loop` is given to each call.
  Status set_handler(unsigned id, ucp_am_recv_callback_t handler, void* loop);

  ucp_worker_h get() const { return worker_; }
  // Readable when there is something to do, once ucp_worker_arm() said so. UCX's own.
  int descriptor() const { return descriptor_; }

 private:
  UcxWorker() = default;
  Status start(const std::string& devices);
  Status open_context(const std::string& devices);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int descriptor_ = -1;
};

// What a network shares with its connections, which may outlive it, ended. Options, `io` and
// `accepted` from any thread, all else on the network's.
struct UcxLoop {
  explicit UcxLoop(const UcxOptions& ucx_options) : options(ucx_options) {}
  const UcxOptions options;
  boost::asio::io_context io{1};
  std::atomic<int> accepted = 0;
  std::unique_ptr<UcxWorker> worker;  // null once the network has ended
  std::unordered_map<ucp_ep_h, UcxConnection*> by_endpoint;
  // Of which something is to be done. Has room for all: nothing may throw inside UCX.
  std::vector<std::shared_ptr<UcxConnection>> changed;
};

// "Connection reset by remote peer".
std::string ucx_text(ucs_status_t status);

}  // namespace kvlane
