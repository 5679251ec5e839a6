// The flags that several subcommands share. They have vLLM's names where it has one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/command_line.h"

namespace kvlane {

// Where state is kept beyond memory and beyond the process.
struct StateFlags {
  std::vector<std::string> directories;  // empty: nowhere
  std::uint64_t bytes_max = 0;           // of each
  std::uint64_t memory = std::uint64_t{256} << 20;
  std::string form = "auto";
  std::string codec = "none";
  std::string direct = "auto";  // on, off
  std::string profile;          // file; empty: beside the store
  std::string key_file;         // empty: not encrypted
};

// Which model, and how it runs.
struct ModelFlags {
  std::string directory;
  std::string kv_format = "bf16";
  std::string kv_evict;    // empty: nothing
  double zack_online = 0;  // share of dimensions; 0: off
  std::string kv_tables;   // file; empty: none
  std::string kv_codec = "none";
  std::string kv_codebook;                               // file; empty: none
  std::uint64_t kv_memory = std::uint64_t{1} << 30;      // bytes
  std::uint64_t host_memory = std::uint64_t{256} << 20;  // bytes
  bool prefix_caching = true;
  int max_model_len = 0;  // 0: the model's own
  int batch_tokens_max = 512;
  int sequences_max = 256;
  double slowdown_max = 2;
  int threads = 0;  // 0: as many as there are cores
  std::string cpu = "auto";
  std::string device = "cpu";
  int tensor_parallel = 1;
  int pipeline_parallel = 1;
  std::string ranks_bind;  // empty: the process starts its ranks itself
  std::string ranks_key;   // of these, where somebody else starts them
  StateFlags state;
};

// Where and how to serve HTTP.
struct ServerFlags {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::string served_model_name;  // empty: the directory's name
  std::string api_key;
  std::string log_level = "warning";
  bool json = false;
};

// What carries KV between workers: TCP, where links of one host may go through shared memory, or
// UCX.
struct TransportFlags {
  std::string name = "tcp";  // or "ucx"
  std::string ucx_devices;   // with commas
};

// The data plane of prefill and decode workers.
struct DataPlaneFlags {
  std::string bind = "127.0.0.1";
  std::uint16_t port = 0;  // any free one
  std::string advertise_host;
  double timeout = 10;                 // seconds
  double lease = 60;                   // seconds
  std::string shared_memory = "auto";  // or "off"
  std::uint32_t streams = 1;           // TCP connections of a link
  TransportFlags transport;
};

// How a prefill worker sends KV.
struct PushFlags {
  std::string granularity = "layer";              // or "whole"
  std::uint64_t memory = std::uint64_t{1} << 30;  // bytes, of frames that wait for decode workers
};

void add_model_flags(Command& command, ModelFlags& flags);
// Those of a process that computes a part of the model: the others are the worker's that it is for.
void add_part_flags(Command& command, ModelFlags& flags);
// Leaves out of --help what workers that send or take KV refuse (check_travels()).
void hide_one_process_flags(Command& command);
// Where a state store is; and for workers, what it keeps.
void add_store_flags(Command& command, StateFlags& flags);
void add_state_flags(Command& command, StateFlags& flags);
void add_server_flags(Command& command, ServerFlags& flags);
// Not for a gateway: it serves what its workers serve.
void add_model_name_flag(Command& command, ServerFlags& flags);
void add_data_plane_flags(Command& command, DataPlaneFlags& flags);
// Whether links to workers of the same host may leave TCP.
void add_shared_memory_flag(Command& command, std::string& shared_memory);
// Over how many TCP connections a link goes.
void add_streams_flag(Command& command, std::uint32_t& streams);
void add_transport_flags(Command& command, TransportFlags& flags);
// That they fit together, with so many connections of a link, and are in this build.
// kInvalidArgument or kUnsupported.
Status check_transport(const TransportFlags& flags, std::uint32_t streams);
void add_push_flags(Command& command, PushFlags& flags);
// Set by `kvlane up` for its children: end when this process is no longer the parent. 0: nobody.
void add_parent_flag(Command& command, int& parent);

// A check for numbers from `min` to `max`. CLI11's own lets "nan" through.
Check number_between(double min, double max);

// A check for limits of a store's directories, in bytes. A number whose unit was forgotten would
// keep nothing.
Check store_limit();

// What gives a child process the same model, the directory first.
std::vector<std::string> to_arguments(const ModelFlags& flags);
std::vector<std::string> to_part_arguments(const ModelFlags& flags);
std::vector<std::string> to_arguments(const StateFlags& flags);
std::vector<std::string> to_arguments(const PushFlags& flags);

// The name clients use: --served-model-name, else the directory's.
std::string model_name(const ModelFlags& model, const ServerFlags& server);

}  // namespace kvlane
