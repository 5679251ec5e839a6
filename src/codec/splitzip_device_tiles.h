// The decoder of codec/splitzip_device.h for bf16 planes of whole chunks whose bytes lie as memory
// likes it.
//
// Warps take spans in turn: a tile is one span a warp, so a block reads and writes places that
// follow each other. Where nibbles, rests and counts lie follows from the task, so that all is
// asked for before anything is known of the body; a warp sums up counts itself, and no table word
// is read that is not in the body. Nobody waits for other warps but for the verdict.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_spans.h"
#include "codec/splitzip_variant.h"

namespace kvlane::splitzip {

inline constexpr int kRingSpans = KVLANE_SZ_RING;
inline constexpr bool kRingBulk = KVLANE_SZ_BULK != 0;
inline constexpr int kStaged = KVLANE_SZ_STAGE;
inline constexpr bool kPipelined = KVLANE_SZ_PIPE != 0 && kRingSpans == 0;

// What a warp has in shared memory.
struct DeviceDecodeRoom {
  using Words4 = gpu::Words4;
  // Of a span: nibbles, then rests.
  Words4 ring[kRingSpans > 0 ? kRingSpans : 1][96];
  Words4 values[kStaged > 0 ? 128 : 1];
  gpu::CopyMark marks[kRingSpans > 0 ? kRingSpans : 1];
};
inline constexpr bool kDecodeNeedsRoom = kRingSpans > 0 || kStaged > 0;

namespace device {

// Counts of a tile's whole chunks, 0 behind the last.
struct TileCounts {
  static constexpr int kEach = kDeviceWarps * kSpanChunks / kWarpThreads;
  unsigned own;  // of chunks lane, lane + 32, ... of the tile, a byte each

  KVLANE_DEVICE unsigned of(std::uint32_t i) const { return own >> 8 * i & 0xFF; }
};
template <class Thread>
KVLANE_DEVICE TileCounts load_tile_counts(Thread& t, const DecodePlan& plan, std::uint32_t tile,
                                          std::uint32_t end) {
  TileCounts counts{};
  KVLANE_UNROLL
  for (int j = 0; j < TileCounts::kEach; ++j) {
    const std::uint32_t i = t.lane() + kWarpThreads * j;
    if (i < kSpanChunks * t.warps() && tile + i < end) {
      counts.own |= load_byte(plan.body + plan.at.counts + tile + i) << 8 * j;
    }
  }
  return counts;
}

KVLANE_DEVICE std::uint32_t whole_chunk_words(unsigned count) {
  return count == kRawChunk ? kChunk / 2 : count;
}

// Those of this warp's span of a tile, as find_escapes(). None where the table would not have them.
template <class Thread>
KVLANE_DEVICE Escapes find_in_tile(Thread& t, const DecodePlan& plan, const TileCounts& counts,
                                   const TileTask& task, std::uint32_t& word, bool& right) {
  const std::uint32_t own = t.lane() / 8, first = kSpanChunks * t.warp();
  std::uint32_t before = 0, all = 0;
  KVLANE_UNROLL
  for (int j = 0; j < TileCounts::kEach; ++j) {
    const std::uint32_t words = whole_chunk_words(counts.of(j));
    const std::uint32_t i = t.lane() + kWarpThreads * j;
    if (i < first) before += words;
    all += words;
  }
  before = t.sum(before);
  all = t.sum(all);
  Escapes found{};
  found.count =
      t.shuffle(counts.of(first / kWarpThreads), static_cast<int>((first + own) % kWarpThreads));
  found.first_word = word + before;
  const std::uint32_t words = whole_chunk_words(found.count);
  KVLANE_UNROLL
  for (std::uint32_t other = 0; other + 1 < kSpanChunks; ++other) {
    const std::uint32_t of_other = t.shuffle(words, static_cast<int>(8 * other));
    if (other < own) found.first_word += of_other;
  }
  word += all;
  const bool fits = found.first_word + words <= task.table_words;
  right = right && fits && (found.count <= kChunkEscapesMax || found.count == kRawChunk);
  if (!fits) found.count = 0;
  const unsigned i = t.lane() % 8;
  if (found.has(i)) {
    found.entry =
        load_aligned_half(plan.body + plan.at.table + 2 * (std::size_t{found.first_word} + i));
  }
  return found;
}

// A warp's ring of spans on their way, and where its values are put together.
template <class Thread>
class Room {
 public:
  KVLANE_DEVICE Room(Thread& t, DeviceDecodeRoom* room) : t_(t), room_(room) {
    if constexpr (kRingSpans > 0 && kRingBulk) {
      if (t.lane() == 0) {
        for (int i = 0; i < kRingSpans; ++i) t.begin_mark(room->marks[i]);
      }
    }
  }

  // Begins to load the span that begins with this chunk, where whole ones end with `end`.
  KVLANE_DEVICE void begin(const DecodePlan& plan, std::uint32_t chunk, std::uint32_t end,
                           std::uint32_t slot) {
    const std::size_t first = std::size_t{chunk} * kChunk;
    Words4* const to = room_->ring[slot];
    if constexpr (kRingBulk) {
      const std::uint32_t values = span_values(chunk, end);
      if (t_.lane() == 0 && values != 0) {
        CopyMark& mark = room_->marks[slot];
        t_.expect(mark, values / 2 * 3);
        t_.copy_bulk(to, plan.body + plan.at.nibbles + first / 2, values / 2, mark);
        t_.copy_bulk(to + 32, plan.body + plan.at.bytes + first, values, mark);
      }
    } else {
      // What lies behind the last chunk is not read.
      const std::uint32_t lane = t_.lane(), values = span_values(chunk, end);
      const std::byte* const nibbles = plan.body + plan.at.nibbles + first / 2 + 16 * lane;
      const std::byte* const rests = plan.body + plan.at.bytes + first + 16 * lane;
      t_.copy_async(to[lane], nibbles, 32 * lane < values);
      t_.copy_async(to[32 + lane], rests, 16 * lane < values);
      t_.copy_async(to[64 + lane], rests + 512, 16 * lane + 512 < values);
      t_.close_copies();
    }
  }
  // Until it is there, for the whole warp.
  KVLANE_DEVICE void wait(std::uint32_t slot, std::uint32_t phase, bool any) {
    if constexpr (kRingBulk) {
      if (any) t_.wait_mark(room_->marks[slot], phase);
    } else {
      t_.template wait_copies_but<kRingSpans - 1>();
      t_.sync_warp();
    }
  }
  // Until all that was begun is there, when nothing was waited for yet.
  KVLANE_DEVICE void drain(std::uint32_t chunk, std::uint32_t step, std::uint32_t end) {
    if constexpr (kRingSpans > 0 && kRingBulk) {
      for (int i = 0; i < kRingSpans - 1; ++i) {
        if (chunk + static_cast<std::uint32_t>(i) * step < end) t_.wait_mark(room_->marks[i], 0);
      }
    } else if constexpr (kRingSpans > 0) {
      t_.wait_copies();
    }
  }
  KVLANE_DEVICE CodedPart part(std::uint32_t slot) const {
    const Words4* const ring = room_->ring[slot];
    const std::uint32_t group = t_.lane() / 4, column = t_.lane() % 4;
    return {ring[t_.lane()], {ring[32 + 8 * group + column], ring[36 + 8 * group + column]}};
  }
  // The rest with this place in this thread's chunk.
  KVLANE_DEVICE unsigned rest(std::uint32_t slot, unsigned place) const {
    const auto* const rests = reinterpret_cast<const std::byte*>(room_->ring[slot] + 32);
    return load_byte(rests + t_.lane() / 8 * kChunk + place);
  }

  // The thread's values. With kStaged 1 banks want groups by turns the other way around.
  KVLANE_DEVICE std::byte* staged() const { return reinterpret_cast<std::byte*>(room_->values); }
  KVLANE_DEVICE static std::uint32_t swizzled(std::uint32_t at) {
    return kStaged == 1 ? at ^ (at >> 2 & 64) : at;
  }
  // `values` of them go to the plane, behind a barrier.
  KVLANE_DEVICE void store(std::byte* to, std::uint32_t values) {
    if constexpr (kStaged == 2) {
      if (t_.lane() == 0 && values != 0) t_.store_bulk(to, room_->values, 2 * values);
    } else {
      KVLANE_UNROLL
      for (std::uint32_t i = 0; i < 4; ++i) {
        const std::uint32_t at = 512 * i + 16 * t_.lane();
        if (at < 2 * values) {
          store_once(to + at, *reinterpret_cast<const Words4*>(staged() + swizzled(at)));
        }
      }
    }
  }
  // Until room for values is there again.
  KVLANE_DEVICE void wait_stored() {
    if constexpr (kStaged == 2) {
      if (t_.lane() == 0) t_.wait_bulk_read();
    }
    t_.sync_warp();
  }

 private:
  Thread& t_;
  DeviceDecodeRoom* room_;
};

// fetch_span() in one instruction: four lanes have the lines of nibbles, eight those of rests.
template <class Thread>
KVLANE_DEVICE void fetch_tile(Thread& t, const DecodePlan& plan, std::uint32_t chunk,
                              std::uint32_t end) {
  const std::uint32_t values = span_values(chunk, end), line = t.lane();
  const bool of_rests = line >= 4;
  const std::uint32_t at = of_rests ? plan.at.bytes + chunk * kChunk + 128 * (line - 4)
                                    : plan.at.nibbles + chunk * (kChunk / 2) + 128 * line;
  const std::uint32_t values_before = of_rests ? 128 * (line - 4) : 256 * line;
  if (values_before < values) t.fetch_ahead(plan.body + at);
}

// Asks memory for what a block loads first: what lies behind the body's end is not there.
template <class Thread>
KVLANE_DEVICE void fetch_plane(Thread& t, const DeviceDecodeTask* task) {
  if (task == nullptr) return;
  const DeviceDecodeTask next = *task;
  const Sections at = sections(ElementType::kBf16, next.elements, 0);
  if (next.body_bytes < at.table || next.elements == 0) return;
  DecodePlan plan{};
  plan.body = next.body;
  plan.at = offsets(at);
  fetch_tile(t, plan, kSpanChunks * t.warp(), next.elements / kChunk);
  if (t.warp() == 0) {
    if (t.lane() == 0) t.fetch_ahead(next.body);
    const std::uint32_t more = static_cast<std::uint32_t>(at.counts) + 128 * t.lane();
    if (t.lane() < 4 && more < next.body_bytes) t.fetch_ahead(next.body + more);
  }
}

// The whole chunks of the plane. `word` becomes the words of their part of the table.
template <class Thread>
class Tiles {
 public:
  // Asks for all that is loaded first.
  KVLANE_DEVICE Tiles(Thread& t, const DecodePlan& plan, DeviceDecodeRoom* room)
      : t_(t), room_(t, room), end_(plan.elements / kChunk), step_(kSpanChunks * t.warps()) {
    if constexpr (kRingSpans > 0) {
      for (int i = 0; i < kRingSpans - 1; ++i) {
        const auto slot = static_cast<std::uint32_t>(i);
        room_.begin(plan, first_chunk() + slot * step_, end_, slot);
      }
    } else {
      part_ = load(plan, first_chunk());
    }
    counts_ = load_tile_counts(t, plan, 0, end_);
    if constexpr (kRingSpans == 0 && kPipelined && KVLANE_SZ_AHEAD != 0) {
      fetch_tile(t, plan, first_chunk() + step_, end_);
    }
  }

  KVLANE_DEVICE bool decode(const DecodePlan& plan, const TileTask& task, std::uint32_t& word) {
    constexpr std::uint32_t kAhead = kRingSpans > 0 ? kRingSpans - 1 : kPipelined ? 2 : 1;
    Thread& t = t_;
    const std::uint32_t own = t.lane() / 8, column = t.lane() % 4, i = t.lane() % 8;
    bool right = true;
    Escapes escapes = find_in_tile(t, plan, counts_, task, word, right);
    counts_ = load_tile_counts(t, plan, step_, end_);
    std::uint32_t slot = 0, phase = 0;
    KVLANE_NO_UNROLL
    for (std::uint32_t tile = 0; tile < end_; tile += step_) {
      const std::uint32_t chunk = tile + first_chunk();
      const bool active = chunk + own < end_;
      const std::size_t values = (std::size_t{chunk} + own) * kChunk;
      const std::byte* const rests = plan.body + plan.at.bytes + values;
      if constexpr (kRingSpans > 0) {
        // To where the span before was, which the whole warp has read.
        room_.begin(plan, chunk + kAhead * step_, end_,
                    (slot == 0 ? std::uint32_t{kRingSpans} : slot) - 1);
        room_.wait(slot, phase, chunk < end_);
        part_ = room_.part(slot);
      }
      CodedPart after{};
      if constexpr (kPipelined) after = load(plan, chunk + step_);
      if constexpr (kRingSpans == 0 && KVLANE_SZ_AHEAD != 0) {
        fetch_tile(t, plan, chunk + kAhead * step_, end_);
      }
      if (KVLANE_SZ_RELAY != 0 && tile + kAhead * step_ - end_ < step_) fetch_plane(t, task.next);
      const bool escaped = escapes.has(i);
      const unsigned place = escapes.entry & 0xFF;
      unsigned rest = 0;
      if (escaped) {
        if constexpr (kRingSpans > 0) {
          rest = room_.rest(slot, place);
        } else {
          rest = load_byte(rests + place);
        }
      }
      if constexpr (kRingSpans > 0) {
        if (++slot == std::uint32_t{kRingSpans}) slot = 0, phase ^= 1;
      }
      const unsigned before = t.shuffle_up(place, 1, 8);
      right = right && (!escaped || i == 0 || before < place);
      const Escapes now = escapes;
      if (tile + step_ < end_) {
        escapes = find_in_tile(t, plan, counts_, task, word, right);
        counts_ = load_tile_counts(t, plan, tile + 2 * step_, end_);
      }
      if constexpr (kStaged > 0) room_.wait_stored();
      std::byte* const to = kStaged > 0 ? room_.staged() + 512 * own : task.plane + 2 * values;
      if (active) {
        const std::uint32_t group = t.lane() / 4 % 2 * 2 * kGroup;
        KVLANE_UNROLL
        for (int half = 0; half < 2; ++half) {
          Words4 out[2];
          join_half(plan.code_exponents, part_, half, out);
          KVLANE_UNROLL
          for (int side = 0; side < 2; ++side) {
            const std::uint32_t at = group + 128 * half + 64 * side + 16 * column;
            if constexpr (kStaged > 0) {
              *reinterpret_cast<Words4*>(to + room_.swizzled(at)) = out[side];
            } else {
              store_once(to + at, out[side]);
            }
          }
        }
      }
      if constexpr (kPipelined) {
        part_ = after;
      } else if constexpr (kRingSpans == 0) {
        part_ = load(plan, chunk + step_);
      }
      t.sync_warp();  // the values under escapes are written, and the slot of the ring is read
      const PatchedChunk<kStaged == 1> patched{
          plan.body + plan.at.table + 2 * std::size_t{now.first_word}, rests, to};
      if (escaped) patched.put(place, now.entry >> 8, rest);
      if (now.count > 8) right = patch_many(t, patched, now.count) && right;
      if constexpr (kStaged > 0) {
        if constexpr (kStaged == 2) t.fence_bulk();
        t.sync_warp();
        room_.store(task.plane + 2 * std::size_t{chunk} * kChunk, span_values(chunk, end_));
      }
    }
    if constexpr (kStaged == 2) room_.wait_stored();
    if constexpr (kRingSpans > 0 && !kRingBulk) t.wait_copies();
    return right;
  }
  // Instead of decoding.
  KVLANE_DEVICE void drop() {
    t_.sync_warp();
    room_.drain(first_chunk(), step_, end_);
  }

 private:
  KVLANE_DEVICE std::uint32_t first_chunk() const { return kSpanChunks * t_.warp(); }
  KVLANE_DEVICE CodedPart load(const DecodePlan& plan, std::uint32_t chunk) const {
    if (chunk + t_.lane() / 8 >= end_) return {};
    return load_part(plan, std::size_t{chunk} * kChunk + t_.lane() / 4 * kGroup, t_.lane() % 4);
  }

  Thread& t_;
  Room<Thread> room_;
  std::uint32_t end_;   // of whole chunks
  std::uint32_t step_;  // a tile's
  CodedPart part_{};
  TileCounts counts_;
};

// This thread's byte of a gap that is shorter than the block.
template <class Thread>
KVLANE_DEVICE unsigned gap_byte(Thread& t, const std::byte* body, std::size_t begin,
                                std::size_t end) {
  const std::size_t at = begin + t.index();
  return at < end ? load_byte(body + at) : 0;
}

// Whether decode_tiles() can be asked.
KVLANE_DEVICE bool has_tiles(const DeviceDecodeTask& task) {
  return task.type == ElementType::kBf16 && task.elements != 0 && task.elements % kChunk == 0 &&
         (reinterpret_cast<std::uintptr_t>(task.plane) |
          reinterpret_cast<std::uintptr_t>(task.body)) %
                 16 ==
             0 &&
         task.body_bytes >= sections(ElementType::kBf16, task.elements, 0).table;
}

// By blocks of two warps at least. Not decided: the body is not coded, or not rightly so.
struct TilesVerdict {
  bool decided;
  DeviceVerdict verdict;
};
template <class Thread>
KVLANE_DEVICE TilesVerdict decode_tiles(Thread& t, const DeviceDecodeTask& task,
                                        const DeviceDecodeTask* next, DeviceDecodeShared& shared,
                                        DeviceDecodeRoom* rooms) {
  constexpr ElementType kType = ElementType::kBf16;
  DecodePlan plan{};
  plan.body = task.body;
  plan.at = offsets(sections(kType, task.elements, 0));
  plan.elements = task.elements;
  Tiles<Thread> tiles(t, plan, rooms + t.warp());
  const Words4 first = load_once(task.body), book = load_once(task.body + sizeof(Prefix));
  Prefix prefix;
  std::memcpy(&prefix, &first, sizeof(prefix));
  KVLANE_UNROLL
  for (int i = 0; i < 4; ++i) plan.code_exponents[i] = book.w[i];
  const Sections at = sections(kType, task.elements, prefix.table_words);
  const bool coded =
      prefix.version == kBodyVersion && prefix.mode == static_cast<std::uint8_t>(Mode::kCoded) &&
      prefix.reserved_3 == 0 && prefix.reserved_12 == 0 && prefix.elements == task.elements &&
      prefix.element_type == static_cast<std::uint8_t>(kType) &&
      prefix.table_words <= task.elements && task.body_bytes == at.end;
  if (!coded) {
    tiles.drop();
    return {false, DeviceVerdict::kCorrupt};
  }
  // What is needed behind the spans waits in shared memory: registers are what a warp lacks.
  TileTask& own = shared.own[t.warp()];
  if (t.lane() == 0) {
    own = {task.elements, prefix.table_words, task.plane, next};
    if (KVLANE_SZ_RELAY != 0 && next != nullptr) {
      t.fetch_ahead(reinterpret_cast<const std::byte*>(next));
    }
  }
  t.sync_warp();
  std::uint32_t word = 0;
  bool right = tiles.decode(plan, own, word);
  const Sections behind = sections(kType, own.elements, own.table_words);
  // These are near by now, and few.
  const unsigned in_gaps = gap_byte(t, task.body, behind.codebook_end, behind.nibbles) |
                           gap_byte(t, task.body, behind.nibbles_end, behind.bytes) |
                           gap_byte(t, task.body, behind.bytes_end, behind.counts) |
                           gap_byte(t, task.body, behind.counts_end, behind.table) |
                           gap_byte(t, task.body, behind.table_end, behind.end);
  right = right && in_gaps == 0;
  if (const int code = t.index(); code > 0 && code < static_cast<int>(kCodebookEntries)) {
    const std::byte* const entry = task.body + sizeof(Prefix) + code;
    right = right && entry[-1] < entry[0];
  }
  right = right && word == own.table_words;
  const std::uint32_t votes = t.ballot(!right);
  if (t.lane() == 0) shared.words[t.warp()] = votes;
  t.sync_block();
  DeviceVerdict verdict = DeviceVerdict::kDecoded;
  if (t.index() == 0) {
    for (int warp = 0; warp < t.warps(); ++warp) {
      if (shared.words[warp] != 0) verdict = DeviceVerdict::kCorrupt;
    }
  }
  return {true, verdict};
}

}  // namespace device

}  // namespace kvlane::splitzip
