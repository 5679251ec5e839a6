// All KV formats on rows and slabs from strangers, on all tiers at once: rows are sealed to the
// same bytes or refused in the same words, any bytes open to the same page, within the buffers, and
// what travels comes back or is refused. The first bytes choose the format, the shape and what
// happens.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "quant/kv_format.h"

namespace kvlane {
namespace {

struct Candidate {
  const char* name;
  int head_dim_step = 1;
  // Magnitudes that are not below these bits are changed to small ones: what is refused gets no
  // further.
  std::uint16_t end = 0x4780;  // 65536
};

constexpr std::uint16_t kEndMixed = 0x4480;  // 1024: mixed, 16384 at most

constexpr Candidate kFormats[] = {{"fp8_e4m3"},
                                  {"fp8_e5m2"},
                                  {"mxfp8_e4m3"},
                                  {"mxfp8_e5m2"},
                                  {"mxfp6_e2m3"},
                                  {"mxfp6_e3m2"},
                                  {"mxfp4"},
                                  {"int8:sym=1"},
                                  {"int8:sym=0"},
                                  {"int4:sym=0"},
                                  {"int4:sym=1"},
                                  {"kivi:group=32"},
                                  {"kivi:group=64"},
                                  {"kivi:bits=4"},
                                  {"kivi:bits=4,group=64"},
                                  {"hack:k=2,v=2", 16, kEndMixed},
                                  {"hack:k=4,v=8", 16, kEndMixed},
                                  {"hack:k=8,v=4,mix=0", 16, 0x4680},
                                  {"hack:k=4,v=2,meta=bf16", 16, 0x5980},
                                  {"hack:paper", 16},
                                  {"hack:k=8,v=4,p=32,round=sr,mix=1", 16, kEndMixed},
                                  {"hack:k=4,v=8,p=128,round=sr,meta=bf16", 16, 0x7180},
                                  {"hack:k=4,v=2,p=64,compute=complete", 16}};

void require(bool condition) {
  if (!condition) std::abort();
}

// A heap block of exactly so many bytes, aligned to 64, for AddressSanitizer.
class Block {
 public:
  explicit Block(std::size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(64, bytes))) {
    require(data_ != nullptr);
    std::memset(data_.get(), 0xa5, bytes);
  }
  std::byte* data() const { return data_.get(); }
  std::uint16_t* rows() const { return reinterpret_cast<std::uint16_t*>(data_.get()); }
  // The input over and over: slabs of many values would need long inputs.
  void fill(const std::uint8_t* input, std::size_t size) {
    for (std::size_t i = 0; i < bytes_; ++i) data_.get()[i] = std::byte(input[i % size]);
  }
  bool equals(const Block& other) const { return std::memcmp(data(), other.data(), bytes_) == 0; }
  // As bf16. Which NaN comes of metadata that are not finite is open.
  bool equals_but_for_nan(const Block& other) const {
    const auto is_nan = [](std::uint16_t x) { return (x & 0x7fffU) > 0x7f80U; };
    return std::equal(rows(), rows() + bytes_ / 2, other.rows(),
                      [&](auto a, auto b) { return a == b || (is_nan(a) && is_nan(b)); });
  }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

using Format = std::shared_ptr<const KvFormat>;

Format format_of(const char* name, const KvShape& shape, Isa isa) {
  KvFormatContext context;
  context.shape = shape;
  context.isa = isa;
  auto result = make_kv_format(name, context);
  require(result.ok());
  return *result;
}

std::vector<Format> on_all_tiers(const char* name, const KvShape& shape) {
  std::vector<Format> formats;
  for (const Isa isa : kAllIsas) {
    if (isa_supported(isa)) formats.push_back(format_of(name, shape, isa));
  }
  return formats;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

void open_on_all(const std::vector<Format>& formats, const Block& slab) {
  const KvShape& shape = formats[0]->shape();
  for (int head = 0; head < shape.kv_heads; ++head) {
    const Block expected(aligned(shape.page_bytes()));
    formats[0]->open_page({0, 0}, slab.data(), head, expected.rows());
    for (const Format& format : formats) {
      const Block page(aligned(shape.page_bytes()));
      format->open_page({0, 0}, slab.data(), head, page.rows());
      require(page.equals_but_for_nan(expected));
      require(format->used_bytes({0, 0}, slab.data()) <= format->slab_bytes());
    }
  }
}

// What comes from a stranger: refused, or a slab as any other, which travels as what came.
void unpack_on_all(const std::vector<Format>& formats, const std::uint8_t* data, std::size_t size) {
  const auto packed = std::make_unique<std::byte[]>(size);
  if (size > 0) std::memcpy(packed.get(), data, size);
  const Block slab(formats[0]->slab_bytes());
  if (!formats[0]->unpack({0, 0}, {packed.get(), size}, slab.data()).ok()) return;
  open_on_all(formats, slab);
  require(formats[0]->used_bytes({0, 0}, slab.data()) == size);
  const auto again = std::make_unique<std::byte[]>(size);
  formats[0]->pack({0, 0}, slab.data(), again.get());
  require(std::memcmp(again.get(), packed.get(), size) == 0);
}

// What was sealed travels and comes back.
void require_round_trip(const KvFormat& format, const Block& slab) {
  const std::size_t bytes = format.used_bytes({0, 0}, slab.data());
  const auto packed = std::make_unique<std::byte[]>(bytes);
  format.pack({0, 0}, slab.data(), packed.get());
  const Block back(format.slab_bytes());
  require(format.unpack({0, 0}, {packed.get(), bytes}, back.data()).ok());
  require(back.equals(slab));
}

void seal_on_all(const std::vector<Format>& formats, const Block& rows) {
  const Block expected(formats[0]->slab_bytes());
  const Status verdict = formats[0]->seal({0, 0}, rows.rows(), expected.data());
  for (const Format& format : formats) {
    const Block slab(format->slab_bytes());
    const Status status = format->seal({0, 0}, rows.rows(), slab.data());
    require(status.message() == verdict.message());
    require(!verdict.ok() || slab.equals(expected));
  }
  if (!verdict.ok()) return;
  open_on_all(formats, expected);
  require_round_trip(*formats[0], expected);
}

}  // namespace
}  // namespace kvlane

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvlane;
  if (size < 4) return 0;
  const Candidate& candidate = kFormats[data[2] % std::size(kFormats)];
  const int step = candidate.head_dim_step;
  const KvShape shape{1, 1 + (data[0] >> 1) % 2, step * (1 + data[1] % (128 / step)),
                      ElementType::kBf16};
  const auto formats = on_all_tiers(candidate.name, shape);
  unpack_on_all(formats, data + 3, size - 3);
  const bool sealing = (data[0] & 1) != 0;
  Block input(sealing ? aligned(shape.slab_bytes()) : formats[0]->slab_bytes());
  input.fill(data + 3, size - 3);
  if (sealing) {
    // Mostly in range, or hardly any input would get far.
    for (std::size_t i = 0; i < shape.slab_bytes() / 2 && (data[0] & 4) == 0; ++i) {
      if ((input.rows()[i] & 0x7fffU) >= candidate.end) input.rows()[i] &= 0xbfff;
    }
    seal_on_all(formats, input);
  } else {
    open_on_all(formats, input);
  }
  return 0;
}
