// kv_transfer_params: how routers tell workers where KV comes from and goes to. The fields are
// vLLM's, so that routers written for it work; what each means here: docs/protocol.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "server/api_error.h"
#include "transfer/endpoint.h"

namespace kvlane {

struct KvTransfer {
  enum class Kind {
    kPush,   // prefill here and push the KV to `peer`, which expects `id`
    kPark,   // prefill here and keep the KV until somebody fetches it
    kFetch,  // decode here what is parked at `peer` under `id`
  };
  Kind kind = Kind::kPark;
  TransferId id;  // not with kPark: the worker chooses
  Address peer;   // not with kPark
};

// Nothing when the object asks for no transfer. The error names the field.
ApiResult<std::optional<KvTransfer>> read_kv_params(const nlohmann::json& params);

// What asks a prefill worker to push to `decode_worker`.
nlohmann::json push_params(const TransferId& id, const Address& decode_worker);

// What a prefill worker answers when the KV of `tokens` tokens is parked: a router passes it on to
// a decode worker unchanged.
nlohmann::json parked_params(const TransferId& id, const Address& prefill_worker,
                             const std::string& engine_id, int tokens);

}  // namespace kvlane
