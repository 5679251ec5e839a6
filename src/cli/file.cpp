// `kvlane file encode` and `kvlane file decode`: tensors on disk, losslessly smaller.
// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/streams.h"
#include "cli/command.h"
#include "cli/file_summary.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "cpu/isa.h"
#include "tensors/rows.h"
#include "tensors/tensor_file.h"

namespace kvlane {
namespace {

constexpr const char* kExtension = ".kvl";
constexpr int kThreadsMax = 1024;

// What both directions have.
struct FileFlags {
  std::string path;
  std::string out;  // empty: follows from the path; "-": standard output
  int threads = 0;
  std::string cpu = "auto";
  bool force = false;
  bool verbose = false;
  bool json = false;
};

struct EncodeFlags : FileFlags {
  std::string codec = "splitzip:channel";
  std::string kind = "auto";
  std::string type;
  std::vector<std::uint64_t> shape;
  std::uint32_t row = 0;
};

struct DecodeFlags : FileFlags {
  bool check = false;
};

Result<TensorFileWork> work_of(const FileFlags& flags, Progress& progress,
                               const EndingSignals& signals) {
  TensorFileWork work;
  KVLANE_ASSIGN(work.isa, select_isa(flags.cpu));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  work.threads = flags.threads > 0 ? flags.threads : cores;
  work.progress = progress.counter();
  work.stopped = [&signals] {
    pollfd entry{signals.descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  };
  return work;
}

// Runs `code` into the sink that the flags ask for; gives a file its name only if all went well.
template <class Code>
Result<TensorFileSummary> write_out(const std::string& out, bool force, const Code& code) {
  if (out == "-") {
    StandardOutput sink;
    return code(sink);
  }
  KVLANE_ASSIGN(OutputFile sink, OutputFile::create(out, force));
  KVLANE_ASSIGN(TensorFileSummary summary, code(sink));
  KVLANE_TRY(sink.commit());
  return summary;
}

std::optional<ElementType> type_called(const std::string& name) {
  for (const ElementType type :
       {ElementType::kBf16, ElementType::kFp16, ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    if (name == element_name(type)) return type;
  }
  return std::nullopt;
}

std::optional<TensorFileKind> kind_called(const std::string& name) {
  for (const TensorFileKind kind :
       {TensorFileKind::kRaw, TensorFileKind::kNpy, TensorFileKind::kSafetensors}) {
    if (name == kind_name(kind)) return kind;
  }
  return std::nullopt;
}

PlaneCodec codec_called(const std::string& name) {
  for (const PlaneCodec codec : {PlaneCodec::kNone, PlaneCodec::kSplitZip}) {
    if (name == plane_codec_name(codec)) return codec;
  }
  return PlaneCodec::kSplitZipChannel;
}

Status encode_file(const EncodeFlags& flags) {
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  KVLANE_ASSIGN(InputFile original, InputFile::open(flags.path));
  const TensorFileEncoding encoding{.original = {.kind = kind_called(flags.kind),
                                                 .type = type_called(flags.type),
                                                 .shape = flags.shape},
                                    .codec = codec_called(flags.codec),
                                    .row_elements = flags.row};
  const std::string out = flags.out.empty() ? flags.path + kExtension : flags.out;
  Result<TensorFileSummary> summary = internal_error("nothing was encoded");
  {
    Progress progress("encoding " + flags.path);
    KVLANE_ASSIGN(const TensorFileWork work, work_of(flags, progress, signals));
    summary = write_out(out, flags.force, [&](ByteSink& sink) {
      auto encoded = encode_tensor_file(original, encoding, work, sink);
      return encoded.ok() ? encoded : encoded.status().with_context(flags.path);
    });
  }
  if (!summary.ok()) return summary.status();
  const FileSummary shown{flags.path, out, *summary, seconds_since(start)};
  print_file_summary(shown, {.json = flags.json,
                             .verbose = flags.verbose,
                             .encoded = true,
                             .with_codec = encoding.codec != PlaneCodec::kNone});
  return {};
}

// FILE without ".kvl".
Result<std::string> decoded_name(const DecodeFlags& flags) {
  if (!flags.out.empty() || flags.check) return flags.out;
  if (flags.path != "-" && flags.path.ends_with(kExtension)) {
    return flags.path.substr(0, flags.path.size() - std::string_view(kExtension).size());
  }
  return invalid_argument("say with --out what to call the file that is in " + flags.path);
}

Status decode_file(const DecodeFlags& flags) {
  const TimePoint start = SteadyClock::now();
  KVLANE_ASSIGN(const EndingSignals signals, EndingSignals::install());
  KVLANE_ASSIGN(const std::string out, decoded_name(flags));
  KVLANE_ASSIGN(InputFile file, InputFile::open(flags.path));
  Result<TensorFileSummary> summary = internal_error("nothing was decoded");
  {
    Progress progress((flags.check ? "checking " : "decoding ") + flags.path);
    KVLANE_ASSIGN(const TensorFileWork work, work_of(flags, progress, signals));
    const auto code = [&](ByteSink& sink) {
      auto decoded = decode_tensor_file(file, work, sink);
      return decoded.ok() ? decoded : decoded.status().with_context(flags.path);
    };
    NullSink nowhere;
    summary = flags.check ? code(nowhere) : write_out(out, flags.force, code);
  }
  if (!summary.ok()) return summary.status();
  const FileSummary shown{flags.path, out, *summary, seconds_since(start)};
  print_file_summary(shown, {.json = flags.json, .verbose = flags.verbose});
  return {};
}

void add_common_flags(Command& command, FileFlags& flags) {
  command.add_option("--threads", flags.threads, "threads that work (default: one per core)")
      .check(range(1, kThreadsMax));
  command.add_option("--cpu", flags.cpu, "kernels: auto, or a tier of `kvlane version -v`")
      .capture_default_str();
  command.add_flag("--force", flags.force, "write over a file of that name");
  command.add_flag("--verbose,-v", flags.verbose, "what became of each tensor");
  command.add_flag("--json", flags.json, "summary as one JSON object");
}

void add_file_encode(Command& parent) {
  Command command =
      parent.add_subcommand("encode", "Write FILE.kvl, from which FILE comes back byte for byte");
  command.footer("Example: kvlane file encode model.safetensors");
  const auto flags = std::make_shared<EncodeFlags>();
  command.add_option("FILE", flags->path, "safetensors, .npy, or raw values").required();
  command.add_option("--out", flags->out, "file to write, - for standard output (FILE.kvl)");
  command.add_option("--codec", flags->codec, "of bfloat16: splitzip:channel, splitzip or none")
      .check(one_of({"splitzip:channel", "splitzip", "none"}))
      .capture_default_str();
  command.add_option("--kind", flags->kind, "what FILE is: auto, safetensors, npy or raw")
      .check(one_of({"auto", "safetensors", "npy", "raw"}))
      .capture_default_str();
  command
      .add_option("--dtype", flags->type,
                  "of raw values, and of .npy whose type NumPy does not know: bf16, fp16, "
                  "fp8_e4m3 or fp8_e5m2")
      .check(one_of({"bf16", "fp16", "fp8_e4m3", "fp8_e5m2"}));
  command.add_option("--shape", flags->shape, "of raw values, for example 32,8,1000,128")
      .delimiter(',')
      .one_value_each();
  command
      .add_option("--row", flags->row,
                  "values that one token has, one behind the other (default: tried out)")
      .check(range(std::uint32_t{1}, kRowElementsMax));
  add_common_flags(command, *flags);
  command.action([flags] { return encode_file(*flags); });
}

void add_file_decode(Command& parent) {
  Command command = parent.add_subcommand("decode", "Give back the file that is in FILE.kvl");
  command.footer("Example: kvlane file decode model.safetensors.kvl");
  const auto flags = std::make_shared<DecodeFlags>();
  command.add_option("FILE", flags->path, "what `kvlane file encode` wrote, - for standard input")
      .required();
  const Option out = command.add_option("--out", flags->out,
                                        "file to write, - for standard output (FILE without .kvl)");
  command.add_flag("--check", flags->check, "write nothing: only say whether all of it is right")
      .excludes(out);
  add_common_flags(command, *flags);
  command.action([flags] { return decode_file(*flags); });
}

}  // namespace

void add_file(Command& app) {
  Command command = app.add_subcommand(
      "file", "Make files of tensors smaller without losing a bit, and give them back");
  command.require_subcommand();
  command.footer("Example: kvlane file encode model.safetensors");
  add_file_encode(command);
  add_file_decode(command);
}

}  // namespace kvlane
