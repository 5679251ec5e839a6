// What a model's shape, and a KV format with its codec, are to the simulator.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "kvlane/status.h"
#include "model/config.h"
#include "sim/step_cost.h"

namespace kvlane {

SimModel simulated_model(const ModelConfig& config);

struct SimulatedKv {
  KvCosts costs;
  // Whether speeds were measured on a GPU (docs/gpu.md); else no kernel of kvlane computes this
  // format on GPUs, and codes are taken to be opened inside attention.
  bool measured = false;
};

// format: as --kv-format says it; tables are not needed. Bytes are the format's own; of `kvquant`
// and `cachegen`, whose slabs depend on the text, those of docs/results.md; of `zack` the share
// that is kept. codec: as --kv-codec says it; it is for 16-bit values, so formats that are codes
// travel as they lie. open_to_memory: formats that attention cannot read are opened to 16 bits in
// memory at every step, as HACK's paper has it. kInvalidArgument or kUnsupported says what is
// wrong.
Result<SimulatedKv> simulated_kv(std::string_view format, std::string_view codec,
                                 const ModelConfig& config, bool open_to_memory);

}  // namespace kvlane
