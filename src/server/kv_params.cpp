// Reading and writing kv_transfer_params.
// SPDX-License-Identifier: Apache-2.0
#include "server/kv_params.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "server/http.h"

namespace kvlane {

namespace {

using nlohmann::json;

// remote_engine_id, remote_block_ids and tp_size belong to vLLM's connectors: nothing here depends
// on them.
constexpr std::array<std::string_view, 9> kKnown = {
    "do_remote_decode",  "do_remote_prefill", "transfer_id",
    "remote_request_id", "remote_host",       "remote_port",
    "remote_engine_id",  "remote_block_ids",  "tp_size"};

ApiError wrong(std::string_view field, const std::string& what) {
  const std::string name = "kv_transfer_params." + std::string(field);
  return {400, "'" + name + "' " + what + ".", name, ""};
}

bool present(const json& params, const char* field) {
  return params.contains(field) && !params[field].is_null();
}

std::optional<ApiError> read_flag(const json& params, const char* field, bool& out) {
  if (!present(params, field)) return {};
  if (!params[field].is_boolean()) return wrong(field, "must be true or false");
  out = params[field].get<bool>();
  return {};
}

std::optional<ApiError> read_id(const json& params, TransferId& out) {
  const char* const field = present(params, "transfer_id") ? "transfer_id" : "remote_request_id";
  if (!present(params, field)) return wrong("transfer_id", "is missing");
  if (!params[field].is_string()) return wrong(field, "must be a string");
  const Result<TransferId> id = parse_transfer_id(params[field].get<std::string>());
  if (!id.ok()) return wrong(field, "is not a transfer id of 32 hexadecimal digits");
  if (*id == TransferId()) return wrong(field, "is all zeros, which names no transfer");
  out = *id;
  return {};
}

std::optional<ApiError> read_peer(const json& params, Address& out) {
  if (!present(params, "remote_host")) return wrong("remote_host", "is missing");
  if (!present(params, "remote_port")) return wrong("remote_port", "is missing");
  const json& host = params["remote_host"];
  const json& port = params["remote_port"];
  if (!host.is_string() || host.get<std::string>().empty() ||
      host.get<std::string>().size() > kHostBytesMax) {
    return wrong("remote_host", "must be a host name or address");
  }
  if (!port.is_number_unsigned() || port.get<std::uint64_t>() == 0 ||
      port.get<std::uint64_t>() > 65535) {
    return wrong("remote_port", "must be an integer from 1 to 65535");
  }
  out = {host.get<std::string>(), port.get<std::uint16_t>()};
  return {};
}

}  // namespace

ApiResult<std::optional<KvTransfer>> read_kv_params(const json& params) {
  if (!params.is_object()) {
    return ApiError{400, "'kv_transfer_params' must be an object.", "kv_transfer_params", ""};
  }
  for (const auto& [key, value] : params.items()) {
    const bool known = std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end();
    if (!known && !value.is_null()) return wrong(key.substr(0, 100), "is not known");
  }
  bool remote_decode = false;
  bool remote_prefill = false;
  if (auto error = read_flag(params, "do_remote_decode", remote_decode)) return std::move(*error);
  if (auto error = read_flag(params, "do_remote_prefill", remote_prefill)) return std::move(*error);
  if (!remote_decode && !remote_prefill) return std::optional<KvTransfer>();
  if (remote_decode && remote_prefill) {
    return wrong("do_remote_prefill", "and 'do_remote_decode' cannot both be true");
  }
  KvTransfer transfer;
  transfer.kind = remote_prefill                   ? KvTransfer::Kind::kFetch
                  : present(params, "remote_host") ? KvTransfer::Kind::kPush
                                                   : KvTransfer::Kind::kPark;
  if (transfer.kind == KvTransfer::Kind::kPark) return std::optional(transfer);
  if (auto error = read_id(params, transfer.id)) return std::move(*error);
  if (auto error = read_peer(params, transfer.peer)) return std::move(*error);
  return std::optional(transfer);
}

json push_params(const TransferId& id, const Address& decode_worker) {
  return {{"do_remote_decode", true},
          {"do_remote_prefill", false},
          {"transfer_id", to_string(id)},
          {"remote_host", decode_worker.host},
          {"remote_port", decode_worker.port}};
}

json parked_params(const TransferId& id, const Address& prefill_worker,
                   const std::string& engine_id, int tokens) {
  json blocks = json::array();
  for (int block = 0; block < blocks_for(tokens); ++block) blocks.push_back(block);
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"transfer_id", to_string(id)},
          {"remote_request_id", to_string(id)},
          {"remote_engine_id", engine_id},
          {"remote_block_ids", std::move(blocks)},
          {"remote_host", prefill_worker.host},
          {"remote_port", prefill_worker.port},
          {"tp_size", 1}};
}

}  // namespace kvlane
