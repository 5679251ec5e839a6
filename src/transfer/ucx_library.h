// UCX's library, which is loaded when the first network over UCX is made: programs start without
// it, and what it does to a process is done to those alone that use it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

#include <string>

#include "kvlane/status.h"

// What is used of it. Inline functions of its headers that call others are not: ucp_init() is
// ucp_init_version().
#define KVLANE_UCX_SYMBOLS(X)       \
  X(ucp_am_data_release)            \
  X(ucp_am_recv_data_nbx)           \
  X(ucp_am_send_nbx)                \
  X(ucp_cleanup)                    \
  X(ucp_config_modify)              \
  X(ucp_config_read)                \
  X(ucp_config_release)             \
  X(ucp_conn_request_query)         \
  X(ucp_ep_close_nbx)               \
  X(ucp_ep_create)                  \
  X(ucp_init_version)               \
  X(ucp_listener_create)            \
  X(ucp_listener_destroy)           \
  X(ucp_listener_query)             \
  X(ucp_listener_reject)            \
  X(ucp_request_check_status)       \
  X(ucp_request_free)               \
  X(ucp_worker_arm)                 \
  X(ucp_worker_create)              \
  X(ucp_worker_destroy)             \
  X(ucp_worker_get_efd)             \
  X(ucp_worker_progress)            \
  X(ucp_worker_set_am_recv_handler) \
  X(ucs_global_opts)                \
  X(ucs_log_push_handler)           \
  X(ucs_status_string)

namespace kvlane {

// Their addresses, by their own names.
struct UcxLibrary {
#define KVLANE_UCX_SYMBOL(name) decltype(&::name) name = nullptr;
  KVLANE_UCX_SYMBOLS(KVLANE_UCX_SYMBOL)
#undef KVLANE_UCX_SYMBOL
};

// kUnavailable where there is no library of that name, or it lacks a symbol. Once loaded it stays
// for as long as the program runs: it has threads and handlers of signals. The latter replace those
// that the process has set before (docs/protocol.md).
Result<UcxLibrary> load_ucx_library(const std::string& name);

// This program's, which the first call loads. From any thread.
const Result<UcxLibrary>& ucx_library();

// The same, for those who know that it is loaded.
inline const UcxLibrary& ucx() { return *ucx_library(); }

}  // namespace kvlane
