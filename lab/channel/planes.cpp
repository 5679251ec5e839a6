// Runs a model over a text and writes what a cache would hold: K after RoPE, V, and the hidden
// state that enters each layer, as BF16 planes of blocks of 64 tokens.
//
//   planes MODEL_DIR TEXT OUT_DIR [TOKENS]
//
// OUT_DIR/{k,v}.LAYER: planes [kv_heads][64][head_dim], one after another; OUT_DIR/h.LAYER: planes
// [64][hidden], where layer 0 is the embedding; OUT_DIR/shape: "layers kv_heads head_dim hidden".
// Of the first TOKENS (8192) tokens, in sequences as long as the model's context.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "bench/captured_planes.h"
#include "calib/text_tokens.h"

using namespace kvlane;
namespace fs = std::filesystem;

namespace {

template <class T>
T value_or_exit(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::cerr << "planes: " << result.status().message() << "\n";
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: planes MODEL_DIR TEXT OUT_DIR [TOKENS]\n";
    return 2;
  }
  const std::size_t tokens_max = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 8192;
  const auto model = value_or_exit(Model::load(argv[1], {.isa = best_isa()}));
  const auto tokens = value_or_exit(read_text_tokens(argv[1], argv[2], tokens_max));
  const CapturedPlanes captured = value_or_exit(capture_planes(*model, tokens, {}));
  const fs::path directory = argv[3];
  fs::create_directories(directory);
  for (int layer = 0; layer < captured.layers(); ++layer) {
    for (const Tensor tensor : kAllTensors) {
      const std::string name = std::string(tensor_name(tensor), 0, 1) + "." + std::to_string(layer);
      const ByteView bytes = captured.bytes(layer, tensor);
      std::ofstream(directory / name, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
  }
  const PlaneShape& kv = captured.shape(Tensor::kK);
  std::ofstream(directory / "shape")
      << captured.layers() << " " << kv.kv_heads << " " << kv.head_dim << " "
      << captured.shape(Tensor::kHidden).head_dim << "\n";
  return 0;
}
