// `kvlane bench transfer`: a prompt's KV over a link, with each codec.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <iostream>
#include <memory>

#include "bench/transfer_bench.h"
#include "cli/bench.h"
#include "cli/flags.h"
#include "codec/codec.h"
#include "engine/codec_choice.h"

namespace kvlane {
namespace {

struct BenchTransferFlags {
  TransferBenchOptions options;
  std::string directory;
  std::string text;
  std::string listen, send_to;
  std::string cpu = "auto";
  std::string shared_memory = "auto";
  TransportFlags transport;
  bool json = false;
};

Result<Address> parse_host_port(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !read_number(text.substr(colon + 1), port) || port < 0 ||
      port > UINT16_MAX) {
    return invalid_argument("'" + text + "' is no HOST:PORT");
  }
  return Address{text.substr(0, colon), static_cast<std::uint16_t>(port)};
}

Status run_bench_transfer(const BenchTransferFlags& flags, const std::string& typed) {
  TransferBenchOptions options = flags.options;
  options.directory = flags.directory;
  options.text = flags.text;
  options.shared_memory = flags.shared_memory == "auto";
  KVLANE_TRY(check_transport(flags.transport, flags.options.streams));
  options.ucx_devices = flags.transport.ucx_devices;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  for (const std::string& codec : options.codecs) {
    if (codec != kAutoCodec) KVLANE_TRY(find_codec(codec, options.isa).status());
  }
  if (!flags.listen.empty()) {
    KVLANE_ASSIGN(options.listen, parse_host_port(flags.listen));
  }
  if (!flags.send_to.empty()) {
    KVLANE_ASSIGN(options.send_to, parse_host_port(flags.send_to));
  }
  if (options.listen && options.send_to) {
    return invalid_argument("--listen and --send-to are for two processes");
  }
  if (options.send_to && options.send_to->port == 0) {
    return invalid_argument("--send-to needs the port at which the other process listens");
  }
  if (!options.listen && (flags.directory.empty() || flags.text.empty())) {
    return invalid_argument("whoever sends needs a model directory and --text");
  }
  options.listening = [](const Address& address) {
    std::cout << "listening at " << to_string(address) << std::endl;
  };
  KVLANE_ASSIGN(Report report, measure_with_progress("bench transfer", options, bench_transfer));
  print_report(std::move(report), "kvlane bench transfer " + typed, flags.json);
  return {};
}

}  // namespace

void add_bench_transfer(Command& bench) {
  Command command = bench.add_subcommand(
      "transfer", "A prompt's KV from worker to worker, with each codec in turn");
  command.footer(
      "Examples: kvlane bench transfer models/kvlane-tiny-gqa --text README.md --tokens 1024\n"
      "          on one machine  kvlane bench transfer --listen 10.0.0.2:7411\n"
      "          on another one  kvlane bench transfer DIR --text FILE --send-to 10.0.0.2:7411\n"
      "Both ends need the same --codecs, --tokens, --layers and --rounds.");
  const auto flags = std::make_shared<BenchTransferFlags>();
  TransferBenchOptions& options = flags->options;
  command.add_option("DIR,--model", flags->directory, "model whose K and V are sent");
  command.add_option("--text", flags->text, "text that it reads");
  command.add_option("--codecs", options.codecs, "in turn; the first is what others compare with")
      .delimiter(',')
      .capture_default_str();
  command.add_option("--tokens", options.tokens, "of the prompt, which has Llama 3.1 8B's shape")
      .check(range(1, 1 << 20))
      .capture_default_str();
  command.add_option("--layers", options.layers, "of that shape")
      .check(range(1, 1024))
      .capture_default_str();
  command.add_option("--rounds", options.rounds, "medians are over so many runs of all codecs")
      .check(range(1, 1000))
      .capture_default_str();
  command.add_option("--listen", flags->listen,
                     "HOST:PORT: receive here, from another process; port 0 is any. The address is "
                     "printed first, on a line of its own, before what --json prints");
  command.add_option("--send-to", flags->send_to, "HOST:PORT: the other process listens there");
  add_shared_memory_flag(command, flags->shared_memory);
  add_streams_flag(command, options.streams);
  add_transport_flags(command, flags->transport);
  command.add_flag("--shaped", options.shaped, "the link is the bottleneck: goals for that");
  command.add_option("--cpu", flags->cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--json", flags->json, "one JSON object instead of a table");
  command.action([flags, command] { return run_bench_transfer(*flags, command.typed_options()); });
}

}  // namespace kvlane
