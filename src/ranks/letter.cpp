// Letters and their bytes.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/letter.h"

#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <utility>

namespace kvlane {
namespace {

// Upper limits of what is read, so that memory follows from the letter's length.
constexpr std::uint32_t kTextBytesMax = 1024;
constexpr std::uint32_t kRanksMax = 4096;
constexpr std::uint32_t kIntMax = std::numeric_limits<std::int32_t>::max();

class Writer {
 public:
  explicit Writer(LetterKind kind) { bytes_.write(static_cast<std::uint8_t>(kind)); }

  void byte(std::uint8_t value) { bytes_.write(value); }
  void integer(std::int32_t value) { bytes_.write(static_cast<std::uint32_t>(value)); }
  void number(std::uint64_t value) { bytes_.write(value); }
  void real(double value) { bytes_.write(std::bit_cast<std::uint64_t>(value)); }
  void raw(ByteView value) { bytes_.write_bytes(value); }
  void text(std::string_view value) {
    value = value.substr(0, kTextBytesMax);
    integer(static_cast<std::int32_t>(value.size()));
    raw(as_byte_view(value));
  }
  void list(std::span<const std::int32_t> values) {
    integer(static_cast<std::int32_t>(values.size()));
    raw(std::as_bytes(values));
  }
  void address(const Address& value) {
    text(value.host);
    integer(value.port);
  }
  void status(const Status& value) {
    byte(static_cast<std::uint8_t>(value.code()));
    text(value.message());
  }
  void place(const BlockPlace& value) {
    byte(static_cast<std::uint8_t>(value.memory));
    integer(value.block);
  }
  Bytes take() { return bytes_.take(); }

 private:
  ByteWriter bytes_;
};

// The fields of a letter behind its kind. What is out of range reads as zero and fails.
class Reader {
 public:
  Reader(ByteView letter, LetterKind kind) : bytes_(letter) {
    in_range(bytes_.read<std::uint8_t>() == static_cast<std::uint8_t>(kind));
  }

  std::uint8_t byte() { return bytes_.read<std::uint8_t>(); }
  int integer(std::uint32_t max = kIntMax) {
    const auto value = bytes_.read<std::uint32_t>();
    return static_cast<int>(in_range(value <= max) ? value : 0);
  }
  std::uint64_t number() { return bytes_.read<std::uint64_t>(); }
  double real() { return std::bit_cast<double>(bytes_.read<std::uint64_t>()); }
  std::string text() {
    const int size = integer(kTextBytesMax);
    return std::string(as_text(bytes_.read_bytes(size)));
  }
  std::vector<std::int32_t> list() {
    const std::size_t size = integer();
    if (!in_range(size <= bytes_.remaining() / sizeof(std::int32_t))) return {};
    std::vector<std::int32_t> values(size);
    const ByteView bytes = bytes_.read_bytes(size * sizeof(std::int32_t));
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  Address address() {
    std::string host = text();
    return {std::move(host), static_cast<std::uint16_t>(integer(65535))};
  }
  Status status() {
    const std::uint8_t code = byte();
    std::string message = text();
    if (code == 0 || !in_range(code <= static_cast<int>(Code::kInternal))) return {};
    return {Code{code}, std::move(message)};
  }
  BlockPlace place() {
    const std::uint8_t memory = byte();
    const int block = integer();
    if (!in_range(memory <= static_cast<int>(RankMemory::kArena))) return {};
    return {RankMemory{memory}, block};
  }
  ByteView rest() { return bytes_.read_bytes(bytes_.remaining()); }
  ByteView raw(std::size_t bytes) { return bytes_.read_bytes(bytes); }
  bool in_range(bool fine) {
    failed_ |= !fine;
    return fine;
  }

  bool failed() const { return failed_ || bytes_.failed(); }
  // Of a letter that was read whole.
  template <class T>
  Result<T> end(T value) const {
    if (failed() || bytes_.remaining() > 0) {
      return corrupt("a letter between ranks is malformed");
    }
    return value;
  }

 private:
  ByteReader bytes_;
  bool failed_ = false;
};

}  // namespace

Result<LetterKind> kind_of(ByteView letter) {
  if (letter.empty()) return corrupt("a letter between ranks is empty");
  return LetterKind{static_cast<std::uint8_t>(letter[0])};
}

Bytes encode_join(const Join& join) {
  Writer writer(LetterKind::kJoin);
  writer.integer(kRanksVersion);
  writer.integer(join.stages);
  writer.integer(join.ranks);
  writer.integer(join.rank);
  writer.raw(join.model);
  writer.address(join.address);
  return writer.take();
}

Result<Join> decode_join(ByteView letter) {
  Reader reader(letter, LetterKind::kJoin);
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
  Writer writer(LetterKind::kPlan);
  writer.text(plan.format);
  writer.integer(plan.blocks);
  writer.integer(plan.row_blocks);
  writer.integer(plan.arena_blocks);
  writer.integer(plan.rows_max);
  writer.integer(plan.logits_max);
  writer.integer(plan.context);
  writer.number(plan.tables);
  writer.integer(static_cast<std::int32_t>(plan.ranks.size()));
  for (const Address& rank : plan.ranks) writer.address(rank);
  return writer.take();
}

Result<Plan> decode_plan(ByteView letter) {
  Reader reader(letter, LetterKind::kPlan);
  Plan plan;
  plan.format = reader.text();
  plan.blocks = reader.integer();
  plan.row_blocks = reader.integer();
  plan.arena_blocks = reader.integer();
  plan.rows_max = reader.integer();
  plan.logits_max = reader.integer();
  plan.context = reader.integer();
  plan.tables = reader.number();
  for (int left = reader.integer(kRanksMax); left > 0; --left) {
    plan.ranks.push_back(reader.address());
  }
  return reader.end(std::move(plan));
}

Bytes encode_peer(int rank) {
  Writer writer(LetterKind::kPeer);
  writer.integer(rank);
  return writer.take();
}

Result<int> decode_peer(ByteView letter) {
  Reader reader(letter, LetterKind::kPeer);
  return reader.end(reader.integer(kRanksMax));
}

Bytes encode_ready() { return Writer(LetterKind::kReady).take(); }

Bytes encode_values(ByteView values) {
  Writer writer(LetterKind::kValues);
  writer.raw(values);
  return writer.take();
}

Result<ByteView> decode_values(ByteView letter) {
  Reader reader(letter, LetterKind::kValues);
  return reader.end(reader.rest());
}

Bytes encode_pass(const Pass& pass) {
  Writer writer(LetterKind::kPass);
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
  }
  return writer.take();
}

Result<Pass> decode_pass(ByteView letter) {
  Reader reader(letter, LetterKind::kPass);
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
  }
  return reader.end(std::move(pass));
}

Bytes encode_layer(const LayerDone& layer) {
  Writer writer(LetterKind::kLayer);
  writer.number(layer.pass);
  writer.integer(layer.layer);
  return writer.take();
}

Result<LayerDone> decode_layer(ByteView letter) {
  Reader reader(letter, LetterKind::kLayer);
  LayerDone layer;
  layer.pass = reader.number();
  layer.layer = reader.integer();
  return reader.end(layer);
}

Bytes encode_pass_end(const PassEnd& end) {
  Writer writer(LetterKind::kEnd);
  writer.number(end.pass);
  writer.status(end.status);
  writer.real(end.times.gemm);
  writer.real(end.times.attention);
  writer.real(end.times.dequantise);
  writer.real(end.times.quantise);
  writer.raw(end.logits);
  return writer.take();
}

Result<PassEnd> decode_pass_end(ByteView letter) {
  Reader reader(letter, LetterKind::kEnd);
  PassEnd end;
  end.pass = reader.number();
  end.status = reader.status();
  end.times.gemm = reader.real();
  end.times.attention = reader.real();
  end.times.dequantise = reader.real();
  end.times.quantise = reader.real();
  end.logits = reader.rest();
  return reader.end(std::move(end));
}

Bytes encode_copy(const CopyOrder& copy) {
  Writer writer(LetterKind::kCopy);
  writer.number(copy.request);
  writer.place(copy.to);
  writer.place(copy.from);
  return writer.take();
}

Result<CopyOrder> decode_copy(ByteView letter) {
  Reader reader(letter, LetterKind::kCopy);
  CopyOrder copy;
  copy.request = reader.number();
  copy.to = reader.place();
  copy.from = reader.place();
  return reader.end(copy);
}

namespace {

Bytes encode_slab_order(LetterKind kind, const SlabOrder& order) {
  Writer writer(kind);
  writer.number(order.request);
  writer.place(order.place);
  writer.integer(order.layer);
  writer.raw(order.bytes);
  return writer.take();
}

SlabOrder read_slab_order(Reader& reader) {
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
  Reader reader(letter, LetterKind::kRead);
  const SlabOrder order = read_slab_order(reader);
  return reader.end(order);
}

Result<SlabOrder> decode_write(ByteView letter) {
  Reader reader(letter, LetterKind::kWrite);
  SlabOrder order = read_slab_order(reader);
  order.bytes = reader.rest();
  return reader.end(order);
}

Bytes encode_reply(const Reply& reply) {
  Writer writer(LetterKind::kReply);
  writer.number(reply.request);
  writer.status(reply.status);
  writer.raw(reply.bytes);
  return writer.take();
}

Result<Reply> decode_reply(ByteView letter) {
  Reader reader(letter, LetterKind::kReply);
  Reply reply;
  reply.request = reader.number();
  reply.status = reader.status();
  reply.bytes = reader.rest();
  return reader.end(std::move(reply));
}

}  // namespace kvlane
