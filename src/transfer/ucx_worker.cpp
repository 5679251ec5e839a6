// Active messages and nothing else: with remote memory access a peer could write where it likes.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx_worker.h"

#include <array>
#include <cstdio>
#include <mutex>

#include "transfer/ucx_library.h"

namespace kvlane {
namespace {

// Verbs of InfiniBand, and TCP for devices that have nothing better. Neither UCX's shared memory,
// which it does not use where deaths are to be noticed, nor what would find memory of GPUs.
constexpr const char* kTransports = "ib,tcp";

// What UCX has to say of devices while this thread makes a context.
thread_local std::string* heard_here = nullptr;
// UCX's log goes nowhere else, unless somebody has set UCX_LOG_LEVEL.
bool log_wanted = false;

ucs_log_func_rc_t hear(const char*, unsigned, const char*, ucs_log_level_t level,
                       const ucs_log_component_config_t*, const char* message, va_list arguments) {
  if (heard_here != nullptr && level <= UCS_LOG_LEVEL_WARN) {
    std::array<char, 512> text{};
    va_list copy;
    va_copy(copy, arguments);
    (void)std::vsnprintf(text.data(), text.size(), message, copy);
    va_end(copy);
    if (std::string_view(text.data()).find("device '") != std::string_view::npos) {
      *heard_here = text.data();
    }
  }
  return log_wanted ? UCS_LOG_FUNC_RC_CONTINUE : UCS_LOG_FUNC_RC_STOP;
}

// Once for the process.
void silence_ucx() {
  static std::once_flag once;
  std::call_once(once, [] {
    log_wanted = ucx().ucs_global_opts->log_component.log_level != UCS_LOG_LEVEL_WARN;
    ucx().ucs_log_push_handler(hear);
  });
}

Status not_made(const std::string& devices, ucs_status_t status, const std::string& heard) {
  return unavailable("UCX cannot use the devices '" + devices + "': " + ucx_text(status) +
                     (heard.empty() ? "" : " (" + heard + ")"));
}

}  // namespace

std::string ucx_text(ucs_status_t status) { return ucx().ucs_status_string(status); }

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const std::string& devices) {
  KVLANE_TRY(ucx_library().status());
  silence_ucx();
  std::unique_ptr<UcxWorker> worker(new UcxWorker());
  KVLANE_TRY(worker->start(devices));
  return worker;
}

UcxWorker::~UcxWorker() {
  if (worker_ != nullptr) ucx().ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucx().ucp_cleanup(context_);
}

Status UcxWorker::start(const std::string& devices) {
  KVLANE_TRY(open_context(devices));
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx().ucp_worker_create(context_, &params, &worker_);
  if (status == UCS_OK) status = ucx().ucp_worker_get_efd(worker_, &descriptor_);
  return status == UCS_OK ? Status() : not_made(devices, status, {});
}

Status UcxWorker::set_handler(unsigned id, ucp_am_recv_callback_t handler, void* loop) {
  ucp_am_handler_param_t params{};
  params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG;
  params.id = id;
  params.cb = handler;
  params.arg = loop;
  const ucs_status_t status = ucx().ucp_worker_set_am_recv_handler(worker_, &params);
  if (status == UCS_OK) return {};
  return unavailable("UCX takes no handler of messages with id " + std::to_string(id) + ": " +
                     ucx_text(status));
}

Status UcxWorker::open_context(const std::string& devices) {
  // Also what the environment says (UCX_...), for those who tune a fabric.
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx().ucp_config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return not_made(devices, status, {});
  status = ucx().ucp_config_modify(config, "NET_DEVICES", devices.c_str());
  if (status == UCS_OK) status = ucx().ucp_config_modify(config, "TLS", kTransports);
  // Over TCP UCX aborts the process when a peer that closed has an acknowledgement of written
  // memory on its way still (tcp_ep.c, 1.13 and later). Active messages need none. The first name
  // is that of later versions; one that means nothing is passed over.
  for (const char* const name : {"TCP_PUT_ENABLE", "PUT_ENABLE"}) {
    if (status == UCS_OK) status = ucx().ucp_config_modify(config, name, "n");
  }
  std::string heard;
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
    params.name = "kvlane";
    heard_here = &heard;
    status = ucx().ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
    heard_here = nullptr;
  }
  ucx().ucp_config_release(config);
  // UCX goes on without a device that is not there.
  if (status == UCS_OK && !heard.empty()) status = UCS_ERR_NO_DEVICE;
  return status == UCS_OK ? Status() : not_made(devices, status, heard);
}

}  // namespace kvlane
