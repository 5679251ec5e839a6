// Runs a model over a text and writes what a cache would hold: K after RoPE, V, and the hidden
// state that enters each layer, as BF16 planes of blocks of 64 tokens.
//
//   planes MODEL_DIR TEXT OUT_DIR [SEQUENCES]
//
// OUT_DIR/{k,v}.LAYER: planes [kv_heads][64][head_dim], one after another; OUT_DIR/h.LAYER: planes
// [64][hidden], where layer 0 is the embedding; OUT_DIR/shape: "layers kv_heads head_dim hidden".
// Sequences are as long as the model's context and cut from evenly spread places of the text.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/bf16.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/tokenizer.h"

using namespace kvlane;
namespace fs = std::filesystem;

namespace {

// The layer's input is private to Forward. An explicit instantiation may name private members: this
// is the one place that wants them, so Forward need not offer a hook.
struct Residual {
  friend auto open(Residual);
};
struct FfnBlock {
  friend auto open(FfnBlock);
};
template <auto Member, class Tag>
struct Open {
  friend auto open(Tag) { return Member; }
};

}  // namespace
template struct Open<&Forward::residual_, Residual>;
template struct Open<&Forward::ffn_block, FfnBlock>;
namespace {

template <class T>
T value_or_exit(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::cerr << "planes: " << result.status().message() << "\n";
  std::exit(1);
}

void check(const Status& status) {
  if (status.ok()) return;
  std::cerr << "planes: " << status.message() << "\n";
  std::exit(1);
}

class Planes {
 public:
  Planes(const Model& model, const fs::path& directory) : config_(model.config()) {
    fs::create_directories(directory);
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (const char* what : {"k.", "v.", "h."}) {
        files_.emplace_back(directory / (what + std::to_string(layer)), std::ios::binary);
      }
    }
    std::ofstream(directory / "shape") << config_.layers << " " << config_.kv_heads << " "
                                       << config_.head_dim << " " << config_.hidden << "\n";
  }

  void hidden(int layer, const float* rows, int tokens) {
    if (layer == config_.layers) return;
    std::vector<std::uint16_t> values(std::size_t(tokens) * config_.hidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(rows[i]).bits;
    write(3 * layer + 2, values.data(), values.size());
  }

  void kv(const BlockTable& table) {
    const BlockPool& pool = table.pool();
    const std::size_t page = pool.shape().page_plane_elements();
    for (int layer = 0; layer < config_.layers; ++layer) {
      for (int block = 0; block < table.blocks(); ++block) {
        for (int head = 0; head < config_.kv_heads; ++head) {
          const std::uint16_t* k = pool.page(table.id(block), layer, head);
          write(3 * layer, k, page);
          write(3 * layer + 1, k + page, page);
        }
      }
    }
  }

 private:
  void write(int file, const std::uint16_t* values, std::size_t count) {
    files_[file].write(reinterpret_cast<const char*>(values),
                       static_cast<std::streamsize>(2 * count));
  }

  const ModelConfig& config_;
  std::vector<std::ofstream> files_;  // k, v, h of layer 0, then of layer 1, ...
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: planes MODEL_DIR TEXT OUT_DIR [SEQUENCES]\n";
    return 2;
  }
  const int sequences = argc > 4 ? std::atoi(argv[4]) : 8;
  const auto model =
      value_or_exit(Model::load(argv[1], {.isa = value_or_exit(select_isa("auto"))}));
  const auto tokenizer = value_or_exit(Tokenizer::load(argv[1]));
  const std::string text = value_or_exit(read_text_file(argv[2], std::size_t{1} << 28));
  const std::vector<std::int32_t> tokens = value_or_exit(tokenizer.encode(text, false));
  const int length = model->context() / kBlockTokens * kBlockTokens;
  if (static_cast<int>(tokens.size()) < length * sequences) {
    std::cerr << "planes: the text has " << tokens.size() << " tokens, too few\n";
    return 1;
  }
  const KvShape shape = model->config().kv_shape();
  BlockPool pool =
      value_or_exit(BlockPool::create(shape, blocks_for(length) * shape.block_bytes()));
  const auto forward = value_or_exit(Forward::create(*model, length, 1));
  Planes planes(*model, argv[3]);
  const std::size_t hidden = model->config().hidden;
  std::vector<float> rows(length * hidden);
  for (int s = 0; s < sequences; ++s) {
    const std::size_t first = (tokens.size() - length) / std::max(1, sequences - 1) * s;
    const std::span<const std::int32_t> piece = std::span(tokens).subspan(first, length);
    for (int i = 0; i < length; ++i) model->embed(piece[i], rows.data() + i * hidden);
    planes.hidden(0, rows.data(), length);
    BlockTable table(pool);
    check(table.grow(length));
    const ForwardSpan span{&table, piece, false};
    check(forward->run({&span, 1}, [&](int layer) {
      float* residual = (*forward).*open(Residual{});
      rows.assign(residual, residual + length * hidden);
      check(((*forward).*open(FfnBlock{}))(model->layers()[layer]));
      planes.hidden(layer + 1, residual, length);
      std::copy(rows.begin(), rows.end(), residual);
    }));
    planes.kv(table);
  }
  return 0;
}
