// The identity of a checkpoint: SHA-256 of a short text that describes all that its KV depends on.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <vector>

#include "crypto/sha256.h"
#include "format/checksum.h"
#include "model/checkpoint.h"
#include "model/layout.h"

namespace kvlane {
namespace {

// Weights are hashed and released in pieces of this size, so that resident memory stays small.
constexpr std::size_t kPieceBytes = std::size_t{16} << 20;

// The shortest decimal text that reads back as the same number, in any locale.
template <class T>
std::string number_text(T value) {
  std::array<char, 40> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

// One line per parameter. Left out is what KV does not depend on: context length, special tokens.
std::string parameter_text(const ModelConfig& config, int context) {
  const RopeScaling& rope = config.rope_scaling;
  std::string text = "kvlane model identity 1\n";
  const auto line = [&](const char* name, const std::string& value) {
    text += std::string(name) + " " + value + "\n";
  };
  line("architecture", config.architecture);
  line("layers", number_text(config.layers));
  line("hidden", number_text(config.hidden));
  line("heads", number_text(config.heads));
  line("kv_heads", number_text(config.kv_heads));
  line("head_dim", number_text(config.head_dim));
  line("ffn", number_text(config.ffn));
  line("vocab", number_text(config.vocab));
  line("norm_eps", number_text(config.norm_eps));
  line("qk_norm", number_text(int{config.qk_norm}));
  line("tied_embeddings", number_text(int{config.tied_embeddings}));
  line("rope_theta", number_text(config.rope_theta));
  if (rope.kind == RopeScaling::Kind::kLlama3) {
    line("rope_llama3", number_text(rope.factor) + " " + number_text(rope.low_freq_factor) + " " +
                            number_text(rope.high_freq_factor) + " " +
                            number_text(rope.original_max_position));
  }
  if (rope.kind == RopeScaling::Kind::kLinear) line("rope_linear", number_text(rope.factor));
  if (rope.kind == RopeScaling::Kind::kYarn) {
    line("rope_yarn", number_text(rope.factor) + " " + number_text(rope.original_max_position) +
                          " " + number_text(rope.beta_fast) + " " + number_text(rope.beta_slow) +
                          " " + number_text(int{rope.truncate}) + " " +
                          number_text(rope.attention_factor));
  }
  if (rope.kind == RopeScaling::Kind::kLongRope) {
    std::string factors = number_text(rope.attention_factor);
    for (const double factor :
         context > rope.original_max_position ? rope.long_factors : rope.short_factors) {
      factors += " " + number_text(factor);
    }
    line("rope_longrope", factors);
  }
  // What follows from the family's name for those who do not say it in config.json is left out.
  if (config.parallel) line("parallel", number_text(1 + int{config.shared_norm}));
  if (config.window > 0 && config.window < context) {
    line("window", number_text(config.window) + " " + number_text(config.windowed_first));
  }
  if (config.position_offset > 0) line("position_offset", number_text(config.position_offset));
  return text;
}

// XXH3-128 of a tensor, in hexadecimal digits.
template <class OnPiece>
std::string hash_of(ByteView bytes, Xxh3Of128& hash, const OnPiece& on_piece) {
  hash.restart();
  while (!bytes.empty()) {
    const ByteView piece = bytes.first(std::min(bytes.size(), kPieceBytes));
    hash.add(piece);
    bytes = bytes.subspan(piece.size());
    on_piece(piece);
  }
  return to_hex(hash.digest());
}

}  // namespace

Result<ModelIdentity> Checkpoint::identity(
    const std::function<void(std::uint64_t, std::uint64_t)>& progress, int context) const {
  std::vector<TensorSpec> specs = model_tensors(config_);
  std::sort(specs.begin(), specs.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  std::uint64_t total = 0;
  for (const TensorSpec& spec : specs) total += tensors_.at(spec.name).bytes.size();

  Xxh3Of128 hash;
  if (!hash.ok()) return exhausted("there is no memory for the state of a hash");
  std::string text = parameter_text(config_, context > 0 ? context : config_.context);
  std::uint64_t done = 0;
  for (const TensorSpec& spec : specs) {
    const TensorView& tensor = tensors_.at(spec.name);
    const Shard* const shard = shard_of(tensor);
    const std::string digest = hash_of(tensor.bytes, hash, [&](ByteView piece) {
      if (shard != nullptr) shard->file.release(piece);
      done += piece.size();
      if (progress) progress(done, total);
    });
    text += "tensor " + spec.name + " " + safetensors_type_name(tensor.type) + " " +
            shape_text(tensor.shape) + " " + digest + "\n";
  }
  return sha256(as_byte_view(text));
}

}  // namespace kvlane
