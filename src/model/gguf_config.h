// The architecture of a GGUF file, in the words of config.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kvlane/status.h"
#include "model/config.h"
#include "model/family.h"
#include "model/gguf.h"

namespace kvlane {

// The family whose GgufForm has the file's architecture.
Result<const Family*> gguf_family(const GgufFile& file);

// Metadata written as config.json and read as any other. kUnsupported names an architecture of no
// family here and what would change the result; kCorrupt names what is missing or of a wrong type.
Result<ModelConfig> gguf_config(const GgufFile& file);

}  // namespace kvlane
