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
// on their way take no registers then: kRing spans of bf16 are 4.6 KB a warp and 147 KB of a
// multiprocessor with 32, of FP8 5.4 and 172. A span has 2 KB of values and costs a warp some 430
// instructions of bf16 (180 make values, 45 copy and 60 store, 85 find escapes and 50 patch some),
// of FP8 E4M3 590 and of E5M2 690 (270 and 370 make values).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codec/splitzip_device_decode_chunks.h"

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

// Span: splitzip_device_decode_bf16.h and _fp8.h have them.
template <class Span, class Thread>
class Tiles {
 public:
  // Asks for all that is needed first. Fields and counts must be in the body.
  KVLANE_DEVICE Tiles(Thread& t, const DecodePlan& plan, DeviceDecodeRing& ring)
      : t_(t),
        plan_(plan),
        ring_(ring.words),
        end_(plan.elements / kChunk),
        step_(Span::kChunks * t.warps()) {
    for (std::uint32_t slot = 0; slot < Span::kRing - 1; ++slot) {
      load(first_chunk() + slot * step_, slot);
    }
    load_counts(0);
  }

  // `words` becomes those that the chunks have of the table's.
  KVLANE_DEVICE bool decode(const Words4& exponents, std::uint32_t table_words,
                            std::uint32_t& words) {
    const std::uint32_t lane = t_.lane();
    const Words4 book = Span::book(exponents);
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
  static constexpr std::uint32_t kSlotWords = Span::kChunks * kChunk * kValueBytes / 16;
  static_assert(Span::kRing * kSlotWords <= sizeof(DeviceDecodeRing) / sizeof(Words4));

  static constexpr std::uint32_t kChunkLanes = kWarpThreads / Span::kChunks;
  static constexpr std::uint32_t kEntries = 8 / kChunkLanes;
  static_assert(kDeviceWarps * Span::kChunks <= 4 * kWarpThreads, "counts of a tile");

  // Of the chunk of a span that a thread has a part of.
  struct Escapes {
    unsigned count;
    std::uint32_t first_word;  // of its part of the table
    unsigned entry[kEntries];  // (place, exponent) of some of the first eight, if they are there

    KVLANE_DEVICE bool has(unsigned i) const { return count != kRawChunk && i < count; }
  };

  KVLANE_DEVICE std::uint32_t first_chunk() const { return Span::kChunks * t_.warp(); }
  // Of the span that begins with this chunk.
  KVLANE_DEVICE std::uint32_t values(std::uint32_t chunk) const {
    const std::uint32_t left = chunk < end_ ? end_ - chunk : 0;
    return (left < Span::kChunks ? left : Span::kChunks) * kChunk;
  }

  // Begins to load the span that begins with this chunk.
  KVLANE_DEVICE void load(std::uint32_t chunk, std::uint32_t slot) {
    Span::load(t_, plan_, std::size_t{chunk} * kChunk, values(chunk), ring_ + kSlotWords * slot);
    t_.close_copies();
  }

  // Of the tile that begins with this chunk: those of four chunks a thread, with what lies behind
  // the last one, as nobody looks at them before they are needed.
  KVLANE_DEVICE void load_counts(std::uint32_t tile) {
    const std::uint32_t own = 4 * t_.lane();
    counts_ = 0;
    if (own < step_ && tile + own < end_) {
      counts_ = load_aligned_word(plan_.body + plan_.at.counts + tile + own);
    }
  }

  // Words of the table of four whole chunks, and of one. Anything for counts that cannot be.
  static_assert((kRawChunk & 0x7F) + 1 == kChunk / 2);
  KVLANE_DEVICE static std::uint32_t words_of_four(std::uint32_t counts) {
    const std::uint32_t low = counts & 0x7F7F7F7F;
    const std::uint32_t twos = (low & 0x00FF00FF) + (low >> 8 & 0x00FF00FF);
    return (twos & 0xFFFF) + (twos >> 16) + count_ones(counts & 0x80808080);
  }
  KVLANE_DEVICE static std::uint32_t words_of_one(unsigned count) {
    return (count & 0x7F) + (count >> 7);
  }

  // Those of this warp's span in the tile that begins with this chunk, whose counts are there: the
  // tile's part of the table begins with `word`, and ends there afterwards. None where the table
  // would not have them. Most chunks have few escapes or none.
  KVLANE_DEVICE Escapes find_escapes(std::uint32_t tile, std::uint32_t table_words,
                                     std::uint32_t& word, bool& right) {
    const std::uint32_t lane = t_.lane(), first = first_chunk(), own = lane / kChunkLanes;
    const std::uint32_t behind = tile + 4 * lane + 4 - end_;  // of a thread's four, the last ones
    const std::uint32_t counts = behind < 4 ? counts_ & ~0U >> 8 * behind : counts_;
    const std::uint32_t four = words_of_four(counts);
    Escapes found{};
    found.count = t_.shuffle(counts, static_cast<int>((first + own) / 4)) >> own % 4 * 8 & 0xFF;
    const std::uint32_t words = words_of_one(found.count);
    std::uint32_t upto = words;  // of the span's chunks up to this one
    KVLANE_UNROLL
    for (std::uint32_t by = kChunkLanes; by < kWarpThreads; by *= 2) {
      const std::uint32_t before = t_.shuffle_up(upto, static_cast<int>(by), kWarpThreads);
      if (lane >= by) upto += before;
    }
    upto += word + t_.sum(4 * lane < first ? four : 0);
    word += t_.sum(four);
    const bool there = upto <= table_words && possible_count(found.count);
    right = right && there;
    if (!there) found.count = 0;
    found.first_word = upto - words;
    KVLANE_UNROLL
    for (std::uint32_t k = 0; k < kEntries; ++k) {
      const unsigned i = kEntries * (lane % kChunkLanes) + k;
      if (found.has(i)) found.entry[k] = load_aligned_half(plan_.table(found.first_word + i));
    }
    return found;
  }

  // Puts exponents of the table in place. Whether escapes are in order, and exponents in range.
  KVLANE_DEVICE bool patch(Words4* span, const Escapes& escapes) {
    const std::uint32_t lane = t_.lane() % kChunkLanes;
    std::byte* const chunk =
        reinterpret_cast<std::byte*>(span) + t_.lane() / kChunkLanes * (kChunk * kValueBytes);
    const std::byte* const table = plan_.table(escapes.first_word);
    bool right = true;
    const auto put = [&](unsigned place, unsigned exponent) {
      right = right && exponent >> fields_of(Span::kType).exponent_bits == 0;
      Span::patch(chunk + swizzled<Span>(kValueBytes * value_at<Span::kType>(place, kChunk)),
                  exponent);
    };
    unsigned before = t_.shuffle_up(escapes.entry[kEntries - 1] & 0xFF, 1, kChunkLanes);
    KVLANE_UNROLL
    for (std::uint32_t k = 0; k < kEntries; ++k) {
      const unsigned i = kEntries * lane + k, place = escapes.entry[k] & 0xFF;
      if (escapes.has(i)) {
        right = right && (i == 0 || before < place);
        put(place, escapes.entry[k] >> 8);
      }
      before = place;
    }
    if (escapes.count == kRawChunk) {
      for (unsigned p = lane; p < kChunk; p += kChunkLanes) put(p, load_byte(table + p));
    } else {
      for (unsigned i = lane + 8; i < escapes.count; i += kChunkLanes) {
        const unsigned entry = load_aligned_half(table + 2 * i);
        right = right && load_byte(table + 2 * i - 2) < (entry & 0xFF);
        put(entry & 0xFF, entry >> 8);
      }
    }
    return right;
  }

  // Values of a span that are there.
  KVLANE_DEVICE void store(const Words4* span, std::uint32_t chunk) {
    static_assert(kWarpThreads * 16 % (2 * kGroup * kValueBytes) == 0, "swizzled alike");
    std::byte* const to = plan_.plane + std::size_t{chunk} * kChunk * kValueBytes;
    const std::uint32_t bytes = values(chunk) * kValueBytes;
    constexpr std::uint32_t kStores = kSlotWords / kWarpThreads;
    const std::uint32_t own = 16 * t_.lane();
    Words4 words[kStores];
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < kStores; ++i) {
      words[i] = span[swizzled<Span>(own) / 16 + kWarpThreads * i];
    }
    KVLANE_UNROLL
    for (std::uint32_t i = 0; i < kStores; ++i) {
      const std::uint32_t at = own + kWarpThreads * 16 * i;
      if (at < bytes) store_once(to + at, words[i]);
    }
  }

  Thread& t_;
  const DecodePlan& plan_;
  Words4* const ring_;
  const std::uint32_t end_;   // of whole chunks
  const std::uint32_t step_;  // a tile's
  std::uint32_t counts_ = 0;
};

}  // namespace device

}  // namespace kvlane::splitzip
