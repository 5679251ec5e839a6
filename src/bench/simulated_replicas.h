// How users write what a cluster is made of: "5xA10G:tp=4,pp=2,net=40".
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kvlane/status.h"
#include "sim/cluster.h"

namespace kvlane {

// COUNTxGPU, or GPU alone for one replica, with tp (1), pp (1), and net: Gbit/s of each replica's
// own part of its servers' network (100). GPUs are those of find_gpu(). kInvalidArgument or
// kNotFound says what is wrong.
Result<ReplicaGroup> parse_replicas(std::string_view text, std::span<const Gpu> gpus = {});

// "5 replicas of 8 A10G (tp=4, pp=2), 40 Gbit/s".
std::string describe(const ReplicaGroup& group);

}  // namespace kvlane
