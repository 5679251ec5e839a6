// zstd, LZ4 and c-blosc, through their own interfaces.
// SPDX-License-Identifier: Apache-2.0
#include "bench/yardsticks.h"

// Huffman coding of literals without any matches is an experimental parameter.
#define ZSTD_STATIC_LINKING_ONLY
#include <blosc.h>
#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <memory>

#include "bench/byte_split.h"

namespace kvlane {
namespace {

struct FreeZstd {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

Status did_not_decode() { return corrupt("a yardstick did not decode what it had encoded"); }

// A frame of zstd, with tables that are set up once.
class Zstd {
 public:
  enum class Matches { kYes, kNo };

  explicit Zstd(int level, Matches matches = Matches::kYes)
      : encoder_(ZSTD_createCCtx()), decoder_(ZSTD_createDCtx()) {
    set(ZSTD_c_compressionLevel, level);
    if (matches == Matches::kYes) return;
    // So great an acceleration that no match is looked for; literals are Huffman-coded all the
    // same.
    set(ZSTD_c_compressionLevel, ZSTD_minCLevel());
    set(ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  }

  // Nothing can fail with room of ZSTD_compressBound.
  std::size_t encode(ByteView from, std::span<std::byte> to) {
    return ZSTD_compress2(encoder_.get(), to.data(), to.size(), from.data(), from.size());
  }
  bool decode(ByteView from, std::span<std::byte> to) {
    return ZSTD_decompressDCtx(decoder_.get(), to.data(), to.size(), from.data(), from.size()) ==
           to.size();
  }

 private:
  void set(ZSTD_cParameter parameter, int value) {
    ZSTD_CCtx_setParameter(encoder_.get(), parameter, value);
  }

  std::unique_ptr<ZSTD_CCtx, FreeZstd> encoder_;
  std::unique_ptr<ZSTD_DCtx, FreeZstd> decoder_;
};

Coder plain_zstd(std::string name, int level) {
  const auto zstd = std::make_shared<Zstd>(level);
  return {.name = std::move(name),
          .bound = [](const PlaneShape& shape) { return ZSTD_compressBound(shape.bytes()); },
          .encode = [zstd](const PlaneShape&, ByteView plane, const Codebook*,
                           std::span<std::byte> to) { return zstd->encode(plane, to); },
          .decode =
              [zstd](const PlaneShape&, ByteView coded, std::span<std::byte> to) {
                return zstd->decode(coded, to) ? Status() : did_not_decode();
              }};
}

// Exponents by zstd behind the rest of each value, which is kept.
Coder split_zstd(std::string name, int level, Zstd::Matches matches) {
  struct State {
    Zstd zstd;
    Bytes exponents;
  };
  const auto state = std::make_shared<State>(State{Zstd(level, matches), {}});
  return {.name = std::move(name),
          .bound =
              [](const PlaneShape& shape) {
                return shape.elements() + ZSTD_compressBound(shape.elements());
              },
          .encode =
              [state](const PlaneShape&, ByteView plane, const Codebook*, std::span<std::byte> to) {
                const std::size_t values = plane.size() / 2;
                state->exponents.resize(values);
                split_bytes(plane, state->exponents.data(), to.data());
                return values + state->zstd.encode(state->exponents, to.subspan(values));
              },
          .decode =
              [state](const PlaneShape&, ByteView coded, std::span<std::byte> to) {
                const std::size_t values = to.size() / 2;
                state->exponents.resize(values);
                if (!state->zstd.decode(coded.subspan(values), state->exponents)) {
                  return did_not_decode();
                }
                join_bytes(state->exponents.data(), coded.data(), to);
                return Status();
              }};
}

Coder lz4() {
  const auto chars = [](auto* bytes) { return reinterpret_cast<const char*>(bytes); };
  return {.name = "lz4",
          .bound =
              [](const PlaneShape& shape) {
                return std::size_t(LZ4_compressBound(static_cast<int>(shape.bytes())));
              },
          .encode =
              [chars](const PlaneShape&, ByteView plane, const Codebook*, std::span<std::byte> to) {
                return std::size_t(LZ4_compress_default(
                    chars(plane.data()), reinterpret_cast<char*>(to.data()),
                    static_cast<int>(plane.size()), static_cast<int>(to.size())));
              },
          .decode =
              [chars](const PlaneShape&, ByteView coded, std::span<std::byte> to) {
                const int size = LZ4_decompress_safe(
                    chars(coded.data()), reinterpret_cast<char*>(to.data()),
                    static_cast<int>(coded.size()), static_cast<int>(to.size()));
                return size == static_cast<int>(to.size()) ? Status() : did_not_decode();
              }};
}

Coder bitshuffle_lz4() {
  constexpr int kLevel = 9;  // LZ4 without acceleration
  constexpr int kThreads = 1;
  return {.name = "bitshuffle_lz4",
          .bound = [](const PlaneShape& shape) { return shape.bytes() + BLOSC_MAX_OVERHEAD; },
          .encode =
              [](const PlaneShape&, ByteView plane, const Codebook*, std::span<std::byte> to) {
                const int size =
                    blosc_compress_ctx(kLevel, BLOSC_BITSHUFFLE, 2, plane.size(), plane.data(),
                                       to.data(), to.size(), "lz4", 0, kThreads);
                return std::size_t(size > 0 ? size : 0);
              },
          .decode =
              [](const PlaneShape&, ByteView coded, std::span<std::byte> to) {
                const int size = blosc_decompress_ctx(coded.data(), to.data(), to.size(), kThreads);
                return size == static_cast<int>(to.size()) ? Status() : did_not_decode();
              }};
}

}  // namespace

std::vector<Coder> yardsticks() {
  return {plain_zstd("zstd1", 1),
          plain_zstd("zstd3", 3),
          lz4(),
          split_zstd("bytesplit_zstd1", 1, Zstd::Matches::kYes),
          split_zstd("bytesplit_huffman", 1, Zstd::Matches::kNo),
          bitshuffle_lz4()};
}

}  // namespace kvlane
