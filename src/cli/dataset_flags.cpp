// Data sets as flags.
// SPDX-License-Identifier: Apache-2.0
#include "cli/dataset_flags.h"

#include <string>
#include <utility>
#include <vector>

#include "bench/lengths.h"
#include "cli/flags.h"

namespace kvlane {
void add_dataset_flags(Command& command, DatasetOptions& dataset) {
  std::vector<std::string> names = {"random", "trace", "mooncake", "azure"};
  for (std::string& name : paper_workload_names()) names.push_back(std::move(name));
  command
      .add_option("--dataset,--dataset-name", dataset.name,
                  "random; trace (mooncake and azure mean the same) with --dataset-path; or the "
                  "lengths of a paper's workload")
      .check(one_of(names))
      .capture_default_str();
  command.add_option("--dataset-path", dataset.path,
                     "a trace: Mooncake's JSON lines, or CSV as Azure's or vidur's");
  command.add_option("--input-len,--random-input-len", dataset.input_tokens, "of random prompts")
      .check(range(1, kFlagTokensMax))
      .capture_default_str();
  command.add_option("--output-len,--random-output-len", dataset.output_tokens, "of their answers")
      .check(range(1, kFlagTokensMax))
      .capture_default_str();
  command
      .add_option("--range-ratio,--random-range-ratio", dataset.range_ratio,
                  "both lengths vary evenly by this share to either side")
      .check(number_between(0, 0.999))
      .capture_default_str();
  command
      .add_option("--prefix-len,--random-prefix-len", dataset.prefix_tokens,
                  "tokens in front of prompts that several share")
      .check(range(0, kFlagTokensMax))
      .capture_default_str();
  command.add_option("--num-prefixes", dataset.prefixes, "so many different ones")
      .check(range(1, 1'000'000))
      .capture_default_str();
  command
      .add_option("--prefix-zipf", dataset.prefix_zipf,
                  "the k-th of them is chosen with probability ~ k^-F; 0: evenly")
      .check(number_between(0, 10.0))
      .capture_default_str();
  command.add_option("--rounds", dataset.rounds, "requests of a conversation (default: 1)")
      .check(range(1, 10'000));
  command
      .add_option("--think-time", dataset.think_time,
                  "seconds from an answer to the next round (default: 0)")
      .check(number_between(0, kFlagSecondsMax));
  command.add_option("--scale-lengths", dataset.length_scale, "a trace's lengths times this")
      .check(number_between(1e-6, 1e3))
      .capture_default_str();
  command
      .add_option("--time-scale", dataset.time_scale,
                  "a trace's times times this: 0.1 is ten times as fast")
      .check(number_between(0, 1e6))
      .capture_default_str();
}

void settle_dataset(DatasetOptions& dataset) {
  if (dataset.name == "mooncake" || dataset.name == "azure") dataset.name = "trace";
}

}  // namespace kvlane
