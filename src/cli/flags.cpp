// Names, help texts and ranges of the shared flags.
// SPDX-License-Identifier: Apache-2.0
#include "cli/flags.h"

#include <cstdint>
#include <filesystem>
#include <sstream>

#include "codec/codec.h"
#include "quant/kv_format.h"
#include "restore/state_forms.h"
#include "transfer/link.h"
#include "transfer/ucx.h"

namespace kvlane {

namespace {

// Below the least, no block fits; above the most, somebody slipped.
constexpr std::uint64_t kKvMemoryMin = std::uint64_t{1} << 10;
constexpr std::uint64_t kKvMemoryMax = std::uint64_t{1} << 60;

// For values that end up in headers, logs and JSON.
std::string check_printable(const std::string& value) {
  constexpr std::size_t kBytesMax = 200;
  for (const char c : value) {
    if (c < ' ' || c > '~') return "must be printable ASCII";
  }
  if (value.size() > kBytesMax) return "is longer than " + std::to_string(kBytesMax) + " bytes";
  return value.empty() ? "is empty" : std::string();
}

// Range checks of CLI11 let "nan" through.
std::string check_lease(const std::string& value) {
  constexpr double kSecondsMax = 3600;
  double seconds = 0;
  const bool is_number = read_number(value, seconds);
  return is_number && seconds >= 1 && seconds <= kSecondsMax ? std::string()
                                                             : "must be from 1 to 3600 seconds";
}

std::string check_slowdown(const std::string& value) {
  constexpr double kMost = 1000;
  double times = 0;
  const bool is_number = read_number(value, times);
  return is_number && times > 1 && times <= kMost ? std::string()
                                                  : "must be above 1 and at most 1000";
}

void add_directory_flag(Command& command, ModelFlags& flags) {
  command
      .add_option("DIR,--model", flags.directory, "Hugging Face model directory, or a .gguf file")
      .required();
}

void add_tables_flag(Command& command, ModelFlags& flags) {
  command.add_option("--kv-tables", flags.kv_tables,
                     "what `kvlane calibrate tables` wrote for this model, for kvquant and "
                     "cachegen");
}

// What K and V become, in memory and on the way.
void add_kv_flags(Command& command, ModelFlags& flags) {
  command
      .add_option("--kv-format,--kv-cache-dtype", flags.kv_format,
                  "how the KV cache lies in memory, for example bf16, int8 or kivi:bits=4; auto is "
                  "bf16; known: " +
                      std::string(kv_format_names()))
      .transform([](const std::string& name) { return name == "auto" ? "bf16" : name; })
      .capture_default_str();
  command.add_option("--kv-evict", flags.kv_evict,
                     "keep some tokens of each prompt only, for example h2o:keep=0.5 or "
                     "keyformer:keep=0.6; in one process (default: keep all)");
  command
      .add_option(
          "--zack-online", flags.zack_online,
          "ablation: keep this share of the dimensions of each prompt's K and V, along axes "
          "of its own, and make rows again in every step; in bf16, in one process; costs "
          "more than it saves (lab/zack_online); 0: off")
      .check(number_between(0, 1))
      .capture_default_str();
  add_tables_flag(command, flags);
  command
      .add_option(
          "--kv-codec", flags.kv_codec,
          "lossless codec for the KV that this process sends: " + std::string(codec_names()) +
              ", or auto: for each link what its speed asks for")
      .capture_default_str();
  command.add_option("--kv-codebook", flags.kv_codebook,
                     "what `kvlane calibrate codebook` wrote for this model (default: learn from "
                     "what is sent)");
}

// How a process computes.
void add_computing_flags(Command& command, ModelFlags& flags) {
  command
      .add_option("--max-model-len", flags.max_model_len,
                  "most tokens of prompt and answer together (default: the model's own)")
      .check(range(1, INT32_MAX));
  command.add_option("--threads", flags.threads, "threads that compute (default: one per core)")
      .check(range(1, 1024));
  command.add_option("--cpu", flags.cpu, "kernels: auto, scalar, avx2, avx512, avx512_bf16")
      .capture_default_str();
}

// How many processes compute a model, and the secret that they share.
void add_layout_flags(Command& command, ModelFlags& flags) {
  command
      .add_option("--tp,--tensor-parallel-size", flags.tensor_parallel,
                  "processes that share the heads and products of each layer")
      .check(range(1, 1024))
      .capture_default_str();
  command
      .add_option("--pp,--pipeline-parallel-size", flags.pipeline_parallel,
                  "runs of layers that are computed one after another, each by --tp processes")
      .check(range(1, 512))
      .capture_default_str();
  command
      .add_option("--ranks-key", flags.ranks_key,
                  "32 hexadecimal digits that these processes and the worker know; the environment "
                  "variable does not show in lists of processes")
      .envname("KVLANE_RANKS_KEY");
}

}  // namespace

void add_model_flags(Command& command, ModelFlags& flags) {
  add_directory_flag(command, flags);
  add_kv_flags(command, flags);
  command
      .add_option("--kv-memory", flags.kv_memory, "memory for KV blocks, for example 512MiB or 4G")
      .transform(as_size())
      .check(range(kKvMemoryMin, kKvMemoryMax))
      .default_str("1GiB");
  command
      .add_option("--host-memory", flags.host_memory,
                  "memory for blocks that had to leave the KV memory; 0: none")
      .transform(as_size())
      .check(range(std::uint64_t{0}, kKvMemoryMax))
      .default_str("256MiB");
  command
      .add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", flags.prefix_caching,
                "share the blocks of prompts that begin alike (on by default)")
      .default_str("");
  command.add_option("--max-num-seqs", flags.sequences_max, "answers that are computed at once")
      .check(range(1, 4096))
      .capture_default_str();
  command
      .add_option("--max-num-batched-tokens", flags.batch_tokens_max,
                  "most prompt tokens computed in one step")
      .check(range(1, 65536))
      .capture_default_str();
  command
      .add_option("--decode-slowdown", flags.slowdown_max,
                  "how many times longer a running answer's token may take while prompts arrive")
      .check(check_slowdown)
      .capture_default_str();
  add_computing_flags(command, flags);
  command
      .add_option("--device", flags.device,
                  "where the model computes and its KV blocks lie: cpu, cuda, or cuda:N for GPU N")
      .capture_default_str();
  add_layout_flags(command, flags);
  command.add_option("--ranks-bind", flags.ranks_bind,
                     "HOST:PORT where to wait for the processes of --tp and --pp, which are then "
                     "started elsewhere: see `kvlane rank --help` (default: start them here)");
}

void add_part_flags(Command& command, ModelFlags& flags) {
  add_directory_flag(command, flags);
  add_tables_flag(command, flags);
  add_computing_flags(command, flags);
  add_layout_flags(command, flags);
}

// Options of a store say nothing without one, and whoever gives a key and forgets the store
// believes that what is kept is encrypted.
void add_store_flags(Command& command, StateFlags& flags) {
  const Option store = command.add_option(
      "--store", flags.directories,
      "directory of a state store: what leaves memory is kept there and brought back, after a "
      "restart too; several, one a device, are used together");
  command
      .add_option("--store-max", flags.bytes_max,
                  "most bytes on disk in each directory, for example 100GiB; 0: what the disk has")
      .transform(as_size())
      .check(store_limit())
      .needs(store)
      .default_str("0");
  command.add_option("--store-memory", flags.memory, "memory for what was read from the store last")
      .transform(as_size())
      .check(range(std::uint64_t{0}, kKvMemoryMax))
      .needs(store)
      .default_str("256MiB");
  command
      .add_option("--store-key", flags.key_file,
                  "file with 64 hexadecimal digits: what is stored is encrypted with AES-256")
      .needs(store);
}

void add_state_flags(Command& command, StateFlags& flags) {
  add_store_flags(command, flags);
  const Option store = command.get_option("--store");
  command
      .add_option("--store-form", flags.form,
                  "what is stored of each layer: " + std::string(kStateFormNames) +
                      " (what brings long sequences back in the least time here; measured at the "
                      "first start; on a device, and with --tp or --pp, auto is hidden or kv, "
                      "whatever has fewer bytes)")
      .needs(store)
      .capture_default_str();
  command
      .add_option("--store-codec", flags.codec,
                  "lossless codec of stored slabs: " + std::string(codec_names()))
      .needs(store)
      .capture_default_str();
  command
      .add_option(
          "--store-direct", flags.direct,
          "whether slabs without a codec go from the disk to a GPU past the host's memory, by "
          "NVIDIA's cuFile: auto (where that is there), on (or not at all), off")
      .check(one_of({"auto", "on", "off"}))
      .needs(store)
      .capture_default_str();
  command
      .add_option("--store-profile", flags.profile,
                  "profiles of this machine, as `kvlane profile` writes them; what they lack is "
                  "measured and added (default: profiles.json beside the store)")
      .needs(store);
}

void add_server_flags(Command& command, ServerFlags& flags) {
  command.add_option("--host", flags.host, "address to listen on")
      .check(check_printable)
      .capture_default_str();
  command.add_option("--port", flags.port, "port to listen on; 0: any free one")
      .capture_default_str();
  command
      .add_option("--api-key", flags.api_key,
                  "ask for 'Authorization: Bearer KEY'; the environment variable does not show in "
                  "lists of processes")
      .check(check_printable)
      .envname("KVLANE_API_KEY");
  command.add_option("--log-level", flags.log_level, "debug, info (requests), warning, error, off")
      .capture_default_str();
  command.add_flag("--json", flags.json,
                   "when ready, print one line of JSON instead of a sentence");
}

void add_model_name_flag(Command& command, ServerFlags& flags) {
  command
      .add_option("--served-model-name", flags.served_model_name,
                  "what clients call the model (default: the directory's name)")
      .check(check_printable);
}

void add_data_plane_flags(Command& command, DataPlaneFlags& flags) {
  command.add_option("--kv-bind", flags.bind, "address where KV of other workers arrives or leaves")
      .capture_default_str();
  command.add_option("--kv-port", flags.port, "its port; 0: any free one").capture_default_str();
  command
      .add_option("--kv-advertise-host", flags.advertise_host,
                  "what other workers are told instead of --kv-bind")
      .check(check_printable);
  command
      .add_option(
          "--kv-timeout", flags.timeout,
          "seconds without a sign of the other worker: then a transfer has failed; longer "
          "than one slab takes on the link, and than a sixth of what one of each transfer takes")
      .check(number_between(1, 3600))
      .capture_default_str();
  command
      .add_option("--lease", flags.lease,
                  "seconds that parked KV and reservations wait for somebody")
      .check(check_lease)
      .capture_default_str();
  add_shared_memory_flag(command, flags.shared_memory);
  add_streams_flag(command, flags.streams);
  add_transport_flags(command, flags.transport);
}

void add_shared_memory_flag(Command& command, std::string& shared_memory) {
  command
      .add_option("--kv-shared-memory", shared_memory,
                  "auto: between workers of one host and user, KV goes through shared memory; off: "
                  "over TCP everywhere")
      .check(one_of({"auto", "off"}))
      .capture_default_str();
}

void add_streams_flag(Command& command, std::uint32_t& streams) {
  command
      .add_option("--kv-streams", streams,
                  "TCP connections of each link that is opened here, for networks that give one "
                  "only a part of their speed; a link in shared memory has one")
      .check(range(std::uint32_t{1}, kLinkStreamsMax))
      .capture_default_str();
}

void add_transport_flags(Command& command, TransportFlags& flags) {
  command
      .add_option(
          "--kv-transport", flags.name,
          "what carries KV between workers, the same for all: tcp, or ucx on a fabric whose "
          "every member is trusted")
      .check(one_of({"tcp", "ucx"}))
      .capture_default_str();
  command
      .add_option(
          "--kv-ucx-device", flags.ucx_devices,
          "UCX's names of the network devices it uses, with commas (ucx_info -d); it listens "
          "on all of them, and on no others")
      .check(check_printable);
}

Status check_transport(const TransportFlags& flags, std::uint32_t streams) {
  if (flags.name == "ucx" && !has_ucx()) {
    return unsupported(
        "--kv-transport ucx: this build has no UCX: build kvlane where the headers of UCX "
        "1.13 are (Debian's libucx-dev)");
  }
  if (flags.name == "ucx" && flags.ucx_devices.empty()) {
    return invalid_argument(
        "--kv-transport ucx needs --kv-ucx-device: without it UCX would listen on all devices of "
        "this machine");
  }
  if (flags.name != "ucx" && !flags.ucx_devices.empty()) {
    return invalid_argument("--kv-ucx-device '" + flags.ucx_devices +
                            "' is for --kv-transport ucx");
  }
  if (flags.name == "ucx" && streams > 1) {
    return invalid_argument("--kv-streams is for --kv-transport tcp: UCX has lanes of its own");
  }
  return {};
}

void add_push_flags(Command& command, PushFlags& flags) {
  command
      .add_option(
          "--kv-push", flags.granularity,
          "when KV leaves: layer (as soon as a layer's blocks are final) or whole (when the "
          "prompt is computed)")
      .check(one_of({"layer", "whole"}))
      .capture_default_str();
  command
      .add_option("--kv-push-memory", flags.memory,
                  "memory for KV that waits for decode workers; the longest prompt must fit")
      .transform(as_size())
      .check(range(kKvMemoryMin, kKvMemoryMax))
      .default_str("1GiB");
}

void hide_one_process_flags(Command& command) {
  for (const char* name : {"--kv-evict", "--zack-online"}) command.get_option(name).hide();
}

void add_parent_flag(Command& command, int& parent) {
  command.add_option("--parent", parent).hide();  // hidden
}

Check number_between(double min, double max) {
  return [min, max](const std::string& text) {
    double value = 0;
    if (read_number(text, value) && value >= min && value <= max) return std::string();
    std::ostringstream sentence;
    sentence << "must be a number from " << min << " to " << max << ", not '" << text << "'";
    return sentence.str();
  };
}

Check store_limit() {
  return [](const std::string& text) {
    constexpr std::uint64_t kLeast = std::uint64_t{1} << 20;
    std::uint64_t bytes = 0;
    const bool is_number = read_number(text, bytes);
    return is_number && (bytes == 0 || bytes >= kLeast)
               ? std::string()
               : "must be 0 or at least 1MiB, for example 100GiB";
  };
}

std::vector<std::string> to_part_arguments(const ModelFlags& flags) {
  std::vector<std::string> arguments = {flags.directory, "--cpu", flags.cpu};
  const auto add = [&arguments](const char* name, int value) {
    if (value > 0) arguments.insert(arguments.end(), {name, std::to_string(value)});
  };
  if (!flags.kv_tables.empty()) {
    arguments.insert(arguments.end(), {"--kv-tables", flags.kv_tables});
  }
  add("--max-model-len", flags.max_model_len);
  add("--threads", flags.threads);
  add("--tp", flags.tensor_parallel);
  add("--pp", flags.pipeline_parallel);
  return arguments;
}

std::vector<std::string> to_arguments(const ModelFlags& flags) {
  std::vector<std::string> arguments = to_part_arguments(flags);
  arguments.insert(
      arguments.end(),
      {"--kv-format", flags.kv_format, "--kv-codec", flags.kv_codec, "--kv-memory",
       std::to_string(flags.kv_memory), "--host-memory", std::to_string(flags.host_memory),
       "--max-num-seqs", std::to_string(flags.sequences_max), "--max-num-batched-tokens",
       std::to_string(flags.batch_tokens_max), "--decode-slowdown",
       std::to_string(flags.slowdown_max),
       flags.prefix_caching ? "--enable-prefix-caching" : "--no-enable-prefix-caching", "--device",
       flags.device});
  if (!flags.kv_codebook.empty()) {
    arguments.insert(arguments.end(), {"--kv-codebook", flags.kv_codebook});
  }
  return arguments;
}

std::vector<std::string> to_arguments(const StateFlags& flags) {
  std::vector<std::string> arguments;
  if (flags.directories.empty()) return arguments;
  for (const std::string& directory : flags.directories) {
    arguments.insert(arguments.end(), {"--store", directory});
  }
  arguments.insert(arguments.end(), {"--store-max", std::to_string(flags.bytes_max),
                                     "--store-memory", std::to_string(flags.memory)});
  if (!flags.key_file.empty()) {
    arguments.insert(arguments.end(), {"--store-key", flags.key_file});
  }
  return arguments;
}

std::vector<std::string> to_arguments(const PushFlags& flags) {
  return {"--kv-push", flags.granularity, "--kv-push-memory", std::to_string(flags.memory)};
}

std::string model_name(const ModelFlags& model, const ServerFlags& server) {
  if (!server.served_model_name.empty()) return server.served_model_name;
  std::error_code ignored;
  const auto path = std::filesystem::weakly_canonical(model.directory, ignored);
  return (path.empty() ? std::filesystem::path(model.directory) : path).filename().string();
}

}  // namespace kvlane
