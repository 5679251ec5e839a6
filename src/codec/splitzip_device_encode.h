// The encoder of codec/splitzip_device.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "codec/splitzip_device_encode_spans.h"

namespace kvlane::splitzip {

namespace device {

// A warp's run of chunks. Returns the words of its part of the table.
template <ElementType kType, class Thread>
KVLANE_DEVICE std::uint32_t encode_run(Thread& t, const EncodePlan& plan, std::uint32_t begin,
                                       std::uint32_t end, WordSink sink) {
  using Part = std::conditional_t<kType == ElementType::kBf16, Bf16Part, Fp8Part<kType>>;
  const std::uint32_t whole = plan.elements / kChunk;
  for (std::uint32_t chunk = begin; chunk < end;) {
    if (plan.aligned && chunk < whole) {
      const std::uint32_t left = (end < whole ? end : whole) - chunk;
      const std::uint32_t chunks = left < kSpanChunks ? left : kSpanChunks;
      const std::uint32_t next = chunk + kSpanChunks;
      fetch_bytes_ahead(t, plan.plane + std::size_t{next} * kChunk * element_bytes(kType),
                        span_values(next, end < whole ? end : whole) *
                            static_cast<std::uint32_t>(element_bytes(kType)));
      sink.words += encode_span<Part>(t, plan, chunk, chunks, sink);
      chunk += chunks;
    } else {
      sink.words += encode_any_chunk<kType>(t, plan, chunk, sink);
      ++chunk;
    }
  }
  return sink.words;
}

// Leaves codebook and codes in shared memory: the given one, or the best one for the plane.
template <ElementType kType, class Thread>
KVLANE_DEVICE void prepare_codebook(Thread& t, const DeviceEncodeTask& task,
                                    DeviceEncodeShared& shared) {
  constexpr Fields kFields = fields_of(kType);
  constexpr int kExponents = 1 << kFields.exponent_bits;
  for (int e = t.index(); e < 256; e += t.threads()) {
    shared.counts[e] = 0;
    shared.code_of[e] = 0x80;
  }
  if (t.index() < static_cast<int>(kCodebookEntries)) shared.exponent[t.index()] = 0;
  t.sync_block();
  if (task.codebook != nullptr) {
    if (t.index() < kFields.codebook_entries) {
      const std::uint8_t exponent = task.codebook[t.index()];
      shared.exponent[t.index()] = exponent;
      shared.code_of[exponent] = static_cast<std::uint8_t>(t.index());
    }
    t.sync_block();
    return;
  }
  for (std::uint32_t i = t.index(); i < task.elements; i += t.threads()) {
    const std::byte* const value = task.plane + std::size_t{i} * element_bytes(kType);
    t.add(shared.counts[parts_of<kType>(value).exponent], 1);
  }
  t.sync_block();
  // An exponent's rank: how many are more frequent, or as frequent and smaller.
  const auto chosen = [&](int e) {
    int rank = 0;
    for (int other = 0; other < kExponents; ++other) {
      rank += shared.counts[other] > shared.counts[e] ||
              (other < e && shared.counts[other] == shared.counts[e]);
    }
    return rank < kFields.codebook_entries;
  };
  for (int e = t.index(); e < kExponents; e += t.threads()) {
    if (chosen(e)) shared.code_of[e] = 0;
  }
  t.sync_block();
  for (int e = t.index(); e < kExponents; e += t.threads()) {
    if (shared.code_of[e] >= 0x80) continue;
    int code = 0;
    for (int other = 0; other < e; ++other) code += shared.code_of[other] < 0x80;
    shared.exponent[code] = static_cast<std::uint8_t>(e);
  }
  t.sync_block();
  if (t.index() < kFields.codebook_entries) {
    shared.code_of[shared.exponent[t.index()]] = static_cast<std::uint8_t>(t.index());
  }
  t.sync_block();
}

// What lies between sections, up to the escape table.
template <class Thread>
KVLANE_DEVICE void store_padding(Thread& t, const Sections& at, std::byte* body) {
  store_zeros(t, body, at.codebook + kCodebookEntries, at.nibbles);
  store_zeros(t, body, at.nibbles_end, at.bytes);
  store_zeros(t, body, at.bytes_end, at.pairs);
  store_zeros(t, body, at.pairs_end, at.bits);
  store_zeros(t, body, at.bits_end, at.counts);
  store_zeros(t, body, at.counts_end, at.table);
}

template <class Thread>
KVLANE_DEVICE void store_prefix(Thread& t, const DeviceEncodeTask& task, Mode mode,
                                std::uint32_t table_words) {
  if (t.index() != 0) return;
  const Prefix prefix{.version = kBodyVersion,
                      .mode = static_cast<std::uint8_t>(mode),
                      .element_type = static_cast<std::uint8_t>(task.type),
                      .reserved_3 = 0,
                      .elements = task.elements,
                      .table_words = table_words,
                      .reserved_12 = 0};
  std::memcpy(task.body, &prefix, sizeof(prefix));
}

// These return the length of the body.
template <class Thread>
KVLANE_DEVICE std::size_t encode_raw(Thread& t, const DeviceEncodeTask& task) {
  const std::size_t bytes = std::size_t{task.elements} * element_bytes(task.type);
  store_prefix(t, task, Mode::kRaw, 0);
  copy_bytes(t, task.body + sizeof(Prefix), task.plane, bytes);
  store_zeros(t, task.body, sizeof(Prefix) + bytes, raw_body_bytes(bytes));
  return raw_body_bytes(bytes);
}

template <ElementType kType, class Thread>
KVLANE_DEVICE std::size_t encode_coded(Thread& t, const DeviceEncodeTask& task,
                                       DeviceEncodeShared& shared) {
  const auto raw_end =
      static_cast<std::uint32_t>(raw_body_bytes(std::size_t{task.elements} * element_bytes(kType)));
  const Sections at = sections(kType, task.elements, 0);
  if (at.end >= raw_end) return encode_raw(t, task);
  store_padding(t, at, task.body);
  prepare_codebook<kType>(t, task, shared);
  constexpr int kLast = fields_of(kType).codebook_entries - 1;
  const std::uint32_t lowest = shared.exponent[0];
  const EncodePlan plan{.plane = task.plane,
                        .body = task.body,
                        .at = offsets(at),
                        .shared = &shared,
                        .elements = task.elements,
                        .window = lowest * 0x01010101U,
                        .is_window = shared.exponent[kLast] - lowest == kLast,
                        .aligned = (reinterpret_cast<std::uintptr_t>(task.plane) |
                                    reinterpret_cast<std::uintptr_t>(task.body)) %
                                       16 ==
                                   0};
  const auto chunks = static_cast<std::uint32_t>(chunk_count(task.elements));
  const std::uint32_t spans = (chunks + kSpanChunks - 1) / kSpanChunks;
  const std::uint32_t run = (spans + t.warps() - 1) / t.warps() * kSpanChunks;
  const std::uint32_t begin = run * t.warp() < chunks ? run * t.warp() : chunks;
  const std::uint32_t end = begin + run < chunks ? begin + run : chunks;
  const std::uint32_t room = kStagedWords / t.warps();
  WordSink sink{shared.staged + room * t.warp(), room, task.body, 0, 0};
  std::uint32_t total = 0;
  // Once, or with escapes that did not fit twice; one call, as it takes many registers.
  for (bool again = false;; again = true) {
    const std::uint32_t own = encode_run<kType>(t, plan, begin, end, sink);
    if (again) break;
    if (t.lane() == 0) shared.words[t.warp()] = own;
    t.sync_block();
    std::uint32_t before = 0;
    for (int warp = 0; warp < t.warps(); ++warp) {
      if (warp < t.warp()) before += shared.words[warp];
      total += shared.words[warp];
    }
    if (sections(kType, task.elements, total).end >= raw_end) return encode_raw(t, task);
    const std::uint32_t table = plan.at.table + 2 * before;
    if (own > room) {
      sink.table = table;
      continue;
    }
    for (std::uint32_t i = t.lane(); i < own; i += kWarpThreads) {
      store_half(task.body + table + 2 * std::size_t{i}, sink.staged[i]);
    }
    break;
  }
  store_prefix(t, task, Mode::kCoded, total);
  if (t.index() < static_cast<int>(kCodebookEntries)) {
    store_byte(task.body + at.codebook + t.index(), shared.exponent[t.index()]);
  }
  const Sections whole = sections(kType, task.elements, total);
  store_zeros(t, task.body, whole.table_end, whole.end);
  return whole.end;
}

}  // namespace device

// One block of at most kDeviceWarps warps.
template <class Thread>
KVLANE_DEVICE void encode_plane(Thread& t, const DeviceEncodeTask& task,
                                DeviceEncodeShared& shared) {
  if (t.index() == 0) shared.body_bytes = task.body_bytes;
  const auto encode = [&] {
    switch (task.type) {
      case ElementType::kBf16: return device::encode_coded<ElementType::kBf16>(t, task, shared);
      case ElementType::kFp8E4m3:
        return device::encode_coded<ElementType::kFp8E4m3>(t, task, shared);
      case ElementType::kFp8E5m2:
        return device::encode_coded<ElementType::kFp8E5m2>(t, task, shared);
      default: return device::encode_raw(t, task);
    }
  };
  const std::size_t bytes = encode();
  if (t.index() == 0) *shared.body_bytes = static_cast<std::uint32_t>(bytes);
}

}  // namespace kvlane::splitzip
