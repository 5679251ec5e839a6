// Sequences with a cache of their own, computed whole or in part, and compared bit for bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/test_results.h"
#include "model/forward.h"
#include "model/forward_fixture.h"
#include "quant/tables_fixture.h"

namespace kvlane::sequence_fixture {

using forward_fixture::random_tokens;

inline const std::filesystem::path kBundled = std::filesystem::path(kSourceDir) / "models";
inline constexpr int kTokens = 280;  // four blocks and an open one
inline constexpr int kAnswer = 6;
inline constexpr int kBlocks = 6;
inline constexpr int kRowsMax = 320;

// Null for "bf16".
inline std::shared_ptr<const KvFormat> make_format(const Model& model, const char* name) {
  KvFormatContext context;
  KvTables tables;
  context.shape = model.config().kv_shape();
  context.isa = model.isa();
  context.tables = &tables;
  if (std::string(name).find("zack") == 0) {
    tables_fixture::add_zack_tables(context.shape, true, tables);
  }
  return take(make_kv_format(name, context));
}

// A model with a cache, and the hidden states of one sequence.
class Sequence {
 public:
  Sequence(const Model& model, const KvFormat* format)
      : model_(model),
        format_(format),
        rows_(take(BlockPool::create(shape(), 2 * kBlocks * shape().block_bytes()))),
        sealed_(take(BlockPool::create_sealed(
            shape(), format ? format->slab_sizes() : SlabSizes(shape().layers, 64),
            kBlocks * (format ? format->slab_sizes().block_bytes() : 64 * shape().layers)))),
        forward_(take(Forward::create(model, kRowsMax, 1, format))),
        table(format ? BlockTable(sealed_, rows_, format->window()) : BlockTable(rows_)) {}

  Forward& forward() { return *forward_; }
  KvShape shape() const { return model_.config().kv_shape(); }

  // Computes the prompt in pieces, all layers or K and V of the first ones, and keeps each layer's
  // hidden states.
  std::vector<std::vector<std::byte>> compute(std::span<const std::int32_t> tokens, int chunk,
                                              std::optional<int> kv_layers = {}) {
    std::vector<std::vector<std::byte>> hidden(shape().layers);
    EXPECT_TRUE(table.grow(kTokens + kAnswer).ok());
    for (int at = 0; at < kTokens; at += chunk) {
      const ForwardSpan span{&table, tokens.subspan(at, std::min(chunk, kTokens - at)), 0};
      const auto keep = [&](int layer, ByteView normed) {
        hidden[layer].insert(hidden[layer].end(), normed.begin(), normed.end());
      };
      const Status status = forward_->run({&span, 1}, {.on_normed = keep, .kv_layers = kv_layers});
      EXPECT_TRUE(status.ok()) << status.message();
    }
    return hidden;
  }

  // Makes room for a sequence that comes back.
  void begin_restore() {
    EXPECT_TRUE(table.grow(kTokens + kAnswer).ok());
    EXPECT_TRUE(table.open_arriving_rows(kTokens).ok());
  }

  // The most likely tokens, one after another, and the logits of the last.
  std::vector<std::int32_t> answer(std::int32_t token, std::vector<float>& logits) {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < kAnswer; ++i) {
      const ForwardSpan span{&table, {&token, 1}, 1};
      const Status status = forward_->run({&span, 1}, {});
      EXPECT_TRUE(status.ok()) << status.message();
      const auto row = forward_->logits(0);
      logits.assign(row.begin(), row.end());
      token = static_cast<std::int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
      tokens.push_back(token);
    }
    return tokens;
  }

  // Both answer alike, to the last bit: as if nothing had happened to this one.
  void expect_same_answer(Sequence& other, const std::string& what) {
    std::vector<float> logits, expected;
    EXPECT_EQ(answer(7, logits), other.answer(7, expected)) << what;
    ASSERT_EQ(logits.size(), expected.size());
    EXPECT_EQ(0, std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)))
        << what;
  }

  // K and V of `token` in the first layers and all heads; only where its block has rows.
  std::vector<std::uint16_t> row(int token, int layers) const {
    std::vector<std::uint16_t> values;
    const std::size_t d = shape().head_dim;
    for (int layer = 0; layer < layers; ++layer) {
      for (int head = 0; head < shape().kv_heads; ++head) {
        const std::uint16_t* k =
            table.page(token / kBlockTokens, layer, head) + std::size_t(token) % kBlockTokens * d;
        values.insert(values.end(), k, k + d);
        k += shape().page_plane_elements();
        values.insert(values.end(), k, k + d);
      }
    }
    return values;
  }

  // In all layers, or the first ones.
  void expect_same(const Sequence& other, const std::string& what,
                   std::optional<int> first_layers = {}) const {
    const int layers = first_layers.value_or(shape().layers);
    ASSERT_EQ(table.tokens(), other.table.tokens());
    for (int block = 0; block < blocks_for(kTokens); ++block) {
      if (!format_ || table.rows_id(block) >= 0) {
        ASSERT_TRUE(!format_ || other.table.rows_id(block) >= 0) << what << " block " << block;
        for (int token = block * kBlockTokens;
             token < std::min(kTokens, (block + 1) * kBlockTokens); ++token) {
          ASSERT_EQ(row(token, layers), other.row(token, layers)) << what << " token " << token;
        }
      }
      if (!format_ || block == kTokens / kBlockTokens) continue;
      for (int layer = 0; layer < layers; ++layer) {
        ASSERT_EQ(0, std::memcmp(table.sealed(block, layer), other.table.sealed(block, layer),
                                 format_->slab_bytes(layer)))
            << what << " block " << block << " layer " << layer;
      }
    }
  }

 private:
  const Model& model_;
  const KvFormat* const format_;
  BlockPool rows_;
  BlockPool sealed_;
  std::unique_ptr<Forward> forward_;

 public:
  BlockTable table;
};

}  // namespace kvlane::sequence_fixture
