// What becomes of a slab on the wire and in the store.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/bytes.h"

namespace kvlane {

// The bodies of its planes, in memory of the host. A sealed slab that is packed is all in k.
struct CodedSlab {
  ByteView k, v;
};

}  // namespace kvlane
