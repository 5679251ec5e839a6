// A model with everything that belongs to it, as several subcommands need it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "cli/flags.h"
#include "cli/worker_ranks.h"
#include "engine/engine.h"
#include "model/accelerator.h"
#include "model/chat_template.h"
#include "model/model.h"
#include "model/tokenizer.h"
#include "server/prompt.h"

namespace kvlane {

struct LoadedModel {
  std::unique_ptr<Accelerator> device;  // the model's; null: the CPU
  std::unique_ptr<WorkerRanks> ranks;   // that compute the model; null: this process does
  std::unique_ptr<Model> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;  // not every checkpoint has one
  Status chat_problem;                        // it has one, which kvlane does not understand
};

// What can be found wrong without reading weights: the flags, and that the directory holds a
// checkpoint kvlane knows.
Status check_model(const ModelFlags& flags);
// The same of a process that computes a part of the model.
Status check_parts(const ModelFlags& flags);
// Whether workers can send each other what these flags make a cache of.
Status check_travels(const ModelFlags& flags);

// Checks the same, then reads the directory. Takes as long as the weights are large.
Result<LoadedModel> load_model(const ModelFlags& flags);

// Refers to `loaded`, which outlives it. `context`: most tokens of prompt and answer together.
ModelPrompter make_prompter(const LoadedModel& loaded, int context);

// What the flags say about an engine of this model, which outlives it; reads the file of codebooks
// if there is one.
Result<EngineOptions> engine_options(const ModelFlags& flags, const LoadedModel& loaded);

}  // namespace kvlane
