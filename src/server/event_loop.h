// The one thread on which a process's HTTP coroutines run.
//
// Everything of src/server that is a coroutine runs on it, one at a time between two co_awaits, so
// that handlers need no locks. Work that takes long (the engine's) happens elsewhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>

namespace kvlane {

namespace asio = boost::asio;

// Starts its thread at once. Must outlive everything that uses its executor, callbacks of other
// threads included. The destructor stops the loop, drops what is still suspended and joins.
class EventLoop {
 public:
  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  asio::any_io_executor executor() const;

  // Runs `task` on the loop and returns when it has. Not to be called from the loop itself.
  void run(std::function<void()> task) const;
  // The same for a coroutine; an exception it lets out ends the process, as in any thread.
  void run_coroutine(std::function<asio::awaitable<void>()> task) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvlane
