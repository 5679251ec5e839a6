// What a KV format wants to know of a model's K and V: counted over a text, slab by slab.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "format/shape.h"
#include "kvlane/status.h"
#include "ops/rope_table.h"
#include "quant/kv_format.h"
#include "quant/zack.h"

namespace kvlane {

// How much a text's probability depends on a slab's values: gradients by K as attention reads it
// and by V (calib/kv_gradients.h), [64][kv_heads * head_dim].
struct SlabGradients {
  const float* keys;
  const float* values;
};

// Sees every complete slab twice, in two passes over the text: first() all of them, then second()
// all of them, in the order of the text. Calls for different layers may come at the same time, from
// different threads; none comes twice at a time for one layer.
class KvStatistics {
 public:
  virtual ~KvStatistics() = default;

  // rows: as KvFormat::seal() gets them, finite.
  virtual void first(SlabPlace place, const std::uint16_t* rows) = 0;
  // gradients: null, where values count alike.
  virtual void second(SlabPlace place, const std::uint16_t* rows,
                      const SlabGradients* gradients) = 0;
  // Adds its tables.
  virtual void write(KvTables& tables) const = 0;
};

// For format `cachegen`: names and sizes in quant/cachegen.h. A token counts once, so at most 2^24
// tokens.
std::unique_ptr<KvStatistics> make_cachegen_statistics(const KvShape& shape);

// For format `kvquant`: names and sizes in quant/kvquant.h. tokens: how many first() will see.
// rope: the model's; outlives the statistics. Where second() has gradients, values count by the
// squares of these when signposts are sought.
std::unique_ptr<KvStatistics> make_kvquant_statistics(const KvShape& shape, const RopeTable& rope,
                                                      std::uint64_t tokens);

// For format `zack:...+kvquant`: names and sizes in quant/zack_kvquant.h. zack: the name up to the
// "+"; K of the rows, and gradients, are turned into its basis here.
std::unique_ptr<KvStatistics> make_zack_kvquant_statistics(std::shared_ptr<const ZackFormat> zack,
                                                           Isa isa, std::uint64_t tokens);

}  // namespace kvlane
