// What travels of slabs whose lengths are fixed: their pages' sections without the gaps between.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace kvlane {

// Of a page. The gap behind it, up to where the next one begins or the page ends, is zeros.
struct SlabSection {
  std::size_t at;  // from the start of the page
  std::size_t bytes;
  std::size_t end;  // of the gap
};

inline void clear_gaps(std::span<const SlabSection> sections, std::byte* page) {
  for (const SlabSection& section : sections) {
    const std::size_t used_end = section.at + section.bytes;
    std::memset(page + used_end, 0, section.end - used_end);
  }
}

// Of `pages` pages, one behind another; the last section ends with its page. packed: the bytes of
// all sections.
inline void pack_sections(std::span<const SlabSection> sections, int pages, const std::byte* slab,
                          std::byte* packed) {
  for (int page = 0; page < pages; ++page, slab += sections.back().end) {
    for (const SlabSection& section : sections) {
      std::memcpy(packed, slab + section.at, section.bytes);
      packed += section.bytes;
    }
  }
}

// The reverse.
inline void unpack_sections(std::span<const SlabSection> sections, int pages,
                            const std::byte* packed, std::byte* slab) {
  for (int page = 0; page < pages; ++page, slab += sections.back().end) {
    for (const SlabSection& section : sections) {
      std::memcpy(slab + section.at, packed, section.bytes);
      packed += section.bytes;
    }
    clear_gaps(sections, slab);
  }
}

}  // namespace kvlane
