// Letters and their bytes.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/letter.h"

#include <cstring>
#include <utility>

#include "ranks/letter_fields.h"

namespace kvlane {

Result<LetterKind> kind_of(ByteView letter) {
  if (letter.empty()) return corrupt("a letter between ranks is empty");
  return LetterKind{static_cast<std::uint8_t>(letter[0])};
}

Bytes encode_join(const Join& join) {
  LetterWriter writer(LetterKind::kJoin);
  writer.integer(kRanksVersion);
  writer.integer(join.stages);
  writer.integer(join.ranks);
  writer.integer(join.rank);
  writer.raw(join.model);
  writer.address(join.address);
  return writer.take();
}

Result<Join> decode_join(ByteView letter) {
  LetterReader reader(letter, LetterKind::kJoin);
  const int version = reader.integer();
  if (version != kRanksVersion) {
    return unsupported("a rank speaks version " + std::to_string(version) +
                       " of the protocol of ranks, the head version " +
                       std::to_string(kRanksVersion));
  }
  Join join;
  join.stages = reader.integer(kRanksMax);
  join.ranks = reader.integer(kRanksMax);
  join.rank = reader.integer(kRanksMax);
  const ByteView model = reader.raw(join.model.size());
  if (model.size() == join.model.size()) {
    std::memcpy(join.model.data(), model.data(), model.size());
  }
  join.address = reader.address();
  return reader.end(std::move(join));
}

Bytes encode_plan(const Plan& plan) {
  LetterWriter writer(LetterKind::kPlan);
  writer.text(plan.format);
  writer.integer(plan.blocks);
  writer.integer(plan.row_blocks);
  writer.integer(plan.arena_blocks);
  writer.integer(plan.rows_max);
  writer.integer(plan.logits_max);
  writer.integer(plan.context);
  writer.number(plan.tables);
  writer.byte(plan.state ? 1 : 0);
  if (plan.state) {
    const StatePlan& state = *plan.state;
    writer.byte(state.int8 ? 1 : 0);
    for (const int layer : {state.hidden_first, state.hidden_last, state.slabs_first}) {
      writer.integer(layer);
    }
    writer.text(state.codec);
    writer.byte(state.waits ? 1 : 0);
    writer.codebooks(state.codebooks);
  }
  writer.integer(static_cast<std::int32_t>(plan.ranks.size()));
  for (const Address& rank : plan.ranks) writer.address(rank);
  return writer.take();
}

Result<Plan> decode_plan(ByteView letter) {
  LetterReader reader(letter, LetterKind::kPlan);
  Plan plan;
  plan.format = reader.text();
  plan.blocks = reader.integer();
  plan.row_blocks = reader.integer();
  plan.arena_blocks = reader.integer();
  plan.rows_max = reader.integer();
  plan.logits_max = reader.integer();
  plan.context = reader.integer();
  plan.tables = reader.number();
  if (reader.flag()) {
    StatePlan& state = plan.state.emplace();
    state.int8 = reader.flag();
    for (int* const layer : {&state.hidden_first, &state.hidden_last, &state.slabs_first}) {
      *layer = reader.integer();
    }
    state.codec = reader.text();
    state.waits = reader.flag();
    state.codebooks = reader.codebooks();
  }
  for (int left = reader.integer(kRanksMax); left > 0; --left) {
    plan.ranks.push_back(reader.address());
  }
  return reader.end(std::move(plan));
}

Bytes encode_peer(int rank) {
  LetterWriter writer(LetterKind::kPeer);
  writer.integer(rank);
  return writer.take();
}

Result<int> decode_peer(ByteView letter) {
  LetterReader reader(letter, LetterKind::kPeer);
  return reader.end(reader.integer(kRanksMax));
}

Bytes encode_ready() { return LetterWriter(LetterKind::kReady).take(); }

Bytes encode_values(ByteView values) {
  LetterWriter writer(LetterKind::kValues);
  writer.raw(values);
  return writer.take();
}

Result<ByteView> decode_values(ByteView letter) {
  LetterReader reader(letter, LetterKind::kValues);
  return reader.end(reader.rest());
}

Bytes encode_pass(const Pass& pass) {
  LetterWriter writer(LetterKind::kPass);
  writer.number(pass.number);
  writer.integer(static_cast<std::int32_t>(pass.spans.size()));
  for (const PassSpan& span : pass.spans) {
    writer.integer(span.tokens_before);
    writer.integer(span.gone);
    writer.integer(span.sight);
    writer.integer(span.logits);
    writer.list(span.tokens);
    writer.list(span.blocks);
    writer.list(span.rows);
    writer.number(span.saved);
  }
  return writer.take();
}

Result<Pass> decode_pass(ByteView letter) {
  LetterReader reader(letter, LetterKind::kPass);
  Pass pass;
  pass.number = reader.number();
  constexpr std::uint32_t kSpansMax = 1 << 20;
  int left = reader.integer(kSpansMax);
  for (; left > 0 && !reader.failed(); --left) {
    PassSpan& span = pass.spans.emplace_back();
    span.tokens_before = reader.integer();
    span.gone = reader.integer();
    span.sight = reader.integer();
    span.logits = reader.integer();
    span.tokens = reader.list();
    span.blocks = reader.list();
    span.rows = reader.list();
    span.saved = reader.number();
  }
  return reader.end(std::move(pass));
}

Bytes encode_layer(const LayerDone& layer) {
  LetterWriter writer(LetterKind::kLayer);
  writer.number(layer.pass);
  writer.integer(layer.layer);
  return writer.take();
}

Result<LayerDone> decode_layer(ByteView letter) {
  LetterReader reader(letter, LetterKind::kLayer);
  LayerDone layer;
  layer.pass = reader.number();
  layer.layer = reader.integer();
  return reader.end(layer);
}

Bytes encode_pass_end(const PassEnd& end) {
  LetterWriter writer(LetterKind::kEnd);
  writer.number(end.pass);
  writer.status(end.status);
  writer.real(end.times.gemm);
  writer.real(end.times.attention);
  writer.real(end.times.dequantise);
  writer.real(end.times.quantise);
  writer.number(end.save_failures);
  writer.number(end.hidden_tokens_lost);
  writer.raw(end.logits);
  return writer.take();
}

Result<PassEnd> decode_pass_end(ByteView letter) {
  LetterReader reader(letter, LetterKind::kEnd);
  PassEnd end;
  end.pass = reader.number();
  end.status = reader.status();
  end.times.gemm = reader.real();
  end.times.attention = reader.real();
  end.times.dequantise = reader.real();
  end.times.quantise = reader.real();
  end.save_failures = reader.number();
  end.hidden_tokens_lost = reader.number();
  end.logits = reader.rest();
  return reader.end(std::move(end));
}

Bytes encode_copy(const CopyOrder& copy) {
  LetterWriter writer(LetterKind::kCopy);
  writer.number(copy.request);
  writer.place(copy.to);
  writer.place(copy.from);
  return writer.take();
}

Result<CopyOrder> decode_copy(ByteView letter) {
  LetterReader reader(letter, LetterKind::kCopy);
  CopyOrder copy;
  copy.request = reader.number();
  copy.to = reader.place();
  copy.from = reader.place();
  return reader.end(copy);
}

namespace {

Bytes encode_slab_order(LetterKind kind, const SlabOrder& order) {
  LetterWriter writer(kind);
  writer.number(order.request);
  writer.place(order.place);
  writer.integer(order.layer);
  writer.raw(order.bytes);
  return writer.take();
}

SlabOrder read_slab_order(LetterReader& reader) {
  SlabOrder order;
  order.request = reader.number();
  order.place = reader.place();
  order.layer = reader.integer();
  return order;
}

}  // namespace

Bytes encode_read(const SlabOrder& read) { return encode_slab_order(LetterKind::kRead, read); }
Bytes encode_write(const SlabOrder& write) { return encode_slab_order(LetterKind::kWrite, write); }

Result<SlabOrder> decode_read(ByteView letter) {
  LetterReader reader(letter, LetterKind::kRead);
  const SlabOrder order = read_slab_order(reader);
  return reader.end(order);
}

Result<SlabOrder> decode_write(ByteView letter) {
  LetterReader reader(letter, LetterKind::kWrite);
  SlabOrder order = read_slab_order(reader);
  order.bytes = reader.rest();
  return reader.end(order);
}

Bytes encode_reply(const Reply& reply) {
  LetterWriter writer(LetterKind::kReply);
  writer.number(reply.request);
  writer.status(reply.status);
  writer.raw(reply.bytes);
  return writer.take();
}

Result<Reply> decode_reply(ByteView letter) {
  LetterReader reader(letter, LetterKind::kReply);
  Reply reply;
  reply.request = reader.number();
  reply.status = reader.status();
  reply.bytes = reader.rest();
  return reader.end(std::move(reply));
}

}  // namespace kvlane
