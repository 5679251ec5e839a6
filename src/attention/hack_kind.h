// Which pages of codes attention on a GPU has kernels for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

// What kernels are made for; metadata are binary16.
struct HackKind {
  int key_bits, value_bits;
  int partition;  // of K, and of V where it is at most 64; 0: by both

  friend bool operator==(const HackKind&, const HackKind&) = default;
};

}  // namespace kvlane
