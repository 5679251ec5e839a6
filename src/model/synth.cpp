// Random weights from counters, written piece by piece by a few threads.
// SPDX-License-Identifier: Apache-2.0
#include "model/synth.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "base/file.h"
#include "base/random.h"
#include "model/config.h"
#include "model/layout.h"
#include "model/tokenizer_parts.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

// Elements that one thread makes and writes at a time: 2-4 MiB, a size that disks like.
constexpr std::uint64_t kPieceElements = std::uint64_t{1} << 20;
// The work is bound by arithmetic up to a few cores, then by the disk.
constexpr unsigned kThreadsMax = 8;
// The width at which initializer_range is taken literally.
constexpr double kReferenceWidth = 4096;

// The nearest binary16, halves to even; overflow goes to infinity. `value` is finite. Only needed
// here: the library itself never narrows to binary16.
fp16 to_fp16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude < 0x38800000U) {  // below 2^-14: subnormal, in steps of 2^-24
    const auto steps = static_cast<std::uint32_t>(std::lrintf(std::fabs(value) * 0x1p24F));
    return {static_cast<std::uint16_t>(sign | steps)};
  }
  const std::uint32_t rounded = (magnitude + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  return {static_cast<std::uint16_t>(sign | std::min(rounded - (112U << 10), 0x7c00U))};
}

void store(float value, float& to) { to = value; }
void store(float value, bf16& to) { to = to_bf16(value); }
void store(float value, fp16& to) { to = to_fp16(value); }

// One tensor of the file to be written.
struct Target {
  TensorSpec spec;
  std::uint64_t file_offset = 0;
  std::uint32_t stream = 0;  // which random numbers of the seed are its own
  double deviation = 0;      // 0: all ones, but biases zeros
};

// A run of one tensor's elements. `first` is even.
struct Piece {
  const Target* target = nullptr;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

// The sum of the four 16-bit halves of two words is close enough to a Gaussian (no value beyond 3.5
// deviations), and unlike one made with log and cos it has the same bits with every C library.
constexpr double kBellMean = 2 * 65535.0;
constexpr double kBellDeviation = 37837.227;  // sqrt(4 * (65536^2 - 1) / 12)

float bell(std::uint32_t a, std::uint32_t b, float scale) {
  const std::uint32_t sum = (a & 0xffffU) + (a >> 16) + (b & 0xffffU) + (b >> 16);
  return (static_cast<float>(sum) - static_cast<float>(kBellMean)) * scale;
}

template <class T>
void fill_bell(const Piece& piece, std::uint64_t seed, std::span<T> values) {
  const auto scale = static_cast<float>(piece.target->deviation / kBellDeviation);
  for (std::uint64_t i = 0; i < piece.count; i += 2) {
    const std::uint64_t pair = (piece.first + i) / 2;
    const PhiloxCounter words =
        philox4x32(seed, {static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
                          piece.target->stream, 0});
    store(bell(words[0], words[1], scale), values[i]);
    if (i + 1 < piece.count) store(bell(words[2], words[3], scale), values[i + 1]);
  }
}

// `buffer` has room for kPieceElements of any type; returns the bytes of the piece inside it.
ByteView fill(const Piece& piece, std::uint64_t seed, std::span<std::byte> buffer) {
  const auto make = [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const std::span<T> values(reinterpret_cast<T*>(buffer.data()), piece.count);
    if (piece.target->deviation > 0) {
      fill_bell(piece, seed, values);
    } else {
      const bool bias = piece.target->spec.name.ends_with(".bias");
      for (T& value : values) store(bias ? 0.0F : 1.0F, value);
    }
    return std::as_bytes(values);
  };
  switch (piece.target->spec.type) {
    case ElementType::kBf16: return make(static_cast<bf16*>(nullptr));
    case ElementType::kFp16: return make(static_cast<fp16*>(nullptr));
    default: break;  // kF32: options name no other
  }
  return make(static_cast<float*>(nullptr));
}

// Tensors whose products are added to the residual stream.
std::set<std::string> output_names(const ModelConfig& config) {
  std::set<std::string> names;
  for (const LayerLayout& layer : model_layout(config).layers) {
    for (const ProductLayout* product : {&layer.attention_out, &layer.ffn_out}) {
      for (const TensorRows& part : product->weights) names.insert(part.name);
    }
  }
  return names;
}

// The standard deviation of a tensor's elements; 0 for norms and biases.
double deviation_of(const TensorSpec& spec, bool is_output, double initializer_range, int layers) {
  if (spec.shape.size() == 1) return 0;
  const double at_width =
      initializer_range * std::sqrt(kReferenceWidth / static_cast<double>(spec.shape[1]));
  return is_output ? at_width / std::sqrt(2.0 * layers) : at_width;
}

// The configuration as it will be written, and as parsed.
struct Plan {
  std::string config_text;
  ModelConfig config;
  double initializer_range = 0.02;
};

Result<Plan> make_plan(const SynthOptions& options) {
  KVLANE_TRY(parse_model_config(options.config_json).status());
  auto json = nlohmann::ordered_json::parse(options.config_json, nullptr, false);
  if (options.layers != 0) {
    json["num_hidden_layers"] = options.layers;
    // A list with one entry per layer; parse_model_config has seen that all are the same.
    if (const auto types = json.find("layer_types"); types != json.end() && types->is_array()) {
      *types = std::vector<std::string>(static_cast<std::size_t>(std::max(options.layers, 0)),
                                        "full_attention");
    }
  }
  if (options.type) {
    json.erase("dtype");
    switch (*options.type) {
      case ElementType::kF32: json["torch_dtype"] = "float32"; break;
      case ElementType::kBf16: json["torch_dtype"] = "bfloat16"; break;
      case ElementType::kFp16: json["torch_dtype"] = "float16"; break;
      default: break;
    }
  }
  Plan plan;
  plan.config_text = json.dump(2) + "\n";
  KVLANE_ASSIGN(plan.config, parse_model_config(plan.config_text));
  if (const auto range = json.find("initializer_range"); range != json.end()) {
    if (!range->is_number() || !(range->get<double>() > 0 && range->get<double>() <= 1)) {
      return invalid_argument("initializer_range is " + range->dump() + ", not in (0, 1]");
    }
    plan.initializer_range = range->get<double>();
  }
  return plan;
}

// A file under a temporary name, for writes at any offset from several threads. Removed by the
// destructor unless commit() has given it its real name.
class PartialFile {
 public:
  explicit PartialFile(fs::path path)
      : path_(std::move(path)),
        temporary_(path_.string() + ".partial"),
        fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                   S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH)) {
    if (fd_ < 0) open_error_ = errno;
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;
  ~PartialFile() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
  }

  Status status() const { return fd_ < 0 ? failure("create", open_error_) : Status(); }

  Status write_at(std::uint64_t offset, ByteView bytes) const {
    while (!bytes.empty()) {
      const ssize_t put = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return failure("write", errno);
      bytes = bytes.subspan(static_cast<std::size_t>(put));
      offset += static_cast<std::uint64_t>(put);
    }
    return {};
  }

  Status commit() {
    // Some file systems report a full disk only here.
    if (::close(std::exchange(fd_, -1)) != 0) return failure("close", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("rename", errno);
    return {};
  }

 private:
  Status failure(const char* verb, int error) const {
    std::string message =
        std::string("cannot ") + verb + " " + temporary_.string() + ": " + std::strerror(error);
    if (error == ENOSPC || error == EDQUOT) return exhausted(std::move(message));
    return invalid_argument(std::move(message));
  }

  fs::path path_;
  fs::path temporary_;
  int fd_;
  int open_error_ = 0;
};

// Makes and writes pieces on several threads until all are done or one fails.
class Writer {
 public:
  Writer(const PartialFile& file, const SynthOptions& options, std::span<const Target> targets)
      : file_(file), options_(options) {
    for (const Target& target : targets) {
      const std::uint64_t elements = target.spec.elements();
      total_bytes_ += target.spec.bytes();
      for (std::uint64_t at = 0; at < elements; at += kPieceElements) {
        pieces_.push_back({&target, at, std::min(kPieceElements, elements - at)});
      }
    }
  }

  Status run() {
    const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
    std::vector<std::thread> helpers;
    try {
      for (unsigned i = 1; i < std::min(cores, kThreadsMax); ++i) {
        helpers.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      // No more threads to be had: those that started, and this one, do the work.
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    return status_;
  }

 private:
  void work() {
    Bytes buffer(kPieceElements * sizeof(float));
    while (true) {
      const std::size_t at = next_.fetch_add(1);
      if (at >= pieces_.size()) return;
      const Piece& piece = pieces_[at];
      const ByteView bytes = fill(piece, options_.seed, buffer);
      const std::uint64_t offset =
          piece.target->file_offset + piece.first * element_bytes(piece.target->spec.type);
      Status written = file_.write_at(offset, bytes);

      const std::lock_guard lock(mutex_);
      if (!written.ok()) {
        if (status_.ok()) status_ = std::move(written);
        next_ = pieces_.size();
        return;
      }
      done_bytes_ += bytes.size();
      if (options_.progress) options_.progress(done_bytes_, total_bytes_);
    }
  }

  const PartialFile& file_;
  const SynthOptions& options_;
  std::vector<Piece> pieces_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;  // guards what follows
  std::uint64_t done_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
  Status status_;
};

Status write_weights(const Plan& plan, const SynthOptions& options, const fs::path& directory) {
  const std::vector<TensorSpec> specs = model_tensors(plan.config);
  const std::set<std::string> outputs = output_names(plan.config);
  const Bytes header = build_safetensors_header(specs);
  std::vector<Target> targets;
  std::uint64_t offset = header.size();
  for (const TensorSpec& spec : specs) {
    const double deviation =
        deviation_of(spec, outputs.contains(spec.name), plan.initializer_range, plan.config.layers);
    targets.push_back({spec, offset, static_cast<std::uint32_t>(targets.size()), deviation});
    offset += spec.bytes();
  }
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (!error && space.available < offset) {
    return exhausted("the weights need " + std::to_string(offset) + " bytes, but " +
                     directory.string() + " has only " + std::to_string(space.available) + " free");
  }
  PartialFile file(directory / "model.safetensors");
  KVLANE_TRY(file.status());
  KVLANE_TRY(file.write_at(0, header));
  KVLANE_TRY(Writer(file, options, targets).run());
  return file.commit();
}

// Copies what belongs to the tokenizer. Without generation_config.json: its token ids may lie
// outside this vocabulary.
Status copy_tokenizer(const fs::path& from, const fs::path& to) {
  std::error_code ignored;
  const bool is_model = !fs::exists(from / "tokenizer.json", ignored) &&
                        fs::exists(from / "tokenizer.model", ignored);
  const std::string_view needed = is_model ? "tokenizer.model" : "tokenizer.json";
  for (const std::string_view name :
       {needed, std::string_view("tokenizer_config.json"),
        std::string_view("special_tokens_map.json"), std::string_view("chat_template.jinja")}) {
    const Result<std::string> text = read_text_file(from / name, kTokenizerBytesMax);
    if (!text.ok()) {
      if (name != needed && text.status().code() == Code::kNotFound) continue;
      return text.status();
    }
    KVLANE_TRY(write_file(to / name, as_byte_view(*text)));
  }
  return {};
}

}  // namespace

Status write_synthetic_checkpoint(const SynthOptions& options, const fs::path& directory) {
  Result<Plan> plan = make_plan(options);
  if (!plan.ok()) return plan.status().with_context(options.config_name);

  std::error_code error;
  fs::create_directories(directory, error);
  if (error) {
    return invalid_argument("cannot create " + directory.string() + ": " + error.message());
  }
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    if (fs::exists(directory / name, error)) {
      return invalid_argument(directory.string() + " already holds a " + name);
    }
  }
  if (!options.tokenizer_directory.empty()) {
    KVLANE_TRY(copy_tokenizer(options.tokenizer_directory, directory));
  }
  KVLANE_TRY(write_weights(*plan, options, directory));
  // Last, so that a directory with a configuration is complete.
  return write_file(directory / "config.json", as_byte_view(plan->config_text));
}

}  // namespace kvlane
