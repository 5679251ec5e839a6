// What every file with coroutines includes, and the rules for writing them.
//
// g++ 12 miscompiles some co_await expressions without a warning (double frees at run time). What
// avoids all known cases: one co_await per full expression, its operands named locals or simple
// temporaries; no braced aggregate, no ?: and no lambda-to-std::function conversion in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace kvlane {
namespace asio = boost::asio;
}  // namespace kvlane

// Asio's frames have an operator new of their own; g++ 12 sees only the matching delete inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif
