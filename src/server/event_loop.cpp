// The loop's thread.
// SPDX-License-Identifier: Apache-2.0
#include "server/event_loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <exception>
#include <future>
#include <thread>

#include "server/coroutine.h"

namespace kvlane {

struct EventLoop::Impl {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::thread thread;
};

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {
  impl_->thread = std::thread([this] { impl_->context.run(); });
}

EventLoop::~EventLoop() {
  impl_->context.stop();
  impl_->thread.join();
}

asio::any_io_executor EventLoop::executor() const { return impl_->context.get_executor(); }

void EventLoop::run(std::function<void()> task) const {
  std::promise<void> done;
  asio::post(impl_->context, [&task, &done] {
    task();
    done.set_value();
  });
  done.get_future().wait();
}

void EventLoop::run_coroutine(std::function<asio::awaitable<void>()> task) const {
  std::promise<void> done;
  asio::co_spawn(impl_->context, task, [&done](std::exception_ptr error) {
    if (error) std::rethrow_exception(error);
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace kvlane
