// What the program takes from the environment besides the flags that name a variable.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kvlane {

// Threads of parallel loops that spin while they wait take the cores from those they wait for, most
// of all when several workers share a machine (ten times slower was seen); those that sleep at once
// are woken dozens of times a step, which takes half of it where steps are short. So workers of a
// disaggregated service sleep, and everything else spins for some tens of microseconds first. The
// OpenMP library reads its policy once, before main(), so a program that was started without
// OMP_WAIT_POLICY and GOMP_SPINCOUNT sets them and starts itself again. Returns where that is not
// needed, or not possible.
void choose_how_to_wait(char** argv);

// Raises the limit of open files to what the system allows. Shells allow 1,024 by default, which is
// less than the connections that a server or a load generator has, or the segments of a store.
void allow_many_open_files();

}  // namespace kvlane
