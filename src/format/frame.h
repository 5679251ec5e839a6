// A frame: one slab with everything a stranger needs to check and to read it. Byte layout, value
// ranges and the order of checks: spec/frame.md.
//
// The body is two coded planes, of rows or of the values of a sealed slab, or one sealed slab of a
// coded KV format without what it need not carry. The header has a checksum of its own, so that it
// can be trusted before memory is taken for the body; the body's checksum covers its bytes. No
// maths here: codecs and KV formats turn the body into a slab and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "format/element.h"
#include "format/shape.h"
#include "kvlane/status.h"

namespace kvlane {

inline constexpr std::uint16_t kFrameVersion = 1;
inline constexpr std::size_t kFrameHeaderBytes = 192;
// Longest format and codec strings ("zack:keep=0.5+hack:k=2,v=2,p=64") a header can hold.
inline constexpr std::size_t kFormatNameBytesMax = 48;
inline constexpr std::size_t kCodecNameBytesMax = 24;

// Ranges of the fields. The largest published models have 128 KV heads and head_dim 576.
inline constexpr int kFrameLayerMax = 65535;
inline constexpr int kFrameKvHeadsMax = 1024;
inline constexpr int kFrameHeadDimMax = 4096;
// The last token position still fits a signed 32-bit integer.
inline constexpr std::int64_t kFramePositionMax = (std::int64_t{1} << 31) - kBlockTokens;
inline constexpr std::size_t kPlaneElementsMax = std::size_t{1} << 26;
// No codec makes a plane longer than this much more than its values, so that memory follows from
// the shape. Upper limit of one coded plane; a reader refuses more before it allocates.
inline constexpr std::size_t kPlaneGrowthBytesMax = 64;
inline constexpr std::uint32_t kPlaneBytesMax = 2 * kPlaneElementsMax + kPlaneGrowthBytesMax;
// The same for a sealed slab: twice its rows, and this much more. Formats with much beside their
// codes are longer than rows where heads are tiny.
inline constexpr std::size_t kSealedGrowthBytesMax = 8192;

// What the header says. Every field is validated by parse_frame_header, except that any well-formed
// name passes for format and codec: whoever decodes the body refuses those it does not know.
struct FrameHeader {
  ModelIdentity model{};
  std::string format = "bf16";  // how the slab lies in memory once decoded
  std::string codec = "none";   // what was done to its planes
  ElementType type = ElementType::kBf16;
  int layer = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::int64_t position = 0;  // of the first token; a multiple of kBlockTokens
  int tokens = 0;             // valid rows, 1 ... kBlockTokens
  bool rope_applied = true;  // K carries rotary embeddings, counted from position 0 of the sequence
  // The body is a sealed slab of 64 tokens of `type`: with codec "none" all of it in k_bytes, else
  // the planes of its values, whose shapes its format knows.
  bool sealed = false;
  std::uint64_t tables = 0;   // of a sealed slab: which tables it was sealed with (kv_format.h)
  std::uint32_t k_bytes = 0;  // coded bytes of the K plane, then of the V plane
  std::uint32_t v_bytes = 0;
  std::uint64_t body_checksum = 0;    // XXH3-64 of the body
  std::uint64_t header_checksum = 0;  // XXH3-64 of the header's other bytes

  std::size_t body_bytes() const { return std::size_t{k_bytes} + v_bytes; }
  bool packed() const { return sealed && codec == "none"; }
  // Elements of one plane: its valid rows of all heads, head by head. Of a sealed slab, what its
  // rows had, and its planes have at most.
  std::size_t plane_elements() const { return std::size_t(kv_heads) * tokens * head_dim; }
  // The bytes the two planes have uncoded; of a sealed slab, what its rows had.
  std::size_t raw_bytes() const { return 2 * plane_elements() * element_bytes(type); }
};

// A header together with its body, which is owned by whoever holds the buffer.
struct Frame {
  FrameHeader header;
  ByteView k;  // coded K plane, or the sealed slab
  ByteView v;  // coded V plane; of a packed() slab nothing
};

// Fills the body of a frame where it lies: the k_bytes and the v_bytes of its header.
using BodyWriter = std::function<void(std::span<std::byte> k, std::span<std::byte> v)>;

// Writes the header and lets `body` write the planes behind it, or the sealed slab as `k`. `frame`
// has kFrameHeaderBytes + header.body_bytes() bytes. Fills in checksums itself; fails with
// kInvalidArgument when a field is out of the range of spec/frame.md, and `body` is not called
// then.
Status write_frame(FrameHeader header, const BodyWriter& body, std::span<std::byte> frame);
// The same with planes that are there already; fills in their lengths as well.
Result<Bytes> build_frame(FrameHeader header, ByteView k, ByteView v);
// Enters the lengths of such planes; kInvalidArgument when they are beyond those of any.
Status set_body_lengths(FrameHeader& header, ByteView k, ByteView v);
// Copies such planes.
BodyWriter body_of(ByteView k, ByteView v);

// Reads the first kFrameHeaderBytes bytes. Fails with kCorrupt (magic, checksum, range) or
// kUnsupported (version, unknown bits): a caller may then not read the body. That the frame is the
// one asked for (model, layer, heads, position) is for the caller to check.
Result<FrameHeader> parse_frame_header(ByteView bytes);

// Reads a whole frame; `bytes` must hold exactly one. Checks the body's checksum. The planes point
// into `bytes`.
Result<Frame> parse_frame(ByteView bytes);

}  // namespace kvlane
