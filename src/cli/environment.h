// What the program takes from the environment besides the flags that name a variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

// Threads of parallel loops that spin while they wait take the cores from those they wait for, most
// of all when several workers share a machine (ten times slower was seen). The OpenMP library reads
// its policy once, before main(), so a program that was started without OMP_WAIT_POLICY starts
// itself again with "passive". Returns where that is not needed, or not possible.
void wait_without_spinning(char** argv);

// Raises the limit of open files to what the system allows. Shells allow 1,024 by default, which is
// less than the connections that a server or a load generator has.
void allow_many_open_files();

}  // namespace kvlane
