// A checkpoint directory: config.json and memory-mapped safetensors, sharded or not, as Hugging
// Face has it; or GGUF.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "format/element.h"
#include "model/config.h"
#include "model/safetensors.h"

namespace kvlane {

struct GgufFile;

// Most files a checkpoint may be split into; the largest public ones have a few hundred.
inline constexpr std::size_t kShardsMax = 1024;

// Thread-compatible. The views stay valid as long as the checkpoint, also when it is moved.
class Checkpoint {
 public:
  // One file of weights.
  struct Shard {
    std::string name;  // without directory
    MappedFile file;
  };

  // Maps every shard, checks all headers, and that every tensor of the architecture
  // (model/layout.h) is there with its shape. Does not touch the weights themselves. Each error
  // names its file. A directory without config.json may have a model in GGUF instead, in one file
  // or in parts, and such a file may stand for its directory; Q8_0 tensors of it, and those whose
  // rows llama.cpp has in another order, are read and converted here and stay in memory.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  // With `type` as the embedding table is stored, whatever config.json says, and the
  // end-of-sequence ids of generation_config.json where there are any.
  const ModelConfig& config() const { return config_; }
  const std::vector<Shard>& shards() const { return shards_; }
  // Also those that the architecture does not use.
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

  // The tensor `name`; fails unless it exists with exactly this shape.
  Result<TensorView> tensor(const std::string& name, const std::vector<std::int64_t>& shape) const;

  // Says that the bytes of one of our tensors will not be needed soon, so that they do not count as
  // resident.
  void release(const TensorView& tensor) const;

  // SHA-256 over the architecture's parameters and the name, type, shape and contents (XXH3-128 of
  // the bytes) of every tensor that the architecture uses, and which of its rotations sequences of
  // up to `context` tokens have (0: the model's own context). So two copies of a model agree
  // however they are sharded. Reads all weights once and releases them on the way; `progress`,
  // which may be empty, gets bytes done and bytes in total. Fails with kInternal when OpenSSL has
  // no SHA-256.
  Result<ModelIdentity> identity(const std::function<void(std::uint64_t, std::uint64_t)>& progress,
                                 int context = 0) const;

 private:
  Checkpoint() = default;
  Status map_shards();
  Status open_gguf(const std::vector<std::filesystem::path>& paths);
  Status take_gguf(std::vector<GgufFile> parts);
  // Maps one file and keeps the tensors of `wanted` (all of them when it is null).
  Status map_shard(const std::string& name, const std::vector<std::string>* wanted);
  Status check_tensors();
  // The shard that holds the bytes of one of our tensors; null when they were converted.
  const Shard* shard_of(const TensorView& tensor) const;
  // What errors about this tensor call its file.
  std::string file_of(const TensorView& tensor) const;

  std::filesystem::path directory_;
  ModelConfig config_;
  std::vector<Shard> shards_;
  std::map<std::string, TensorView> tensors_;
  std::vector<Bytes> converted_;  // tensors of a GGUF file that are not as they are there
};

}  // namespace kvlane
