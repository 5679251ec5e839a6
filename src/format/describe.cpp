// Frames as JSON: the field names of the specification, in its order.
// SPDX-License-Identifier: Apache-2.0
#include "format/describe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "format/frame.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string hex(ByteView bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += kHexDigits[std::to_integer<unsigned>(b) >> 4];
    text += kHexDigits[std::to_integer<unsigned>(b) & 15U];
  }
  return text;
}

// Most significant digit first, always 16 digits.
std::string hex(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = kHexDigits[value >> (60 - 4 * i) & 15U];
  return text;
}

Json describe(const FrameHeader& header, std::size_t offset) {
  const std::size_t frame_bytes = kFrameHeaderBytes + header.body_bytes();
  Json json = {{"offset", offset},
               {"version", kFrameVersion},
               {"header_bytes", kFrameHeaderBytes},
               {"rope_applied", header.rope_applied},
               {"model", hex(header.model)},
               {"format", header.format},
               {"codec", header.codec},
               {"element_type", element_name(header.type)},
               {"tokens", header.tokens},
               {"layer", header.layer},
               {"kv_heads", header.kv_heads},
               {"head_dim", header.head_dim},
               {"position", header.position},
               {"plane_elements", header.plane_elements()},
               {"k_bytes", header.k_bytes},
               {"v_bytes", header.v_bytes},
               {"body_checksum", hex(header.body_checksum)},
               {"header_checksum", hex(header.header_checksum)},
               {"raw_bytes", header.raw_bytes()},
               {"frame_bytes", frame_bytes},
               {"ratio", compression_ratio(header.raw_bytes(), frame_bytes)}};
  if (header.sealed) {
    json["sealed"] = true;
    json["tables"] = hex(header.tables);
  }
  return json;
}

// The frame at the start of `rest`; whatever follows it is not looked at.
Result<FrameHeader> parse_first_frame(ByteView rest) {
  KVLANE_ASSIGN(const FrameHeader header, parse_frame_header(rest));
  const std::size_t frame_bytes = kFrameHeaderBytes + header.body_bytes();
  KVLANE_ASSIGN(Frame frame, parse_frame(rest.first(std::min(rest.size(), frame_bytes))));
  return std::move(frame.header);
}

}  // namespace

Result<std::string> describe_frame_json(ByteView file) {
  Json frames = Json::array();
  std::uint64_t raw_bytes = 0;
  std::size_t offset = 0;
  do {
    if (frames.size() == kFramesDescribedMax) {
      return exhausted("the file has more than " + std::to_string(kFramesDescribedMax) + " frames");
    }
    const Result<FrameHeader> header = parse_first_frame(file.subspan(offset));
    if (!header.ok()) {
      return header.status().with_context("frame " + std::to_string(frames.size()) + " at byte " +
                                          std::to_string(offset));
    }
    frames.push_back(describe(*header, offset));
    raw_bytes += header->raw_bytes();
    offset += kFrameHeaderBytes + header->body_bytes();
  } while (offset < file.size());
  const Json description = {{"frames", std::move(frames)},
                            {"checksums_verified", true},
                            {"raw_bytes", raw_bytes},
                            {"frame_bytes", file.size()},
                            {"ratio", compression_ratio(raw_bytes, file.size())}};
  return description.dump(2);
}

}  // namespace kvlane
