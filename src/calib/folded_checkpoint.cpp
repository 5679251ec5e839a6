// Files of weights are copied byte by byte but for the folded tensors: headers, names, order and
// types stay.
// SPDX-License-Identifier: Apache-2.0
#include "calib/folded_checkpoint.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <system_error>

#include "base/file.h"
#include "base/streams.h"
#include "calib/fold.h"
#include "calib/kv_tables_file.h"
#include "model/json_depth.h"
#include "quant/table_lookup.h"
#include "quant/zack.h"

namespace kvlane {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "config.json";
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr std::size_t kConfigBytesMax = std::size_t{1} << 20;
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

Status failure(const char* verb, const fs::path& path, const std::error_code& error) {
  return invalid_argument(std::string("cannot ") + verb + " " + path.string() + ": " +
                          error.message());
}

void append(std::span<const double> values, std::vector<float>& to) {
  for (const double value : values) to.push_back(static_cast<float>(value));
}

// The tables that spec/zack.md describes.
KvTables tables_of(const ModelConfig& config, const ZackRotations& rotations,
                   const ZackErrors& errors) {
  KvTables tables;
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const bool is_key : {true, false}) {
      const std::string prefix = table_prefix("zack", layer, is_key);
      const bool folded = is_key && folds_keys(config);
      std::vector<float>& matrices =
          tables.values[prefix + (folded ? zack::kFoldedRotation : "rotation")];
      std::vector<float>& values = tables.values[prefix + "singular_values"];
      for (int head = 0; head < config.kv_heads; ++head) {
        const std::size_t index = std::size_t(layer) * config.kv_heads + head;
        const Rotation& rotation = (is_key ? rotations.qk : rotations.vw)[index];
        append(rotation.matrix, matrices);
        append(rotation.singular_values, values);
        if (is_key && !folded && !rotation.dual.empty()) {
          append(rotation.dual, tables.values[prefix + "query_rotation"]);
        }
      }
      const std::vector<float>& of = is_key ? errors.k : errors.v;
      if (of.empty()) continue;
      const std::size_t count = of.size() / config.layers;
      const auto from = of.begin() + static_cast<std::ptrdiff_t>(layer * count);
      tables.values[prefix + "errors"].assign(from, from + static_cast<std::ptrdiff_t>(count));
    }
  }
  return tables;
}

// One directory that is being written.
class Folding {
 public:
  Folding(const Checkpoint& checkpoint, const ZackRotations& rotations, const ZackErrors& errors,
          fs::path to, const OnCalibrated& progress)
      : checkpoint_(checkpoint),
        rotations_(rotations),
        errors_(errors),
        to_(std::move(to)),
        progress_(progress) {
    for (const Checkpoint::Shard& shard : checkpoint.shards()) total_ += shard.file.bytes().size();
  }

  Result<ModelIdentity> write(std::uint64_t tokens) {
    KVLANE_TRY(copy_others());
    KVLANE_TRY(write_weights());
    KVLANE_TRY(write_config());
    return write_tables(tokens);
  }

 private:
  Status write_weights() {
    for (const Checkpoint::Shard& shard : checkpoint_.shards()) KVLANE_TRY(write_shard(shard));
    return {};
  }

  // What lies beside the weights: tokenizer, chat template, licence.
  Status copy_others() const {
    std::set<std::string> weights = {kConfigName};
    for (const Checkpoint::Shard& shard : checkpoint_.shards()) weights.insert(shard.name);
    if (weights.contains("model.safetensors")) weights.insert(kIndexName);  // of other files
    std::error_code error;
    fs::directory_iterator file(checkpoint_.directory(), error);
    for (; !error && file != fs::directory_iterator(); file.increment(error)) {
      const fs::path name = file->path().filename();
      std::error_code wrong;
      if (!file->is_regular_file(wrong) || weights.contains(name) || holds_weights(name)) continue;
      fs::copy_file(file->path(), to_ / name, wrong);
      if (wrong) return failure("copy", file->path(), wrong);
    }
    return error ? failure("read", checkpoint_.directory(), error) : Status();
  }

  Status write_config() const {
    const fs::path path = checkpoint_.directory() / kConfigName;
    KVLANE_ASSIGN(const std::string text, read_text_file(path, kConfigBytesMax));
    auto json = json_depth(text) > kJsonDepthMax
                    ? nlohmann::ordered_json()
                    : nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return corrupt(path.string() + " holds no JSON object");
    auto& ours = json["kvlane"];
    if (!ours.is_object()) ours = nlohmann::ordered_json::object();
    ours["zack"] = {{"tables", kZackTables}};
    const std::string folded =
        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    return write_file(to_ / kConfigName, as_byte_view(folded));
  }

  // Last: tables say which weights they belong to.
  Result<ModelIdentity> write_tables(std::uint64_t tokens) const {
    KVLANE_ASSIGN(const Checkpoint folded, Checkpoint::open(to_));
    KVLANE_ASSIGN(const ModelIdentity identity, folded.identity({}));
    const fs::path path = to_ / kZackTables;
    std::error_code error;
    fs::create_directory(path.parent_path(), error);
    if (error) return failure("create", path.parent_path(), error);
    const KvTables tables = tables_of(folded.config(), rotations_, errors_);
    KVLANE_TRY(write_file(path, build_kv_tables(tables, identity, tokens)));
    return identity;
  }

  // Weights in other files would not be folded.
  static bool holds_weights(const fs::path& name) {
    static const std::set<std::string> kExtensions = {".safetensors", ".bin", ".pt",      ".pth",
                                                      ".gguf",        ".h5",  ".msgpack", ".onnx"};
    return kExtensions.contains(name.extension());
  }

  Status write_shard(const Checkpoint::Shard& shard) {
    const ByteView bytes = shard.file.bytes();
    std::map<const std::byte*, std::string> folded;  // in the order of the file
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      const bool here =
          tensor.bytes.data() >= bytes.data() && tensor.bytes.data() < bytes.data() + bytes.size();
      if (here && folds_.contains(name)) folded[tensor.bytes.data()] = name;
    }
    KVLANE_ASSIGN(OutputFile file, OutputFile::create(to_ / shard.name, false));
    std::size_t at = 0;
    for (const auto& [data, name] : folded) {
      const auto first = static_cast<std::size_t>(data - bytes.data());
      KVLANE_TRY(copy(shard, at, first, file));
      const TensorView& tensor = checkpoint_.tensors().at(name);
      const Result<Bytes> rotated = fold(checkpoint_.config(), tensor, folds_.at(name), rotations_);
      if (!rotated.ok()) return rotated.status().with_context(name);
      KVLANE_TRY(file.write_at(first, *rotated));
      shard.file.release(tensor.bytes);
      at = first + rotated->size();
      tell(rotated->size());
    }
    KVLANE_TRY(copy(shard, at, bytes.size(), file));
    return file.commit();
  }

  Status copy(const Checkpoint::Shard& shard, std::size_t first, std::size_t last,
              OutputFile& file) {
    while (first < last) {
      const ByteView piece = shard.file.bytes().subspan(first, std::min(kPieceBytes, last - first));
      KVLANE_TRY(file.write_at(first, piece));
      shard.file.release(piece);
      first += piece.size();
      tell(piece.size());
    }
    return {};
  }

  void tell(std::size_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  const Checkpoint& checkpoint_;
  const ZackRotations& rotations_;
  const ZackErrors& errors_;
  const fs::path to_;
  const OnCalibrated& progress_;
  const std::map<std::string, TensorFold> folds_ = tensor_folds(checkpoint_.config());
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

Result<ModelIdentity> write_folded_checkpoint(const Checkpoint& checkpoint,
                                              const ZackRotations& rotations,
                                              const ZackErrors& errors, std::uint64_t tokens,
                                              const fs::path& out, const OnCalibrated& progress) {
  const fs::path temporary = out.string() + ".folding";
  std::error_code error;
  fs::remove_all(temporary, error);
  if (!error) fs::create_directory(temporary, error);
  if (error) return failure("create", temporary, error);
  auto identity = Folding(checkpoint, rotations, errors, temporary, progress).write(tokens);
  Status status = identity.status();
  if (status.ok() && fs::exists(out, error)) {
    status = invalid_argument(out.string() + " is there already");
  }
  if (status.ok()) {
    fs::rename(temporary, out, error);
    if (error) status = failure("rename to", out, error);
  }
  if (status.ok()) return identity;
  fs::remove_all(temporary, error);
  return status;
}

}  // namespace kvlane
