// What row operations on a GPU cannot do, in words.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "ops/rows_gpu.h"

namespace kvlane {

namespace {

Status check_count(const char* what, int count) {
  if (count >= 0) return {};
  return invalid_argument(std::string(what) + " cannot be " + std::to_string(count));
}

Status check_length(const char* what, int length, int length_max) {
  if (length >= 8 && length <= length_max && length % 8 == 0) return {};
  return invalid_argument(std::string(what) + " must be a multiple of 8 from 8 to " +
                          std::to_string(length_max) + " on a GPU, not " + std::to_string(length));
}

// Of values that are read 16 bytes at a time.
Status check_address(const char* what, const void* address) {
  if (address == nullptr) return invalid_argument(std::string(what) + " is missing");
  if (reinterpret_cast<std::uintptr_t>(address) % 16 == 0) return {};
  return invalid_argument(std::string(what) + " must begin at a multiple of 16 bytes on a GPU");
}
Status check_optional(const char* what, const void* address) {
  return address == nullptr ? Status() : check_address(what, address);
}
// Of one number a row.
Status check_there(const char* what, const void* address) {
  if (address != nullptr) return {};
  return invalid_argument(std::string(what) + " are missing");
}

// Rows that go by whole blocks of threads have no limit but that of a launch.
constexpr int kLengthMax = 1 << 20;

}  // namespace

Status check_rows(const EmbedRows& embed) {
  KVLANE_TRY(check_count("rows", embed.rows));
  KVLANE_TRY(check_length("hidden", embed.hidden, kLengthMax));
  KVLANE_TRY(check_address("the table of embeddings", embed.table));
  KVLANE_TRY(check_there("tokens", embed.tokens));
  return check_address("the residual stream", embed.residual);
}

Status check_rows(const NormRows& norm) {
  KVLANE_TRY(check_count("rows", norm.rows));
  KVLANE_TRY(check_length("a row to norm", norm.n, kNormValuesMax));
  KVLANE_TRY(check_address("the residual stream", norm.residual));
  KVLANE_TRY(check_optional("what is added to the residual stream", norm.add));
  if (norm.out == nullptr) return {};
  KVLANE_TRY(check_address("the weight of a norm", norm.weight));
  return check_address("the result of a norm", norm.out);
}

Status check_rows(const QkvRows& qkv) {
  KVLANE_TRY(check_count("rows", qkv.rows));
  KVLANE_TRY(check_length("head_dim", qkv.head_dim, kQkvHeadDimMax));
  if (qkv.heads < 0 || qkv.kv_heads < 1) {
    return invalid_argument("there must be KV heads, and query heads or none, not " +
                            std::to_string(qkv.kv_heads) + " and " + std::to_string(qkv.heads));
  }
  if ((qkv.q_norm == nullptr) != (qkv.k_norm == nullptr)) {
    return invalid_argument("norms are of both Q and K heads, or of none");
  }
  KVLANE_TRY(check_address("the product of Q, K and V", qkv.product));
  KVLANE_TRY(check_optional("the norm of Q", qkv.q_norm));
  KVLANE_TRY(check_optional("the norm of K", qkv.k_norm));
  KVLANE_TRY(check_address("the table of angles", qkv.angles));
  KVLANE_TRY(check_optional("the rotations of heads", qkv.rotations));
  if (qkv.rotations != nullptr && qkv.heads % qkv.kv_heads != 0) {
    return invalid_argument("rotations are of groups of query heads, and " +
                            std::to_string(qkv.heads) + " are no groups for " +
                            std::to_string(qkv.kv_heads) + " KV heads");
  }
  KVLANE_TRY(check_there("positions", qkv.positions));
  KVLANE_TRY(check_there("sequences", qkv.sequences));
  KVLANE_TRY(check_there("tables of blocks", qkv.tables));
  if (qkv.heads > 0) KVLANE_TRY(check_address("Q", qkv.q));
  KVLANE_TRY(check_address("the slab of block 0", qkv.slabs));
  if (qkv.block_bytes % 16 == 0) return {};
  return invalid_argument("block_bytes must be a multiple of 16 on a GPU, not " +
                          std::to_string(qkv.block_bytes));
}

Status check_rows(const SiluRows& silu) {
  KVLANE_TRY(check_count("rows", silu.rows));
  KVLANE_TRY(check_length("ffn", silu.ffn, kLengthMax));
  KVLANE_TRY(check_address("the product of gate and up", silu.gate_up));
  return check_address("the result of the activation", silu.out);
}

}  // namespace kvlane
