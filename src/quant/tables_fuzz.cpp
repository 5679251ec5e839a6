// Formats with tables on rows and slabs from strangers: what is sealed opens alike on all tiers and
// stays in its bounds and comes back when it has travelled, and bytes that no encoder wrote are
// refused or stay there, too. The first bytes choose format and shape.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <map>
#include <tuple>

#include "quant/tables_fixture.h"

namespace kvlane {
namespace {

using namespace tables_fixture;

constexpr int kPosition = 64;
constexpr const char* kTexts[] = {"cachegen:level=1",
                                  "cachegen:level=2",
                                  "cachegen:level=3",
                                  "cachegen:form=paper",
                                  "kvquant:bits=2",
                                  "kvquant:bits=3,outliers=0",
                                  "kvquant:bits=4",
                                  "kvquant:bits=4,outliers=0",
                                  "zack:keep=0.75+kvquant:bits=2",
                                  "zack:keep=0.75+kvquant:bits=3,outliers=0"};

bool is_of_zack(std::string_view text) { return text.starts_with("zack"); }

void require(bool condition) {
  if (!condition) std::abort();
}

// A model of one shape, and its formats on every tier.
struct World {
  explicit World(const KvShape& kv_shape)
      : shape(kv_shape),
        rope_table(inverse_frequencies(shape.head_dim), 256),
        rows(to_bits(plain_rows(shape, 2))) {
    add_cachegen_tables(shape, {to_bits(plain_rows(shape, 1))}, tables);
    add_kvquant_tables(shape, tables);
    const bool zack = shape.head_dim >= 32 && shape.head_dim % 16 == 0;
    if (zack) {
      add_zack_tables(shape, true, tables);
      add_zack_kvquant_tables("zack:keep=0.75", shape, tables);
    }
    for (const char* text : kTexts) {
      if (is_of_zack(text) && !zack) continue;
      for (const Isa isa : kAllIsas) {
        if (!isa_supported(isa)) continue;
        formats[text].push_back(*make_kv_format(text, {shape, &rope_table, &tables, isa}));
      }
    }
  }

  KvShape shape;
  RopeTable rope_table;
  std::vector<std::uint16_t> rows;  // usual ones
  KvTables tables;
  std::map<std::string, std::vector<std::shared_ptr<const KvFormat>>> formats;
};

World& world_of(int kv_heads, int head_dim) {
  static std::map<std::tuple<int, int>, std::unique_ptr<World>> worlds;
  auto& world = worlds[{kv_heads, head_dim}];
  if (!world) world = std::make_unique<World>(KvShape{1, kv_heads, head_dim, ElementType::kBf16});
  return *world;
}

void open_everywhere(const std::vector<std::shared_ptr<const KvFormat>>& formats,
                     const std::byte* slab) {
  const SlabPlace place{0, kPosition};
  const auto expected = open(*formats.front(), place, slab);
  for (const auto& format : formats) {
    require(format->used_bytes({0, 0}, slab) <= format->slab_bytes());
    require(open(*format, place, slab) == expected);
  }
}

// What travels, from memory of its size: comes back, and with changed bytes it is refused or a slab
// like any other, which travels as what came.
void travel(const std::vector<std::shared_ptr<const KvFormat>>& formats, const std::byte* slab,
            const std::uint8_t* input, std::size_t count) {
  const KvFormat& format = *formats.front();
  const SlabPlace place{0, kPosition};
  const std::size_t size = format.used_bytes({0, 0}, slab);
  const auto packed = std::make_unique<std::byte[]>(size);
  format.pack({0, 0}, slab, packed.get());
  Lines back(format.slab_bytes());
  require(format.unpack(place, {packed.get(), size}, back.data()).ok());
  require(std::memcmp(back.data(), slab, format.slab_bytes()) == 0);

  const std::size_t length = input[0] % 2 == 0 ? size : size * input[0] / 256;
  const auto changed = std::make_unique<std::byte[]>(length);
  std::memcpy(changed.get(), packed.get(), length);
  for (std::size_t i = 0; i + 3 <= count && i < 12 && length > 0; i += 3) {
    // Mostly at the beginning, where lengths are.
    const std::size_t at = input[i] < 128 ? input[i] : std::size_t{input[i]} << 8 | input[i + 1];
    changed[at % length] = static_cast<std::byte>(input[i + 2]);
  }
  if (!format.unpack(place, {changed.get(), length}, back.data()).ok()) return;
  open_everywhere(formats, back.data());
  require(format.used_bytes({0, 0}, back.data()) == length);
  format.pack({0, 0}, back.data(), packed.get());
  require(std::memcmp(packed.get(), changed.get(), length) == 0);
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 4) return 0;
  constexpr int kHeadDims[] = {2, 16, 18, 34, 40};  // small pages are many pages
  const char* const text = kTexts[data[0] % std::size(kTexts)];
  const int head_dim = is_of_zack(text) ? 32 : kHeadDims[data[2] % std::size(kHeadDims)];
  World& world = world_of(1 + data[1] % 2, head_dim);
  if (world.shape.kv_heads * world.shape.head_dim < 4) return 0;
  const auto& formats = world.formats.at(text);
  const KvFormat& format = *formats.front();
  tables_fixture::Lines slab(format.slab_bytes());
  const std::uint8_t* const input = data + 3;
  const std::size_t count = size - 3;
  if ((data[0] & 0x80) != 0) {
    for (std::size_t i = 0; i < format.slab_bytes(); ++i) {
      slab.data()[i] = static_cast<std::byte>(input[i % count]);
    }
    open_everywhere(formats, slab.data());
    return 0;
  }
  std::vector<std::uint16_t> rows = world.rows;
  const std::size_t changed = (data[0] & 0x40) != 0 ? rows.size() : std::min(count, rows.size());
  for (std::size_t i = 0; i < changed; ++i) {
    rows[i] = static_cast<std::uint16_t>(input[i % count] << 8 | input[(i + 1) % count]);
  }
  const Status status = format.seal({0, kPosition}, rows.data(), slab.data());
  bool finite = true;
  for (const std::uint16_t bits : rows) finite = finite && is_finite_bf16(bits);
  require(status.ok() == finite);
  if (!finite) return 0;
  open_everywhere(formats, slab.data());
  travel(formats, slab.data(), input, count);
  // The same again with bytes changed at places from the input.
  for (std::size_t i = 0; i + 3 <= count && i < 12; i += 3) {
    slab.data()[(std::size_t{input[i]} << 8 | input[i + 1]) % format.slab_bytes()] =
        static_cast<std::byte>(input[i + 2]);
  }
  open_everywhere(formats, slab.data());
  return 0;
}
