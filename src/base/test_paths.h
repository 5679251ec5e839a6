// Where tests find what they read. In one source, for all others to compile alike wherever the tree
// is: compilers' caches ask for that.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

extern const char* const kSourceDir;   // the root of the tree
extern const char* const kFakeCufile;  // the library of gpu/fake_cufile.h

}  // namespace kvlane
