// How fast this machine reads memory: the ceiling of everything that streams weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cpu/memory.h"

namespace kvlane {

// Bytes per second of one pass over the whole buffer with the threads of the calling thread's
// parallel loops.
double read_bandwidth(const PageBuffer& buffer);

}  // namespace kvlane
