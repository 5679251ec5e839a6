// Of the decoder of codec/splitzip_device.h: the whole chunks of a plane, where plane and body
// begin at multiples of 16.
//
// Warps take spans in turn: a tile is one span a warp, so a block reads and writes places that
// follow each other. Where fields and counts lie follows from the task, so that a warp asks for its
// first spans before anything is known of the body; it sums up counts itself, and no table word is
// read that is not in the body. Nobody waits for other warps but for the verdict.
//
// A span is copied to a ring in shared memory, becomes values where it lies, is patched there and
// stored in whole lines: escapes that are patched in memory cost their lines a second time. Bytes
// on their way take no registers then: of bf16, kRing spans are 4.6 KB a warp, and 147 KB of a
// multiprocessor with 32. A span costs a warp some 430 instructions, of which 190 make values, 45
// copy and 55 store, 80 find escapes and 40 patch one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_chunks.h"

namespace kvlane::splitzip {

// A warp's ring, in shared memory.
struct DeviceDecodeRing {
  gpu::Words4 words[384];
};

namespace device {

// Where byte `at` of a span's values is: of every other group, halves are the other way around, as
// threads that write two groups at a time would meet in the banks else.
template <class Span>
KVLANE_DEVICE std::uint32_t swizzled(std::uint32_t at) {
  return at ^ at / (kGroup * element_bytes(Span::kType)) % 2 * 64;
}

// Span: splitzip_device_span_bf16.h has one.
template <class Span, class Thread>
class Tiles {
 public:
  // Asks for all that is needed first. Fields and counts must be in the body.
  KVLANE_DEVICE Tiles(Thread& t, const DecodePlan& plan, DeviceDecodeRing& ring)
      : t_(t),
        plan_(plan),
        ring_(ring.words),
        end_(plan.elements / kChunk),
        step_(kSpanChunks * t.warps()) {
    for (std::uint32_t slot = 0; slot < Span::kRing - 1; ++slot) {
      load(first_chunk() + slot * step_, slot);
    }
    load_counts(0);
  }

  // `words` becomes those that the chunks have of the table's.
  KVLANE_DEVICE bool decode(const Words4& book, std::uint32_t table_words, std::uint32_t& words) {
    const std::uint32_t lane = t_.lane();
    words = 0;
    bool right = true;
    Escapes escapes = find_escapes(0, table_words, words, right);
    load_counts(step_);
    std::uint32_t slot = 0;
    KVLANE_NO_UNROLL
    for (std::uint32_t chunk = first_chunk(); chunk < end_; chunk += step_) {
      t_.sync_warp();  // the span before is stored: another one comes into its place
      load(chunk + (Span::kRing - 1) * step_, (slot == 0 ? Span::kRing : slot) - 1);
      // Entries of escapes are loaded a span before they are needed, and counts a tile.
      const Escapes now = escapes;
      if (const std::uint32_t next = chunk - first_chunk() + step_; next < end_) {
        escapes = find_escapes(next, table_words, words, right);
        load_counts(next + step_);
      }
      t_.template wait_copies_but<Span::kRing - 1>();
      t_.sync_warp();
      Words4* const span = ring_ + kSlotWords * slot;
      const typename Span::Part part = Span::part(span, lane);
      if (++slot == Span::kRing) slot = 0;
      t_.sync_warp();  // the span is read: its values come into its place
      Span::join(book, part, span, lane);
      t_.sync_warp();
      right = patch(span, now) && right;
      t_.sync_warp();
      store(span, chunk);
    }
    t_.wait_copies();
    return right;
  }

  // Instead of decoding.
  KVLANE_DEVICE void drop() { t_.wait_copies(); }

 private:
  static constexpr std::uint32_t kValueBytes = element_bytes(Span::kType);
  static constexpr std::uint32_t kSlotWords = kSpan * kValueBytes / sizeof(Words4);
  static_assert(Span::kRing * kSlotWords <= sizeof(DeviceDecodeRing) / sizeof(Words4));

  // Of the chunk of a span that a thread has a part of.
  struct Escapes {
    unsigned count;
    std::uint32_t first_word;  // of its part of the table
    unsigned entry;            // (place, exponent) of escape `lane % 8`, if there is one

    KVLANE_DEVICE bool has(unsigned i) const { return count != kRawChunk && i < count; }
  };

  KVLANE_DEVICE std::uint32_t first_chunk() const { return kSpanChunks * t_.warp(); }

  // Begins to load the span that begins with this chunk.
  KVLANE_DEVICE void load(std::uint32_t chunk, std::uint32_t slot) {
    Span::load(t_, plan_, std::size_t{chunk} * kChunk, span_values(chunk, end_),
               ring_ + kSlotWords * slot);
    t_.close_copies();
  }

  // Of the tile that begins with this chunk: those of two chunks a thread, with what lies behind
  // the last one, as nobody looks at them before they are needed.
  KVLANE_DEVICE void load_counts(std::uint32_t tile) {
    const std::uint32_t pair = 2 * t_.lane();
    counts_ = 0;
    if (pair < step_ && tile + pair < end_) {
      counts_ = load_aligned_half(plan_.body + plan_.at.counts + tile + pair);
    }
  }

  // Those of this warp's span in the tile that begins with this chunk, whose counts are there: the
  // tile's part of the table begins with `word`, and ends there afterwards. None where the table
  // would not have them. Most chunks have one escape or none.
  KVLANE_DEVICE Escapes find_escapes(std::uint32_t tile, std::uint32_t table_words,
                                     std::uint32_t& word, bool& right) {
    const std::uint32_t lane = t_.lane(), own = lane / 8;
    const unsigned counts = tile + 2 * lane + 1 < end_ ? counts_ : counts_ & 0xFF;
    const std::uint32_t pair = words_of(counts & 0xFF, kChunk) + words_of(counts >> 8, kChunk);
    Escapes found{};
    found.first_word = word + t_.sum(2 * lane < first_chunk() ? pair : 0);
    word += t_.sum(pair);
    found.count =
        t_.shuffle(counts, static_cast<int>((first_chunk() + own) / 2)) >> own % 2 * 8 & 0xFF;
    const std::uint32_t words = words_of(found.count, kChunk);
    KVLANE_UNROLL
    for (std::uint32_t other = 0; other + 1 < kSpanChunks; ++other) {
      const std::uint32_t of_other = t_.shuffle(words, static_cast<int>(8 * other));
      if (other < own) found.first_word += of_other;
    }
    const bool there = found.first_word + words <= table_words;
    right = right && there && possible_count(found.count);
    if (!there) found.count = 0;
    const unsigned i = lane % 8;
    if (found.has(i)) found.entry = load_aligned_half(plan_.table(found.first_word + i));
    return found;
  }

  // Puts exponents of the table in place. Whether escapes are in order, and exponents in range.
  KVLANE_DEVICE bool patch(Words4* span, const Escapes& escapes) {
    const unsigned i = t_.lane() % 8;
    std::byte* const chunk =
        reinterpret_cast<std::byte*>(span) + t_.lane() / 8 * (kChunk * kValueBytes);
    const std::byte* const table = plan_.table(escapes.first_word);
    bool right = true;
    const auto put = [&](unsigned place, unsigned exponent) {
      right = right && exponent >> fields_of(Span::kType).exponent_bits == 0;
      Span::patch(chunk + swizzled<Span>(kValueBytes * value_at<Span::kType>(place, kChunk)),
                  exponent);
    };
    const unsigned place = escapes.entry & 0xFF;
    const unsigned before = t_.shuffle_up(place, 1, 8);
    if (escapes.has(i)) {
      right = i == 0 || before < place;
      put(place, escapes.entry >> 8);
    }
    if (escapes.count == kRawChunk) {
      for (unsigned p = i; p < kChunk; p += 8) put(p, load_byte(table + p));
    } else if (escapes.count > 8) {
      for (unsigned e = i + 8; e < escapes.count; e += 8) {
        const unsigned entry = load_aligned_half(table + 2 * e);
        right = right && load_byte(table + 2 * e - 2) < (entry & 0xFF);
        put(entry & 0xFF, entry >> 8);
      }
    }
    return right;
  }

  // Values of a span that are there.
  KVLANE_DEVICE void store(const Words4* span, std::uint32_t chunk) {
    static_assert(kWarpThreads * 16 % (2 * kGroup * kValueBytes) == 0, "swizzled alike");
    std::byte* const to = plan_.plane + std::size_t{chunk} * kChunk * kValueBytes;
    const std::uint32_t bytes = span_values(chunk, end_) * kValueBytes;
    constexpr std::uint32_t kStores = kSlotWords / kWarpThreads;
    const std::uint32_t own = 16 * t_.lane();
    Words4 values[kStores];
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < kStores; ++i) {
      values[i] = span[swizzled<Span>(own) / 16 + kWarpThreads * i];
    }
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < kStores; ++i) {
      const std::uint32_t at = own + kWarpThreads * 16 * i;
      if (at < bytes) store_once(to + at, values[i]);
    }
  }

  Thread& t_;
  const DecodePlan& plan_;
  Words4* const ring_;
  const std::uint32_t end_;   // of whole chunks
  const std::uint32_t step_;  // a tile's
  unsigned counts_ = 0;
};

}  // namespace device

}  // namespace kvlane::splitzip
