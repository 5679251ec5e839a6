// K and V of a sequence from its stored hidden states, on a device: what model/hidden_restorer.h is
// on the CPU. A product with the part of a layer's weights that gives K and V, norms and rotation
// at the tokens' own positions, basis of the format, sealing.
//
// All of it goes to the line of the passes. Rows come through two rooms of the host: of one piece
// they are copied and projected while the host writes those of the next.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "cache/block_pool.h"
#include "model/device_codes.h"
#include "model/device_model.h"

namespace kvlane {

// Whole blocks of a sequence, of which nobody else writes this layer.
struct ProjectedPiece {
  const BlockTable* table;  // without a window
  int first, count;         // tokens
  int layer;
};

// Thread-compatible; outlives neither its model nor its device.
class DeviceProjection {
 public:
  // For pieces of up to `rows_max` tokens, a positive multiple of kBlockTokens, of a cache in 16
  // bits or in `format`.
  static Result<std::unique_ptr<DeviceProjection>> create(
      const DeviceModel& model, Accelerator& device, int rows_max,
      const std::optional<DeviceFormat>& format = {});

  // Where the host writes the next piece's hidden states: [rows_max][hidden], BF16.
  std::byte* room() const { return host_part<std::byte>(parts_.rows); }
  // Begins to make K and V of what is in the room, and seals them in a coded cache. The piece
  // before is finished(). After an error nothing is on its way.
  Status give(const ProjectedPiece& piece);
  // Returns when what was given is in its blocks, or tells why it is not: what went wrong in the
  // line, or values that cannot be sealed. Without anything given it does not wait.
  Status finish();

 private:
  DeviceProjection(const DeviceModel& model, Accelerator& device, int rows_max)
      : model_(model), device_(device), rows_max_(rows_max) {}

  // Where parts of a room begin, as of its copy on the device.
  struct Parts {
    std::size_t positions;  // [rows_max]
    std::size_t sequences;  // [rows_max], all 0
    std::size_t table;      // of the sequence, as long as the longest context
    std::size_t seals;      // of the blocks of a piece
    std::size_t rows;       // last, so that only those that are there are copied
    std::size_t bytes;
  };

  Status allocate(const std::optional<DeviceFormat>& format);
  void describe(const ProjectedPiece& piece) const;
  Status launch(const ProjectedPiece& piece);
  Status write_rows(const ProjectedPiece& piece);
  Status seal(const ProjectedPiece& piece);
  template <class T>
  T* host_part(std::size_t begin) const {
    return reinterpret_cast<T*>(rooms_.get() + room_ * parts_.bytes + begin);
  }
  template <class T>
  const T* part(std::size_t begin) const {
    return reinterpret_cast<const T*>(copy_.get() + begin);
  }

  const DeviceModel& model_;
  Accelerator& device_;
  const int rows_max_;
  std::unique_ptr<DeviceCodedPass> coded_;  // null for a cache in 16 bits

  Parts parts_{};
  Accelerator::Memory rooms_;    // of the host, two
  Accelerator::Memory copy_;     // of a room
  Accelerator::Memory product_;  // [rows][K heads, V heads][head_dim], F32
  Accelerator::Memory slabs_;    // of a coded cache: rows that stay nowhere
  int room_ = 0;                 // the next one
  int moving_ = 0;               // blocks of what is on its way
};

}  // namespace kvlane
