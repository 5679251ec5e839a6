// Tables that calibration makes for a model and formats refer to: named arrays of floats.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

namespace kvlane {

// "kvquant.layers.3.k.codebook" -> its values. Each format says in its header which names it reads
// and checks their sizes. Read and written by calib.
struct KvTables {
  std::map<std::string, std::vector<float>> values;
};

}  // namespace kvlane
