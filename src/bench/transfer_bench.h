// `kvlane bench transfer`: a long prompt's KV from one worker to another, with each codec:
// the real sender, endpoints and receiver of the engine, without the computation around them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "format/shape.h"
#include "kvlane/status.h"
#include "transfer/link.h"

namespace kvlane {

// The KV of Llama 3.1 8B.
inline constexpr KvShape kTransferBenchShape{.layers = 32, .kv_heads = 8, .head_dim = 128};

struct TransferBenchOptions {
  std::filesystem::path directory;  // model whose values are sent
  std::filesystem::path text;       // what it reads
  std::vector<std::string> codecs = {"none", "splitzip", "splitzip:channel", "auto"};  // see below
  int tokens = 8192;  // of the prompt
  int layers = kTransferBenchShape.layers;
  int rounds = 5;  // of all codecs in turn, after one in which the receiver checks what arrives
  Isa isa = Isa::kScalar;
  // Both: this process is the one end only, the other runs elsewhere with the same codecs, tokens,
  // layers and rounds. The receiver needs neither model nor text.
  std::optional<Address> listen;   // receive here; port 0: any
  std::optional<Address> send_to;  // from here to there
  // The link is what limits: then the goal is the ratio of bytes, else not to be slower.
  bool shaped = false;
  // Links between processes of this host may leave TCP, if both ends say so.
  bool shared_memory = true;
  std::uint32_t streams = 1;  // TCP connections of the link, as the sender opens it
  std::string ucx_devices;    // empty: over TCP, else over UCX on these
  std::function<void(std::string_view)> progress;
  std::function<void(const Address&)> listening;  // the receiver of another process is ready
};

// The first codec is what the others are compared with. kCorrupt if something else arrives than was
// sent, with any codec. The report of a receiver has the time of its processor only.
Result<Report> bench_transfer(const TransferBenchOptions& options);

}  // namespace kvlane
