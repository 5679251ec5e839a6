// Loading a model as the command line says.
// SPDX-License-Identifier: Apache-2.0
#include "cli/loaded_model.h"

#include <unistd.h>

#include <charconv>
#include <cstdint>

#include "base/file.h"
#include "calib/codebook_file.h"
#include "calib/kv_tables_file.h"
#include "cli/state_store.h"
#include "codec/codec.h"
#include "cpu/isa.h"
#include "cpu/parallel.h"
#include "engine/codec_choice.h"
#include "model/gpu_accelerator.h"

namespace kvlane {

namespace {

// The system promises more memory than it has, and kills who takes the promise at its word.
Status check_memory(const char* flag, std::uint64_t bytes) {
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (bytes <= machine) return {};
  return invalid_argument(std::string(flag) + " of " + std::to_string(bytes) +
                          " bytes is more than the memory of this machine, " +
                          std::to_string(machine) + " bytes");
}

// The GPU that --device names; nothing for the CPU.
Result<std::optional<int>> gpu_of(std::string_view device) {
  if (device == "cpu") return std::optional<int>();
  if (device == "cuda") return std::optional<int>(0);
  constexpr std::string_view kPrefix = "cuda:";
  int index = 0;
  if (device.starts_with(kPrefix)) {
    const std::string_view number = device.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && end == number.data() + number.size() && index >= 0) {
      return std::optional<int>(index);
    }
  }
  return invalid_argument("--device is cpu, cuda or cuda:N, not '" + std::string(device) + "'");
}

}  // namespace

Status check_model(const ModelFlags& flags) {
  if (flags.kv_codec != kAutoCodec) {
    const Status known = find_codec(flags.kv_codec).status();
    if (!known.ok()) return Status(known.code(), known.message() + ", auto");
  }
  KVLANE_ASSIGN(const std::optional<int> gpu, gpu_of(flags.device));
  // That of a GPU says itself when there is not enough.
  if (!gpu) KVLANE_TRY(check_memory("--kv-memory", flags.kv_memory));
  KVLANE_TRY(check_memory("--host-memory", flags.host_memory));
  KVLANE_TRY(check_ranks(flags));
  return check_parts(flags);
}

Status check_parts(const ModelFlags& flags) {
  KVLANE_TRY(select_isa(flags.cpu).status());
  KVLANE_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(flags.directory));
  return check_part(checkpoint.config(),
                    {.stages = flags.pipeline_parallel, .ranks = flags.tensor_parallel});
}

Status check_travels(const ModelFlags& flags) {
  if (flags.zack_online > 0) {
    return unsupported("--zack-online is for one process: axes of a prompt do not travel");
  }
  if (flags.kv_evict.empty()) return {};
  return unsupported("--kv-evict is for one process: evicted caches do not travel between workers");
}

Result<LoadedModel> load_model(const ModelFlags& flags) {
  KVLANE_TRY(check_model(flags));
  ModelOptions options;
  KVLANE_ASSIGN(options.isa, select_isa(flags.cpu));
  options.context_max = flags.max_model_len;
  if (flags.threads > 0) set_parallel_threads(flags.threads);

  LoadedModel loaded;
  KVLANE_ASSIGN(const std::optional<int> gpu, gpu_of(flags.device));
  if (gpu) {
    KVLANE_ASSIGN(loaded.device, gpu_accelerator(*gpu));
    options.device = loaded.device.get();
  }
  // First what is quick to find missing, then the weights.
  KVLANE_ASSIGN(Tokenizer tokenizer, Tokenizer::load(flags.directory));
  loaded.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  Result<ChatTemplate> chat_template = ChatTemplate::load(flags.directory);
  if (chat_template.ok()) {
    loaded.chat_template = std::move(*chat_template);
  } else if (chat_template.status().code() == Code::kUnsupported) {
    loaded.chat_problem = chat_template.status();  // no reason to refuse completions
  } else if (chat_template.status().code() != Code::kNotFound) {
    return chat_template.status();
  }
  if (has_ranks(flags)) {
    KVLANE_ASSIGN(loaded.ranks, WorkerRanks::start(flags));
    options.weights = false;
  }
  KVLANE_ASSIGN(loaded.model, Model::load(flags.directory, options));
  if (loaded.ranks) KVLANE_TRY(loaded.ranks->group().wait_for_ranks(*loaded.model));
  return loaded;
}

ModelPrompter make_prompter(const LoadedModel& loaded, int context) {
  return {*loaded.tokenizer, loaded.chat_template ? &*loaded.chat_template : nullptr,
          loaded.chat_problem, loaded.model->config(), context};
}

Result<EngineOptions> engine_options(const ModelFlags& flags, const LoadedModel& loaded) {
  const Model& model = *loaded.model;
  EngineOptions options;
  if (loaded.ranks) options.ranks = &loaded.ranks->group();
  options.kv_bytes = flags.kv_memory;
  options.host_bytes = flags.host_memory;
  options.prefix_caching = flags.prefix_caching;
  options.chunk_tokens = flags.batch_tokens_max;
  options.sequences_max = flags.sequences_max;
  options.slowdown_max = flags.slowdown_max;
  KVLANE_ASSIGN(
      const KvTables tables,
      load_kv_tables(kv_tables_files(flags.directory, flags.kv_tables), model.identity()));
  const KvFormatContext context{.shape = model.config().kv_shape(),
                                .rope = &model.rope(),
                                .tables = &tables,
                                .isa = model.isa()};
  KVLANE_ASSIGN(options.kv_format, make_kv_format(flags.kv_format, context));
  if (!flags.kv_evict.empty()) {
    KVLANE_ASSIGN(options.eviction, make_eviction_rule(flags.kv_evict));
  }
  options.online_axes = flags.zack_online;
  options.kv_codec = flags.kv_codec;
  options.threads = flags.threads;
  KVLANE_ASSIGN(options.state, open_state(flags.state, flags, model, options));
  if (flags.kv_codebook.empty()) return options;
  KVLANE_ASSIGN(const std::string text, read_text_file(flags.kv_codebook, kCodebookFileBytesMax));
  const auto file = parse_codebook_file(text, model.identity(), model.config().kv_shape());
  if (!file.ok()) return file.status().with_context(flags.kv_codebook);
  for (const CalibratedCodebook& each : file->books) options.kv_codebooks.push_back(each.book);
  return options;
}

}  // namespace kvlane
