// Letters about state stores and their bytes.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/state_letter.h"

#include <utility>

#include "ranks/letter_fields.h"

namespace kvlane {
namespace {

// As many layers as a transfer may have.
constexpr std::uint32_t kStateLayersMax = 4096;

Bytes encode_find_as(LetterKind kind, const FindOrder& find) {
  LetterWriter writer(kind);
  writer.number(find.request);
  writer.integer(find.first);
  writer.integer(find.tokens);
  writer.names(find.names);
  return writer.take();
}

Result<FindOrder> decode_find_as(LetterKind kind, ByteView letter) {
  LetterReader reader(letter, kind);
  FindOrder find;
  find.request = reader.number();
  find.first = reader.integer();
  find.tokens = reader.integer();
  find.names = reader.names();
  reader.in_range(find.first <= std::ssize(find.names));
  return reader.end(std::move(find));
}

Bytes encode_number(LetterKind kind, std::uint64_t number) {
  LetterWriter writer(kind);
  writer.number(number);
  return writer.take();
}

Result<std::uint64_t> decode_number(LetterKind kind, ByteView letter) {
  LetterReader reader(letter, kind);
  const std::uint64_t number = reader.number();
  return reader.end(number);
}

}  // namespace

Bytes encode_save(const SaveOrder& save) {
  LetterWriter writer(LetterKind::kSave);
  writer.number(save.request);
  writer.integer(save.block.id);
  writer.integer(save.block.index);
  writer.name(save.block.name);
  writer.name(save.block.first);
  return writer.take();
}

Result<SaveOrder> decode_save(ByteView letter) {
  LetterReader reader(letter, LetterKind::kSave);
  SaveOrder save;
  save.request = reader.number();
  save.block.id = reader.integer();
  save.block.index = reader.integer();
  save.block.name = reader.name();
  save.block.first = reader.name();
  return reader.end(save);
}

Bytes encode_find(const FindOrder& find) { return encode_find_as(LetterKind::kFind, find); }
Bytes encode_prefetch(const FindOrder& find) { return encode_find_as(LetterKind::kPrefetch, find); }

Result<FindOrder> decode_find(ByteView letter) { return decode_find_as(LetterKind::kFind, letter); }
Result<FindOrder> decode_prefetch(ByteView letter) {
  return decode_find_as(LetterKind::kPrefetch, letter);
}

Bytes encode_stored(const RankStored& stored) {
  LetterWriter writer;
  for (const auto* layers : {&stored.hidden, &stored.slabs}) {
    writer.integer(static_cast<std::int32_t>(layers->size()));
    for (const StoredLayer& layer : *layers) {
      writer.integer(layer.blocks);
      writer.real(layer.bytes);
      writer.text(layer.form);
    }
  }
  return writer.take();
}

Result<RankStored> decode_stored(ByteView reply) {
  LetterReader reader(reply);
  RankStored stored;
  for (auto* layers : {&stored.hidden, &stored.slabs}) {
    for (int left = reader.integer(kStateLayersMax); left > 0 && !reader.failed(); --left) {
      StoredLayer& layer = layers->emplace_back();
      layer.blocks = reader.integer();
      layer.bytes = reader.real();
      layer.form = reader.text();
    }
  }
  return reader.end(std::move(stored));
}

Bytes encode_flush(std::uint64_t request) { return encode_number(LetterKind::kFlush, request); }
Result<std::uint64_t> decode_flush(ByteView letter) {
  return decode_number(LetterKind::kFlush, letter);
}

Bytes encode_restore(const RestoreOrder& restore) {
  LetterWriter writer(LetterKind::kRestore);
  writer.number(restore.job);
  writer.integer(restore.first);
  writer.integer(restore.gone);
  writer.list(restore.tokens);
  writer.list(restore.blocks);
  writer.names(restore.names);
  writer.integer(restore.count);
  writer.byte(restore.embedded ? 1 : 0);
  writer.integer(static_cast<std::int32_t>(restore.sources.size()));
  for (const RestoreSource source : restore.sources) {
    writer.byte(static_cast<std::uint8_t>(source));
  }
  return writer.take();
}

Result<RestoreOrder> decode_restore(ByteView letter) {
  LetterReader reader(letter, LetterKind::kRestore);
  RestoreOrder restore;
  restore.job = reader.number();
  restore.first = reader.integer();
  restore.gone = reader.integer();
  restore.tokens = reader.list();
  restore.blocks = reader.list();
  restore.names = reader.names();
  restore.count = reader.integer();
  restore.embedded = reader.flag();
  for (int left = reader.integer(kStateLayersMax); left > 0 && !reader.failed(); --left) {
    restore.sources.push_back(reader.flag() ? RestoreSource::kSlabs : RestoreSource::kHidden);
  }
  return reader.end(std::move(restore));
}

Bytes encode_advance(const AdvanceOrder& advance) {
  LetterWriter writer(LetterKind::kAdvance);
  writer.number(advance.request);
  writer.number(advance.job);
  writer.number(advance.rows_allowed);
  return writer.take();
}

Result<AdvanceOrder> decode_advance(ByteView letter) {
  LetterReader reader(letter, LetterKind::kAdvance);
  AdvanceOrder advance;
  advance.request = reader.number();
  advance.job = reader.number();
  advance.rows_allowed = reader.number();
  return reader.end(advance);
}

Bytes encode_advanced(const Advanced& advanced) {
  LetterWriter writer;
  writer.byte(static_cast<std::uint8_t>(advanced.progress));
  writer.number(advanced.rows_ready);
  writer.integer(advanced.blocks);
  writer.status(advanced.status);
  const RestoreSeconds& busy = advanced.busy;
  for (const double seconds : {busy.read, busy.decode, busy.project, busy.recompute}) {
    writer.real(seconds);
  }
  writer.real(advanced.bytes);
  return writer.take();
}

Result<Advanced> decode_advanced(ByteView reply) {
  LetterReader reader(reply);
  Advanced advanced;
  const std::uint8_t progress = reader.byte();
  if (reader.in_range(progress <= static_cast<int>(SequenceRestore::Progress::kOver))) {
    advanced.progress = SequenceRestore::Progress{progress};
  }
  advanced.rows_ready = reader.number();
  advanced.blocks = reader.integer();
  advanced.status = reader.status();
  RestoreSeconds& busy = advanced.busy;
  for (double* const seconds : {&busy.read, &busy.decode, &busy.project, &busy.recompute}) {
    *seconds = reader.real();
  }
  advanced.bytes = reader.real();
  return reader.end(std::move(advanced));
}

Bytes encode_forget(std::uint64_t job) { return encode_number(LetterKind::kForget, job); }
Result<std::uint64_t> decode_forget(ByteView letter) {
  return decode_number(LetterKind::kForget, letter);
}

Bytes encode_wake() { return LetterWriter(LetterKind::kWake).take(); }

Bytes encode_complete(const CompleteOrder& complete) {
  LetterWriter writer(LetterKind::kComplete);
  writer.number(complete.stream);
  writer.integer(complete.block);
  writer.name(complete.name);
  writer.name(complete.first);
  return writer.take();
}

Result<CompleteOrder> decode_complete(ByteView letter) {
  LetterReader reader(letter, LetterKind::kComplete);
  CompleteOrder complete;
  complete.stream = reader.number();
  complete.block = reader.integer();
  complete.name = reader.name();
  complete.first = reader.name();
  return reader.end(complete);
}

Bytes encode_end_rows(std::uint64_t stream) { return encode_number(LetterKind::kEndRows, stream); }
Result<std::uint64_t> decode_end_rows(ByteView letter) {
  return decode_number(LetterKind::kEndRows, letter);
}

}  // namespace kvlane
