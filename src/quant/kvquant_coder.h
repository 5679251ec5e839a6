// Slabs in codes of KVQuant: sealed, opened, checked. Format `kvquant` has them of whole heads,
// `zack:...+kvquant` of the first channels of each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "format/slab_sizes.h"
#include "quant/kv_format.h"
#include "quant/kvquant_layer.h"

namespace kvlane::kvquant {

// Immutable, thread-safe.
class Coder {
 public:
  // Errors as make_layers() has them.
  static Result<Coder> make(const Kind& kind, const KvFormatContext& context);

  SlabSizes slab_sizes() const;
  // Bytes up to the last outlier, whatever the slab is.
  std::size_t used_bytes(int layer, const std::byte* slab) const;
  // Of a slab that came from elsewhere: what is wrong with its places of outliers, or nothing.
  std::string wrong_ends(int layer, const std::byte* slab) const;
  // Codes of a head, K then V.
  PagePlace codes_place(int layer, int head) const;

  // As KvFormat::seal(), with rows of whole heads.
  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const;
  // keys: [64][width of K]; values: [64][width of V], both in BF16. Inside the slab whatever its
  // bytes are.
  void open_page(SlabPlace place, const std::byte* slab, int head, std::uint16_t* keys,
                 std::uint16_t* values) const;

 private:
  struct Sealing;

  Coder(const Kind& kind, const KvFormatContext& context, std::vector<Layer> layers);

  void write_codes(const Tensor& tensor, bool is_key, int token, const Layer& layer,
                   const Sealing& sealing, std::byte* slab) const;
  void seal_key(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                std::byte* slab) const;
  void seal_value(SlabPlace place, const std::uint16_t* rows, int token, Sealing& sealing,
                  std::byte* slab) const;
  void write_outliers(const Layer& layer, const Sealing& sealing, std::byte* slab) const;
  RopeAngles angles(int position) const {
    return rope_ == nullptr ? RopeAngles{} : rope_->angles(position);
  }
  Limits value_limits(const std::byte* slab, int token) const;
  Plane plane(const Layer& layer, const std::byte* slab, int head, bool is_key,
              std::uint16_t* rows) const;

  KvShape shape_;
  Options options_;
  const RopeTable* rope_;
  std::vector<Layer> layers_;
  OpenKeys open_keys_;
  OpenValues open_values_;
};

}  // namespace kvlane::kvquant
