// A Hugging Face checkpoint directory: config.json and memory-mapped safetensors, sharded or not.
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

// Thread-compatible. The views stay valid as long as the checkpoint.
class Checkpoint {
 public:
  // Maps every shard and checks all headers. Does not touch the weights themselves.
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  const std::filesystem::path& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

  // The tensor `name`; fails unless it exists with exactly this shape.
  Result<TensorView> tensor(const std::string& name, const std::vector<std::int64_t>& shape) const;

  // Says that the tensor's bytes will not be needed soon, so that they do not count as resident.
  void release(const TensorView& tensor) const;

  // SHA-256 over the architecture's parameters and every tensor's name, type, shape and contents
  // (XXH3-128 of its bytes). Reads all weights once; `progress` gets bytes done and bytes in total.
  ModelIdentity identity(const std::function<void(std::uint64_t, std::uint64_t)>& progress) const;

 private:
  Checkpoint() = default;
  std::filesystem::path directory_;
  ModelConfig config_;
  std::vector<MappedFile> shards_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace kvlane
