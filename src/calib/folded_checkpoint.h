// A checkpoint whose V is rotated, and whose K is where it can be, as an ordinary Hugging Face
// directory with a file of tables: spec/zack.md.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "calib/rotation.h"
#include "calib/sequences.h"
#include "calib/zack_errors.h"
#include "kvlane/status.h"
#include "model/checkpoint.h"

namespace kvlane {

// Writes `checkpoint` with rotations folded into its weights to `out`: the same files of weights
// with the same tensors, config.json with a member "kvlane", tables, and whatever else lies in the
// directory itself and holds no weights. Lies at `out`.folding until it is complete; what an
// interrupted call left there is replaced. `out` may not be there. errors: of these rotations, or
// of none, which leaves their tables out. tokens: of the text that the rotations come from.
// progress may be empty, gets bytes of weights done and in total. Memory: a few tensors; weights
// are read from their mapping and written piece by piece. Gives the identity of what it wrote, to
// which the tables are bound.
Result<ModelIdentity> write_folded_checkpoint(const Checkpoint& checkpoint,
                                              const ZackRotations& rotations,
                                              const ZackErrors& errors, std::uint64_t tokens,
                                              const std::filesystem::path& out,
                                              const OnCalibrated& progress);

}  // namespace kvlane
