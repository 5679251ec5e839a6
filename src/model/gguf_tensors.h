// The tensors of a GGUF file under the names and in the order of a Hugging Face checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kvlane/status.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/safetensors.h"

namespace kvlane {

struct GgufTensors {
  std::map<std::string, TensorView> views;  // into the file, or into `converted`
  std::vector<Bytes> converted;
};

// By the GgufForm of the file's architecture. Q8_0 becomes F16, rounded once: its numbers have up
// to 18 bits, of which a weight coded in 8 needs no more than 11. Rows that llama.cpp stores in
// another order go back to that of the checkpoint. All else is a view. kUnsupported names a tensor
// that the architecture has no place for.
Result<GgufTensors> gguf_tensors(const GgufFile& file, const ModelConfig& config);

}  // namespace kvlane
