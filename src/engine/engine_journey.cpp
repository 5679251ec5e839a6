// Requests that leave for another worker, and those that come from one.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/engine_impl.h"

namespace kvlane {
namespace {

FirstToken to_wire(const PrefillOutcome::First& first) {
  FirstToken wire{first.token, {}, {}};
  if (!first.logprobs) return wire;
  wire.logprob = first.logprobs->logprob;
  for (const TokenLogprob& each : first.logprobs->top)
    wire.top.emplace_back(each.token, each.logprob);
  return wire;
}

// With log probabilities where the request wants them, which may be more or less than what the
// prefill worker was asked for.
Result<PrefillOutcome::First> from_wire(const FirstToken& wire, const GenerationRequest& request,
                                        int vocab) {
  if (wire.token < 0 || wire.token >= vocab) {
    return corrupt("the prefill worker's first token, " + std::to_string(wire.token) +
                   ", is not in the vocabulary");
  }
  PrefillOutcome::First first{wire.token, {}, {}};
  if (!request.logprobs) return first;
  const auto wanted = static_cast<std::size_t>(std::min(*request.logprobs, vocab));
  if (!wire.logprob || wire.top.size() < wanted) {
    return corrupt(
        "the prefill worker was asked for fewer log probabilities of the first token "
        "than this request wants");
  }
  first.logprobs = TokenLogprobs{*wire.logprob, {}};
  for (const auto& [token, logprob] : wire.top) first.logprobs->top.push_back({token, logprob});
  first.logprobs->top.resize(wanted);
  return first;
}

// What the prefill worker says of the answers that it began, held against what was asked for here.
Result<std::vector<PrefillOutcome::First>> first_tokens(const GenerationRequest& request,
                                                        const TransferEnd& end, int vocab) {
  std::vector<PrefillOutcome::First> first;
  for (const FirstToken& wire : end.first) {
    KVLANE_ASSIGN(PrefillOutcome::First each, from_wire(wire, request, vocab));
    first.push_back(std::move(each));
  }
  if (static_cast<int>(first.size()) != request.n) {
    return corrupt("the prefill worker began " + std::to_string(first.size()) +
                   " answers, this request wants " + std::to_string(request.n));
  }
  const auto prompt_tokens = std::ssize(request.prompt);
  if (end.cached_tokens > prompt_tokens) {
    return corrupt("the prefill worker had " + std::to_string(end.cached_tokens) +
                   " tokens of a prompt that has " + std::to_string(prompt_tokens));
  }
  return first;
}

}  // namespace

// What the messages of a prompt take at most, whatever codec it gets: rows of a coded cache and its
// sealed slabs apart.
std::size_t EngineImpl::messages_bytes_max(const Request& request) const {
  const BlockTable& table = request.prompt().table;
  const int tokens = request.prompt_tokens();
  TransferBegin rows, sealed;
  rows.layers = sealed.layers = pool_.shape().layers;
  for (int block = 0; block < blocks_for(tokens); ++block) {
    (table.arrives_as_rows(block, tokens) ? rows : sealed).tokens += kBlockTokens;
  }
  const std::size_t plane_bytes = codecs_->bound(plane_shape(pool_.shape(), kBlockTokens));
  // Two planes of its values, or packed, which never takes more than the slab.
  const std::size_t sealed_bytes = pool_.slab_sizes().largest() + 2 * kPlaneGrowthBytesMax;
  return outgoing_bytes_needed(rows, kFrameHeaderBytes + 2 * plane_bytes) +
         outgoing_bytes_needed(sealed, kFrameHeaderBytes + sealed_bytes);
}

// What waiting would not change is told at once.
Status EngineImpl::check_departure(const Request& request) const {
  const std::size_t bytes = messages_bytes_max(request);
  const std::size_t arena = endpoint_->outgoing_bytes_max();
  if (bytes <= arena) return {};
  return invalid_argument("K and V of a prompt of " + std::to_string(request.prompt_tokens()) +
                          " tokens may take " + std::to_string(bytes) +
                          " bytes on their way, this worker has " + std::to_string(arena) +
                          " for all that it sends");
}

Status EngineImpl::depart(Request& request) {
  const bool push = request.journey == Request::Journey::kPush;
  const auto link = [endpoint = endpoint_,
                     peer = push ? std::optional(request.peer) : std::nullopt] {
    return endpoint->link_speed(peer);
  };
  const Codec& codec = codecs_->for_transfer(link());
  KVLANE_ASSIGN(const PromptDigest prompt, prompt_digest(request.generation.prompt));
  const TransferBegin begin{request.prompt_tokens(), pool_.shape().layers, kv_format(),
                            std::string(codec.name()), prompt};
  const std::size_t bytes_max = messages_bytes_max(request);
  const OnDelivered on_delivered = later(
      request.id,
      [this](Request& r, const Result<Durations>& delivered) { on_peer_answer(r, delivered); });
  auto outgoing =
      push ? endpoint_->push(request.peer, request.transfer, begin, bytes_max, on_delivered)
           : endpoint_->park(request.transfer, begin, bytes_max, on_delivered);
  if (!outgoing.ok()) return outgoing.status();
  request.job = std::make_shared<KvSender::Job>(std::move(*outgoing), request.prompt().table,
                                                request.prompt_tokens(), codec, link);
  return {};
}

// Blocks up to `last_block` of this layer are final, on a device once it reaches `done`. Of who was
// stopped and computes them again they may have been sent.
void EngineImpl::hand_over(Request& request, int layer, int last_block,
                           const std::shared_ptr<const DeviceMark>& done) {
  if (last_block <= request.blocks_sent) return;
  sender_->add(request.job, layer, request.blocks_sent, last_block, done);
}

// Nothing more will be computed for this request: what is left is the sender's.
void EngineImpl::finish_sending(Request& request) {
  Sequence& prompt = request.prompt();
  detach(prompt);
  count_unsaved(prompt);
  prompt.state = Sequence::State::kSending;
  prompt.enter(&TimeAccount::other);
  if (options_.push_whole && !request.first.empty()) {
    for (int layer = 0; layer < pool_.shape().layers; ++layer) {
      hand_over(request, layer, prompt.table.blocks(), nullptr);
    }
  }
  TransferEnd end;
  for (const PrefillOutcome::First& first : request.first) end.first.push_back(to_wire(first));
  end.seed = request.key.seed;
  end.cached_tokens = request.cached_tokens;
  end.durations = {{"queue", prompt.account.queue},
                   {"restore", prompt.account.restore},
                   {"prefill", prompt.account.prefill},
                   {"prefill_attention", prompt.account.prefill_attention},
                   {"prefill_quantise", prompt.account.prefill_quantise},
                   {"prefill_dequantise", prompt.account.prefill_dequantise}};
  sender_->finish(request.job, std::move(end),
                  later(request.id, [this](Request& r, const SentKv& sent) {
                    r.encoded = true;
                    // The frames may have to wait for the receiver; the blocks need not.
                    r.prompt().table.clear();
                    r.kv = sent.kv;
                    r.prompt().account.encode = sent.encode;
                    if (!sent.status.ok() && r.journey_status.ok()) r.journey_status = sent.status;
                    settle(r);
                  }));
}

// The receiver has all of it, or the transfer failed.
void EngineImpl::on_peer_answer(Request& request, const Result<Durations>& delivered) {
  request.delivered = true;
  if (!delivered.ok()) {
    if (request.journey_status.ok()) request.journey_status = delivered.status();
    if (request.prompt().state != Sequence::State::kSending) {
      fail(request, delivered.status());  // of no use to anybody any more
      return;
    }
  } else {
    const auto seconds = [&](const char* name) {
      const auto found = delivered->find(name);
      return found == delivered->end() ? 0.0 : found->second;
    };
    request.prompt().account.transfer = seconds("transfer");
    request.prompt().account.decode_codec = seconds("decode_codec");
  }
  settle(request);
}

// Concludes a request on its way out once nobody needs its blocks and the outcome is known.
void EngineImpl::settle(Request& request) {
  if (!request.encoded || request.over) return;
  const bool failed = !request.journey_status.ok();
  // After a failure too the endpoint has the last word: then the id is free for another try.
  const bool parked = request.journey == Request::Journey::kPark && !failed;
  if (!parked && !request.delivered) return;
  // What passed since the prompt was computed has its own intervals: encode, transfer.
  Sequence& prompt = request.prompt();
  prompt.interval_start = SteadyClock::now();
  conclude(request, prompt, {}, request.journey_status);
}

// There is room now: the sequence's blocks may be written.
Status EngineImpl::expect_arrival(Request& request) {
  request.receiver->grant();
  if (request.journey == Request::Journey::kFetch) {
    return endpoint_->fetch(request.peer, request.transfer, request.receiver);
  }
  // If the transfer is over, the sink has been told why.
  (void)endpoint_->grant(request.transfer, *request.receiver);
  return {};
}

void EngineImpl::arrive(Request& request, const Result<ReceivedKv>& received) {
  if (request.over) return;
  request.receiver.reset();
  Sequence& prompt = request.prompt();
  if (!received.ok()) {
    conclude(request, prompt, {}, received.status().with_context("The prompt's KV did not arrive"));
    return;
  }
  const auto first = first_tokens(request.generation, received->end, model_.config().vocab);
  if (!first.ok()) {
    conclude(request, prompt, {}, first.status());
    return;
  }
  // Until now the other worker's account ran.
  TimeAccount account;
  for (const AccountField& field : kAccountFields) {
    const auto found = received->end.durations.find(std::string(field.name));
    if (found != received->end.durations.end()) account.*field.seconds = found->second;
  }
  account.transfer += received->transfer;  // to what the sender waited for its link
  account.decode_codec = received->decode_codec;
  prompt.account = account;
  prompt.interval_start = SteadyClock::now();
  request.kv = received->kv;
  request.cached_tokens = received->end.cached_tokens;
  request.key.seed = received->end.seed;

  --receiving_;
  run(prompt);
  prompt.table.set_tokens(request.prompt_tokens());
  publish_blocks(prompt);
  give_back_unseen(prompt);
  answer_prompt(prompt, *first);
}

}  // namespace kvlane
