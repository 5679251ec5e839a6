// The engine of one worker: sequences in a running batch, their blocks, and their journeys.
//
// One thread of the engine computes; every public call is thread-safe and returns at once.
// Callbacks come from the engine's thread (or the network's), must not block and may call the
// engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cache/eviction.h"
#include "codec/codec.h"
#include "engine/state_options.h"
#include "ops/sampling.h"
#include "plan/account.h"
#include "store/store_figures.h"
#include "transfer/endpoint.h"

namespace kvlane {

class KvFormat;
class Model;
class RankGroup;  // ranks/rank_group.h
class Tokenizer;

struct GenerationRequest {
  std::vector<std::int32_t> prompt;  // at least one token, all inside the vocabulary
  SamplingParams sampling;
  // Drawn at random by the engine when absent. Same prompt and seed: same tokens.
  std::optional<std::uint64_t> seed;
  int n = 1;                      // answers to this one prompt, each with random numbers of its own
  int max_tokens = 16;            // of each answer: 1 ... context - prompt
  int min_tokens = 0;             // before that many, neither end-of-sequence nor a stop ends it
  std::vector<std::string> stop;  // generation ends before the first of these; not part of the text
  std::vector<std::int32_t> stop_tokens;  // generation ends with one of these, as with the model's
                                          // own end of sequence
  bool ignore_eos = false;
  std::optional<int> logprobs;  // tell each token's, and those of this many most likely ones
  std::string cache_salt;       // shares cached blocks only with requests of the same salt
  int priority = 0;             // lower first
  std::string client;           // fairness is between clients; any name
};

// Bytes of KV that crossed from prefill to decode.
struct KvBytes {
  std::uint64_t raw = 0;      // valid rows x 2 bytes
  std::uint64_t shipped = 0;  // frames, headers included
  std::string codec;          // of these frames, or of some while the others had none; empty: no KV

  void add_codec(const std::string& name) {
    if (codec.empty() || codec == "none") codec = name;
  }
};

enum class FinishReason {
  kStop,    // end-of-sequence token, stop token or stop string
  kLength,  // max_tokens reached
};

// The end of a request, told exactly once.
struct Finish {
  Status error;  // why it failed, unless ok
  int prompt_tokens = 0;
  int cached_tokens = 0;      // of the prompt: found in the prefix cache, of who computed it
  int completion_tokens = 0;  // of all answers
  TimeAccount account;        // with several answers: of the one that ended last
  KvBytes kv;
};

// What happened to one answer of a request since the last update.
struct Update {
  int choice = 0;                       // 0 ... n - 1: which answer
  std::vector<std::int32_t> tokens;     // new ones; the end-of-sequence token is not among them
  std::vector<TokenLogprobs> logprobs;  // one a token, if asked for
  std::string text;                   // whole UTF-8 characters; a possible stop string is held back
  std::optional<FinishReason> ended;  // this answer is complete
  std::optional<Finish> finish;       // the request is over: set in its last update
};
using OnUpdate = std::function<void(const Update&)>;

// The end of a prefill whose KV goes elsewhere.
struct PrefillOutcome {
  struct First {
    std::int32_t token = 0;
    std::string text;
    std::optional<TokenLogprobs> logprobs;
  };
  Finish finish;             // with `error` when it failed; completion_tokens is n
  std::vector<First> first;  // the first token of each answer; empty when it failed
};
using OnPrefilled = std::function<void(const PrefillOutcome&)>;

using RequestId = std::uint64_t;

struct EngineOptions {
  std::size_t kv_bytes = std::size_t{1} << 30;  // --kv-memory: the block pool
  std::size_t host_bytes = 0;                   // --host-memory: where evicted blocks go
  bool prefix_caching = true;                   // requests share blocks of equal names
  // How sealed blocks lie in memory; null: rows of 16 bits. With a window blocks are not shared.
  std::shared_ptr<const KvFormat> kv_format;
  // Which tokens of its prompt a sequence keeps; absent: all. Sequences then share no blocks, and
  // only an engine on the CPU that neither sends nor receives KV does it.
  std::optional<EvictionRule> eviction;
  // ZACK's ablation OE (engine/online_axes.h): of each prompt this share of K's and V's dimensions
  // stays, along axes of its own; 0: off. Only for caches in 16 bits on the CPU that neither send
  // nor receive KV. Sequences then share no blocks, and coefficients are memory beside `kv_bytes`.
  double online_axes = 0;
  int chunk_tokens = 512;  // most prompt tokens computed in one step
  // How much longer a step may take for running answers because it carries prompt tokens too; at
  // least kPromptTokensMin (plan/batching.h) are carried anyway. More than 1.
  double slowdown_max = 2;
  int sequences_max = 64;                                        // running at once
  int rows_max() const { return chunk_tokens + sequences_max; }  // of one step
  int queued_max = 1024;  // waiting at most; beyond: kExhausted
  // For transfers this worker sends: a codec's name, or "auto": for each what its link asks for.
  std::string kv_codec = "none";
  // From calibration, for codecs that take one: K then V for each layer; or none at all.
  std::vector<Codebook> kv_codebooks;
  bool push_whole = false;  // send when all is computed, not layer by layer
  // How long a reservation waits for the push to begin, and its answer for somebody to attach.
  Seconds reservation_lease{60};
  // Where complete blocks are kept beyond memory and beyond this process. For caches whose
  // sequences share blocks; hidden states are kept of models on the CPU alone.
  StateOptions state;
  int threads = 0;  // of parallel loops; 0: as many as OpenMP would take
  // Who computes a model whose weights are not here, and has its cache; outlives the engine.
  // Without eviction, axes of prompts' own and a state store.
  RankGroup* ranks = nullptr;
};

// What a worker can be asked about itself (health, routing, metrics).
struct EngineLoad {
  int running = 0;
  int queued = 0;
  std::int64_t queued_tokens = 0;  // prompt tokens not yet computed, waiting requests included
  int blocks_free = 0;             // to be had, cached ones included
  int blocks_total = 0;
  int blocks_cached = 0;  // kept for their names only
  int host_blocks = 0;    // in host memory
  LinkCounts links;       // to other workers; zeros without an endpoint
  StoreFigures store;     // of the state store, whoever uses it; zeros without one
  // Since the start.
  std::int64_t prefix_query_tokens = 0;  // of prompts that were looked up
  std::int64_t prefix_hit_tokens = 0;    // found
  std::int64_t host_hit_tokens = 0;      // of these: brought back from host memory
  std::int64_t store_hit_tokens = 0;     // likewise: brought back from the state store
  std::int64_t restores = 0;             // of a sequence from the state store
  std::int64_t restores_failed = 0;      // of these, that could not read or compute all they wanted
  std::int64_t restore_bytes = 0;        // read for them
  double restore_seconds = 0;            // that they took, from the first read on
  double restore_seconds_expected = 0;   // by the profile of this machine; 0 without one
  std::int64_t save_failures = 0;        // blocks whose slabs the state store did not take
  std::int64_t hidden_tokens_lost = 0;   // of complete blocks, whose hidden states are not saved
  std::int64_t preemptions = 0;
  std::int64_t recomputed_tokens = 0;  // because of preemptions
  // Planes whose codebook was made anew; of these, where one did not fit any more.
  std::int64_t codebooks_counted = 0;
  std::int64_t codebooks_replaced = 0;
  std::int64_t steps = 0;
  double step_seconds = 0;      // in steps, all of them
  double schedule_seconds = 0;  // of these: no forward pass, no sampling, no restore
};

class Engine {
 public:
  // `endpoint` may be null: the engine then neither sends nor receives KV. Model, tokenizer and
  // endpoint outlive the engine.
  static Result<std::unique_ptr<Engine>> create(const Model& model, const Tokenizer& tokenizer,
                                                Endpoint* endpoint, EngineOptions options);
  virtual ~Engine() = default;  // fails what is running with kAborted, then joins its thread

  // Most tokens of prompt and answer together: the model's context, or what KV memory holds at once
  // if that is less.
  virtual int context() const = 0;

  // Checks a request against the model and the limits, as every submit does. kInvalidArgument says
  // which field is wrong; nothing is queued.
  virtual Status validate(const GenerationRequest& request) const = 0;

  // Prefill and decode here.
  virtual Result<RequestId> submit(GenerationRequest request, OnUpdate on_update) = 0;

  // Prefill here; slabs are pushed to `peer` layer by layer as they are computed. `on_prefilled`
  // comes when the peer has acknowledged all of it, or with the error.
  virtual Result<RequestId> prefill_and_push(GenerationRequest request, const Address& peer,
                                             const TransferId& transfer,
                                             OnPrefilled on_prefilled) = 0;
  // Prefill here; the frames wait under `transfer` until fetched or the lease ends. `on_prefilled`
  // comes when they are parked.
  virtual Result<RequestId> prefill_and_park(GenerationRequest request, const TransferId& transfer,
                                             OnPrefilled on_prefilled) = 0;

  // Decode here what another worker prefills. `reserve` waits for blocks, then for the push, which
  // waits for the blocks too; `attach` names who gets the tokens (those already there come at
  // once). A reservation that nobody attaches to within its lease is given up.
  virtual Result<RequestId> reserve(GenerationRequest request, const TransferId& transfer) = 0;
  virtual Status attach(RequestId request, OnUpdate on_update) = 0;
  // Decode here what waits parked at `peer`.
  virtual Result<RequestId> fetch_and_decode(GenerationRequest request, const Address& peer,
                                             const TransferId& transfer, OnUpdate on_update) = 0;

  // Ends a request early: its blocks return, its callback gets kFailed with kAborted. Unknown or
  // finished ids are ignored.
  virtual void abort(RequestId request) = 0;

  virtual EngineLoad load() const = 0;
  // Returns when nothing is queued or running any more.
  virtual void wait_idle() = 0;

  // Of a state store; without one there is nothing. How many tokens of this prompt's beginning,
  // in complete blocks, can be brought back for requests with this salt: counts as use, and reads
  // nothing.
  virtual Result<int> stored_tokens(std::span<const std::int32_t> /*prompt*/,
                                    const std::string& /*cache_salt*/) const {
    return 0;
  }
  // Returns when what was computed for requests that are over is in the store, or could not be
  // saved.
  virtual void flush_state() {}
};

}  // namespace kvlane
