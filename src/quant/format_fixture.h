// Formats for tests: rows as they are, without their V, and one that fails where it is told to.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>

#include "quant/kv_format.h"

namespace kvlane::format_fixture {

// Slabs are the rows themselves; what is computed on them equals what is computed on rows, bit for
// bit.
class Identity : public KvFormat {
 public:
  explicit Identity(const KvShape& shape, const KvWindow& window = {},
                    const std::string& name = "identity")
      : KvFormat(name, shape, window, shape.slab_bytes()) {}

  std::size_t used_bytes(SlabPlace, const std::byte*) const override {
    return shape().slab_bytes();
  }
  void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const override {
    pack_front(place, slab, packed);
  }
  Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const override {
    return unpack_front(place, packed, slab);
  }
  Status seal(SlabPlace, const std::uint16_t* rows, std::byte* slab) const override {
    std::memcpy(slab, rows, shape().slab_bytes());
    return {};
  }
  void open_page(SlabPlace, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override {
    std::memcpy(page, slab + shape().page_bytes() * kv_head, shape().page_bytes());
  }
};

// What no reader of sealed blocks can overlook: V is zero.
class WithoutValues final : public Identity {
 public:
  explicit WithoutValues(const KvShape& shape, const KvWindow& window = {})
      : Identity(shape, window, "without-values") {}

  void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                 std::uint16_t* page) const override {
    Identity::open_page(place, slab, kv_head, page);
    std::memset(page + shape().page_plane_elements(), 0, shape().page_bytes() / 2);
  }
};

// Cannot seal one slab.
class Failing final : public Identity {
 public:
  Failing(const KvShape& shape, SlabPlace bad) : Identity(shape), bad_(bad) {}

  Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const override {
    if (place.layer == bad_.layer && place.position == bad_.position) {
      return invalid_argument("this slab is bad");
    }
    return Identity::seal(place, rows, slab);
  }

 private:
  SlabPlace bad_;
};

}  // namespace kvlane::format_fixture
