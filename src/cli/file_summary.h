// What `kvlane file` tells when it has finished.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tensors/tensor_file.h"

namespace kvlane {

struct FileSummary {
  std::string path;
  std::string out;  // empty: nothing was written; "-": standard output
  const TensorFileSummary& file;
  double seconds = 0;
};

struct FileSummaryStyle {
  bool json = false;
  bool verbose = false;     // each tensor
  bool encoded = false;     // else decoded
  bool with_codec = false;  // one was asked for, and it should have paid
};

// On standard output, or on stderr when the file itself went there. With a codec, files that are
// hardly smaller get a note on stderr that says why.
void print_file_summary(const FileSummary& summary, const FileSummaryStyle& style);

}  // namespace kvlane
