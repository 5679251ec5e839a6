// The engine's public face: checks requests and hands them to its thread.
// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "engine/engine_impl.h"
#include "engine/ranked_state.h"
#include "quant/heads_together.h"
#include "quant/zack_ranks.h"

namespace kvlane {
namespace {

constexpr int kAnswersMax = 128;    // to one prompt: each takes a place of the batch
constexpr int kLogprobsMax = 20;    // as OpenAI's API allows
constexpr int kStopTokensMax = 64;  // compared with every token

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

Status check_sampling(const SamplingParams& sampling, int vocab) {
  const auto finite = [](float value) { return std::isfinite(value); };
  if (!(sampling.temperature >= 0) || !finite(sampling.temperature)) {
    return invalid_argument("temperature must be a finite number, 0 or more");
  }
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) {
    return invalid_argument("top_p must be above 0 and at most 1");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return invalid_argument("min_p must be between 0 and 1");
  }
  if (sampling.top_k < 0) return invalid_argument("top_k must be 0 (all) or more");
  if (!(sampling.repetition_penalty > 0) || !finite(sampling.repetition_penalty)) {
    return invalid_argument("repetition_penalty must be a finite number above 0");
  }
  if (!finite(sampling.frequency_penalty) || !finite(sampling.presence_penalty)) {
    return invalid_argument("frequency_penalty and presence_penalty must be finite numbers");
  }
  for (const LogitBias& entry : sampling.logit_bias) {
    if (entry.token < 0 || entry.token >= vocab) {
      return invalid_argument("logit_bias names token " + std::to_string(entry.token) +
                              ", which is not in the vocabulary of " + std::to_string(vocab));
    }
    if (!finite(entry.bias)) return invalid_argument("a bias in logit_bias is not finite");
  }
  return {};
}

Status check_tokens(const std::vector<std::int32_t>& tokens, int vocab) {
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocab) {
      return invalid_argument("token " + std::to_string(token) + " is not in the vocabulary of " +
                              std::to_string(vocab));
    }
  }
  return {};
}

Status check_answers(const GenerationRequest& request, int vocab) {
  if (request.n < 1 || request.n > kAnswersMax) {
    return invalid_argument("n " + std::to_string(request.n) + " is not between 1 and " +
                            std::to_string(kAnswersMax));
  }
  if (request.min_tokens < 0 || request.min_tokens > request.max_tokens) {
    return invalid_argument("min_tokens " + std::to_string(request.min_tokens) +
                            " is not between 0 and max_tokens");
  }
  if (request.logprobs && (*request.logprobs < 0 || *request.logprobs > kLogprobsMax)) {
    return invalid_argument("logprobs " + std::to_string(*request.logprobs) +
                            " is not between 0 and " + std::to_string(kLogprobsMax));
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid_argument("a stop string must not be empty");
  }
  if (request.stop_tokens.size() > kStopTokensMax) {
    return invalid_argument("there are more than " + std::to_string(kStopTokensMax) +
                            " stop tokens");
  }
  return check_tokens(request.stop_tokens, vocab);
}

// Where rows lie in a cache that tokens are evicted from, if the options want one.
Result<std::optional<SparseLayout>> sparse_layout(const Model& model, const Endpoint* endpoint,
                                                  const EngineOptions& options) {
  std::optional<SparseLayout> layout;
  if (!options.eviction) return layout;
  if (endpoint != nullptr || model.device() != nullptr) {
    return unsupported(
        "tokens are evicted where one process computes prompt and answer on the "
        "CPU, not " +
        std::string(endpoint != nullptr ? "between workers" : "on a device"));
  }
  if (const int window = model.config().window; window > 0 && window < model.context()) {
    return unsupported("tokens are not evicted of models with a sliding window, which is " +
                       std::to_string(window) +
                       " tokens here; a --max-model-len within it has none");
  }
  KVLANE_ASSIGN(layout, SparseLayout::create(model.config().kv_shape(), options.kv_format.get()));
  return layout;
}

Status check_online_axes(const Model& model, const Endpoint* endpoint,
                         const EngineOptions& options) {
  if (options.online_axes == 0) return {};
  if (!(options.online_axes > 0 && options.online_axes <= 1)) {
    return invalid_argument("online_axes is a share above 0 and at most 1 of dimensions, or 0");
  }
  if (endpoint != nullptr || model.device() != nullptr || options.kv_format || options.eviction) {
    return unsupported(
        "prompts have axes of their own in caches in bf16 that keep all tokens, where one process "
        "computes prompt and answer on the CPU");
  }
  if (model.config().head_dim % zack::kWidthStep != 0) {
    return unsupported("axes of a prompt's own need a head_dim that is a multiple of " +
                       std::to_string(zack::kWidthStep) + ", not " +
                       std::to_string(model.config().head_dim));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(const Model& model, const Tokenizer& tokenizer,
                                               Endpoint* endpoint, EngineOptions options) {
  if (options.chunk_tokens < 1 || options.sequences_max < 1 || options.queued_max < 0) {
    return invalid_argument("chunk_tokens and sequences_max must be at least 1");
  }
  if (!(options.slowdown_max > 1)) return invalid_argument("slowdown_max must be more than 1");
  const KvShape shape = model.config().kv_shape();
  if (!options.kv_codebooks.empty() &&
      options.kv_codebooks.size() != std::size_t(2) * shape.layers) {
    return invalid_argument("a model of " + std::to_string(shape.layers) + " layers has " +
                            std::to_string(2 * shape.layers) + " codebooks, not " +
                            std::to_string(options.kv_codebooks.size()));
  }
  if (options.kv_format && endpoint != nullptr &&
      options.kv_format->slab_name().size() > kFormatNameBytesMax) {
    return unsupported("KV format '" + options.kv_format->name() + "' cannot travel: frames have " +
                       std::to_string(kFormatNameBytesMax) + " bytes for its name");
  }
  if (options.ranks != nullptr && (options.eviction || options.online_axes > 0)) {
    return unsupported("a model that ranks compute has a cache of all tokens");
  }
  if (options.state.on_ranks && options.state.forms.slabs_first > 0 && options.ranks != nullptr &&
      options.ranks->ranks() > 1 && options.kv_format && codes_heads_together(*options.kv_format)) {
    return unsupported("KV format '" + options.kv_format->name() +
                       "' codes all KV heads of a layer together, so ranks that share heads out "
                       "cannot make its slabs from hidden states or tokens: store slabs (kv)");
  }
  if (options.state.store != nullptr && options.ranks != nullptr) {
    return unsupported("a model that ranks compute has its state in stores of the ranks");
  }
  KVLANE_TRY(check_online_axes(model, endpoint, options));
  KVLANE_ASSIGN(std::optional<SparseLayout> sparse, sparse_layout(model, endpoint, options));
  KVLANE_ASSIGN(EngineParts parts, make_parts(model, options));
  auto engine = std::make_unique<EngineImpl>(model, tokenizer, endpoint, std::move(options),
                                             std::move(sparse), std::move(parts));
  KVLANE_TRY(engine->begin());
  return std::unique_ptr<Engine>(std::move(engine));
}

EngineImpl::EngineImpl(const Model& model, const Tokenizer& tokenizer, Endpoint* endpoint,
                       EngineOptions options, std::optional<SparseLayout> sparse_layout,
                       EngineParts parts)
    : model_(model),
      tokenizer_(tokenizer),
      endpoint_(endpoint),
      options_(std::move(options)),
      sparse_layout_(std::move(sparse_layout)),
      parts_(std::move(parts)) {
  slots_.reserve(options_.sequences_max);
  spans_.reserve(options_.sequences_max);
  pool_.set_on_evict(
      [this](BlockId id, const BlockName& name) { arena_.put(name, pool_.block(id)); });
  if (endpoint_ != nullptr) {
    sender_ = std::make_unique<KvSender>(pool_, std::move(parts_.sending), model.identity(),
                                         options_.kv_format, *codecs_, options_.kv_codebooks);
  }
  publish_load();
}

Status EngineImpl::begin() {
  if (options_.state.saves()) KVLANE_TRY(open_state());
  thread_ = std::thread([this] { loop(); });
  return {};
}

Status EngineImpl::open_state() {
  if (!shares_blocks()) {
    return unsupported(
        "a state store keeps blocks by their names, so it needs the prefix cache, no eviction of "
        "tokens, no axes of each prompt's own, and a KV format without a window");
  }
  const auto on_saved = [this, inbox = inbox_](BlockId id) {
    inbox->post([this, id] { pool_.release(id); });
  };
  const auto wake = [inbox = inbox_] { inbox->post([] {}); };
  if (options_.ranks != nullptr) {
    keeper_ = keep_state_on_ranks(*options_.ranks, options_.state, pool_.shape().layers,
                                  pool_.block_bytes(), options_.kv_format.get(), on_saved, wake);
    return {};
  }
  KVLANE_ASSIGN(keeper_,
                keep_state_here(model_, pool_, *forward_, options_.rows_max(),
                                options_.kv_format.get(), options_.state, options_.kv_codebooks,
                                std::move(parts_.state), on_saved, wake));
  return {};
}

EngineImpl::~EngineImpl() {
  inbox_->stop();
  if (thread_.joinable()) thread_.join();
}

int EngineImpl::context() const {
  // Such sequences do not hold all their tokens.
  if (options_.eviction || sight() > 0) return model_.context();
  const std::int64_t held = std::int64_t{pool_.blocks_total()} * kBlockTokens;
  return static_cast<int>(std::min<std::int64_t>(model_.context(), held));
}

Status EngineImpl::validate(const GenerationRequest& request) const {
  const int prompt = static_cast<int>(request.prompt.size());
  if (prompt == 0) return invalid_argument("the prompt has no tokens");
  if (prompt >= model_.context()) {
    return invalid_argument("the prompt has " + std::to_string(prompt) +
                            " tokens, the model's context of " + std::to_string(model_.context()) +
                            " leaves no room for an answer");
  }
  KVLANE_TRY(check_tokens(request.prompt, model_.config().vocab));
  if (request.max_tokens < 1 || request.max_tokens > model_.context() - prompt) {
    return invalid_argument("max_tokens " + std::to_string(request.max_tokens) +
                            " is not between 1 and " + std::to_string(model_.context() - prompt) +
                            ", what the context of " + std::to_string(model_.context()) +
                            " leaves after a prompt of " + std::to_string(prompt));
  }
  KVLANE_TRY(check_sampling(request.sampling, model_.config().vocab));
  KVLANE_TRY(check_answers(request, model_.config().vocab));
  if (const int blocks = blocks_needed(request); blocks > pool_.blocks_total()) {
    return invalid_argument("prompt and max_tokens need " + std::to_string(blocks) +
                            " KV blocks, the whole KV memory has " +
                            std::to_string(pool_.blocks_total()) + ": ask for fewer tokens (" +
                            std::to_string(kBlockTokens) +
                            " take a block), or start with more --kv-memory");
  }
  return {};
}

// That it holds at once, at most.
int EngineImpl::blocks_needed(const GenerationRequest& request) const {
  const int prompt = static_cast<int>(request.prompt.size());
  if (options_.eviction) return blocks_for(prompt) + eviction_blocks(*options_.eviction, prompt);
  const int all = blocks_for(prompt + request.max_tokens);
  if (sight() == 0) return all;
  // To other workers and from them goes the whole prompt.
  const int travelling = endpoint_ != nullptr ? blocks_for(prompt) : 0;
  return std::min(all, std::max(blocks_in_sight_max(), travelling));
}

BlockTable EngineImpl::new_table() {
  return options_.kv_format ? BlockTable(pool_, *parts_.rows, options_.kv_format->window())
                            : BlockTable(pool_);
}

std::unique_ptr<Sequence> EngineImpl::new_sequence(Request& request, int index,
                                                   const BlockName& root) {
  auto sequence = std::make_unique<Sequence>(request, index, tokenizer_, new_table(), root);
  if (options_.eviction) sequence->sparse.emplace(*sparse_layout_, *options_.eviction);
  // What is sent stays until it is gone.
  if (!request.sends()) {
    sequence->table.limit_sight(sight());
    sequence->blocks_max = blocks_in_sight_max();
  }
  return sequence;
}

Result<EngineImpl::RequestPtr> EngineImpl::new_request(GenerationRequest generation,
                                                       Request::Journey journey) {
  KVLANE_TRY(validate(generation));
  const std::uint64_t seed = generation.seed ? *generation.seed : random_seed();
  KVLANE_ASSIGN(const BlockName root,
                BlockNames::root(model_.identity(), block_format(), generation.cache_salt));
  auto request = std::make_unique<Request>(next_id_.fetch_add(1), std::move(generation), seed);
  request->journey = journey;
  request->sequences.push_back(new_sequence(*request, 0, root));
  // Here, on the caller's thread: a long prompt has thousands of blocks to be hashed.
  KVLANE_TRY(request->prompt().names.extend(request->generation.prompt));
  if (request->sends()) KVLANE_TRY(check_departure(*request));
  return request;
}

Result<RequestId> EngineImpl::enqueue(RequestPtr request) {
  if (waiting_.fetch_add(1) >= options_.queued_max + options_.sequences_max) {
    waiting_.fetch_sub(1);
    return exhausted("the queue is full: " + std::to_string(options_.queued_max) +
                     " requests are waiting");
  }
  const RequestId id = request->id;
  inbox_->post([this, shared = std::make_shared<RequestPtr>(std::move(request))] {
    Request& live = **shared;
    live_.emplace(live.id, std::move(*shared));
    live.share = &shares_.enter(live.generation.client);
    queue(live.prompt());
  });
  return id;
}

Result<RequestId> EngineImpl::submit(GenerationRequest generation, OnUpdate on_update) {
  KVLANE_ASSIGN(RequestPtr request, new_request(std::move(generation)));
  request->on_update = std::move(on_update);
  return enqueue(std::move(request));
}

Result<RequestId> EngineImpl::prefill_and_push(GenerationRequest generation, const Address& peer,
                                               const TransferId& transfer,
                                               OnPrefilled on_prefilled) {
  if (endpoint_ == nullptr) return unsupported("this worker does not send KV");
  KVLANE_ASSIGN(RequestPtr request, new_request(std::move(generation), Request::Journey::kPush));
  request->peer = peer;
  request->transfer = transfer;
  request->on_prefilled = std::move(on_prefilled);
  return enqueue(std::move(request));
}

Result<RequestId> EngineImpl::prefill_and_park(GenerationRequest generation,
                                               const TransferId& transfer,
                                               OnPrefilled on_prefilled) {
  if (endpoint_ == nullptr) return unsupported("this worker does not send KV");
  KVLANE_ASSIGN(RequestPtr request, new_request(std::move(generation), Request::Journey::kPark));
  request->transfer = transfer;
  request->on_prefilled = std::move(on_prefilled);
  return enqueue(std::move(request));
}

Result<RequestId> EngineImpl::reserve(GenerationRequest generation, const TransferId& transfer) {
  if (endpoint_ == nullptr) return unsupported("this worker does not receive KV");
  KVLANE_ASSIGN(RequestPtr request, new_request(std::move(generation), Request::Journey::kReceive));
  request->transfer = transfer;
  request->attach_deadline = SteadyClock::now() + std::chrono::duration_cast<SteadyClock::duration>(
                                                      options_.reservation_lease);
  KVLANE_ASSIGN(const std::shared_ptr<KvReceiver> receiver, make_receiver(*request));
  KVLANE_ASSIGN(const RequestId id, enqueue(std::move(request)));
  // In this order: what the endpoint reports is posted behind the request it is about.
  const Status status = endpoint_->expect_waiting(transfer, options_.reservation_lease, receiver);
  if (!status.ok()) {
    // The caller hears of it now, nobody attaches.
    later(id, [this](Request& r) { bury(r); })();
    return status;
  }
  // There may have been room before the endpoint knew of the transfer.
  if (receiver->granted()) (void)endpoint_->grant(transfer, *receiver);
  return id;
}

Result<RequestId> EngineImpl::fetch_and_decode(GenerationRequest generation, const Address& peer,
                                               const TransferId& transfer, OnUpdate on_update) {
  if (endpoint_ == nullptr) return unsupported("this worker does not receive KV");
  KVLANE_ASSIGN(RequestPtr request, new_request(std::move(generation), Request::Journey::kFetch));
  request->peer = peer;
  request->transfer = transfer;
  request->on_update = std::move(on_update);
  KVLANE_TRY(make_receiver(*request).status());
  return enqueue(std::move(request));
}

Result<std::shared_ptr<KvReceiver>> EngineImpl::make_receiver(Request& request) {
  KVLANE_ASSIGN(const PromptDigest prompt, prompt_digest(request.generation.prompt));
  request.receiver = std::make_shared<KvReceiver>(
      request.prompt().table, parts_.receiving, request.prompt_tokens(), prompt, model_.isa(),
      options_.kv_format, later(request.id, [this](Request& r, const Result<ReceivedKv>& received) {
        arrive(r, received);
      }));
  return request.receiver;
}

Status EngineImpl::attach(RequestId request, OnUpdate on_update) {
  inbox_->post([this, request, on_update = std::move(on_update)] {
    const auto found = live_.find(request);
    if (found == live_.end()) {
      Update gone;
      gone.finish.emplace().error = not_found("request " + std::to_string(request) +
                                              " is over or its reservation has expired");
      on_update(gone);
      return;
    }
    Request& live = *found->second;
    live.on_update = on_update;
    for (const Update& update : std::exchange(live.unheard, {})) live.on_update(update);
    if (live.over) bury(live);
  });
  return {};
}

void EngineImpl::abort(RequestId request) {
  later(request, [this](Request& r) {
    fail(r, aborted("the request was aborted"));
    // Whoever gave a reservation up will not come to hear of it.
    if (r.over && !r.on_update) bury(r);
  })();
}

EngineLoad EngineImpl::load() const {
  StoreFigures store;
  if (options_.state.store) store = options_.state.store->figures();
  const LinkCounts links = endpoint_ ? endpoint_->links() : LinkCounts();
  const std::lock_guard lock(load_mutex_);
  EngineLoad load = load_;
  load.store = store;
  load.links = links;
  return load;
}

void EngineImpl::wait_idle() { inbox_->wait_idle(); }

}  // namespace kvlane
