// Sequences that leave for another worker, and those that come from one.
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "engine/engine_impl.h"

namespace kvlane {

Status EngineImpl::depart(Sequence& sequence) {
  const TransferBegin begin{sequence.prompt_tokens(), pool_.shape().layers, kv_format(),
                            std::string(codec_.name())};
  const OnDelivered on_delivered = later(
      sequence.id,
      [this](Sequence& s, const Result<Durations>& delivered) { on_peer_answer(s, delivered); });
  auto outgoing = sequence.journey == Sequence::Journey::kPush
                      ? endpoint_->push(sequence.peer, sequence.transfer, begin, on_delivered)
                      : endpoint_->park(sequence.transfer, begin, on_delivered);
  if (!outgoing.ok()) {
    sequence.journey_status = outgoing.status();
    return outgoing.status();
  }
  sequence.job = std::make_shared<KvSender::Job>(std::move(*outgoing), sequence.table,
                                                 sequence.prompt_tokens());
  return {};
}

// Nothing more will be computed for this sequence: what is left is the sender's.
void EngineImpl::finish_sending(Sequence& sequence) {
  sequence.state = Sequence::State::kSending;
  TransferEnd end;
  end.first_token = sequence.tokens.back();
  end.seed = sequence.key.seed;
  end.durations = {{"queue", sequence.account.queue},
                   {"prefill", sequence.account.prefill},
                   {"prefill_attention", sequence.account.prefill_attention}};
  sender_->finish(sequence.job, std::move(end),
                  later(sequence.id, [this](Sequence& s, const SentKv& sent) {
                    s.encoded = true;
                    s.kv = sent.kv;
                    s.account.encode = sent.encode;
                    if (!sent.status.ok() && s.journey_status.ok()) s.journey_status = sent.status;
                    settle(s);
                  }));
}

// The receiver has all of it, or the transfer failed.
void EngineImpl::on_peer_answer(Sequence& sequence, const Result<Durations>& delivered) {
  sequence.delivered = true;
  if (!delivered.ok()) {
    if (sequence.journey_status.ok()) sequence.journey_status = delivered.status();
    if (sequence.state == Sequence::State::kPrefill) {
      fail(sequence, delivered.status());  // of no use to anybody any more
      return;
    }
  } else {
    const auto seconds = [&](const char* name) {
      const auto found = delivered->find(name);
      return found == delivered->end() ? 0.0 : found->second;
    };
    sequence.account.transfer = seconds("transfer");
    sequence.account.decode_codec = seconds("decode_codec");
  }
  settle(sequence);
}

// Concludes a sequence on its way out once nobody needs its blocks and the outcome is known.
void EngineImpl::settle(Sequence& sequence) {
  if (!sequence.encoded) return;
  const bool failed = !sequence.journey_status.ok();
  const bool known = failed || sequence.delivered || sequence.journey == Sequence::Journey::kPark;
  if (!known) return;
  conclude(sequence, FinishReason::kLength, Status(sequence.journey_status));
}

void EngineImpl::arrive(Sequence& sequence, const Result<ReceivedKv>& received) {
  sequence.receiver.reset();
  if (!received.ok()) {
    conclude(sequence, FinishReason::kLength,
             received.status().with_context("The prompt's KV did not arrive"));
    return;
  }
  TimeAccount& account = sequence.account;
  for (const AccountField& field : kAccountFields) {
    const auto found = received->end.durations.find(std::string(field.name));
    if (found != received->end.durations.end()) account.*field.seconds = found->second;
  }
  account.transfer += received->transfer;  // to what the sender waited for its link
  account.decode_codec = received->decode_codec;
  sequence.kv = received->kv;
  sequence.key.seed = received->end.seed;
  sequence.table.set_tokens(sequence.prompt_tokens());
  const std::int32_t token = received->end.first_token;
  if (token < 0 || token >= model_.config().vocab) {
    conclude(sequence, FinishReason::kLength,
             corrupt("the prefill worker's first token, " + std::to_string(token) +
                     ", is not in the vocabulary"));
    return;
  }
  start_decoding(sequence);
  accept_token(sequence, token);
}

// Ends a sequence wherever it is. One on its way out lives on until the sender has let go of it.
void EngineImpl::fail(Sequence& sequence, const Status& why) {
  using State = Sequence::State;
  if (sequence.unheard.finish) return;  // it is over, only untold
  if (sequence.state == State::kReceiving) {
    endpoint_->cancel(sequence.transfer);  // from here on its blocks are ours again
    conclude(sequence, FinishReason::kLength, why);
    return;
  }
  if (sequence.job == nullptr) {
    conclude(sequence, FinishReason::kLength, why);
    return;
  }
  if (sequence.journey_status.ok()) sequence.journey_status = why;
  sequence.job->cancel();
  if (sequence.state == State::kPrefill) {
    finish_sending(sequence);  // a cancelled job sends nothing more, it only reports its end
  } else {
    endpoint_->cancel(sequence.transfer);
    settle(sequence);
  }
}

}  // namespace kvlane
