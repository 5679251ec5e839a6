// The inner loops of codec `splitzip`, one set for each instruction-set tier; all give the same
// bytes and accept the same bodies. What does not loop over values is in splitzip.cpp.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "codec/splitzip.h"
#include "cpu/isa.h"
#include "cpu/streaming_copy.h"
#include "format/element.h"

namespace kvlane::splitzip {

// The dense sections, or what belongs to one chunk of them. bf16 has nibbles and bytes, FP8 has
// nibbles, pairs and bits; the others are empty.
template <class Byte>
struct Streams {
  Byte* nibbles;
  Byte* bytes;
  Byte* pairs;
  Byte* bits;
};

// A codebook in the forms that kernels look exponents up in.
struct CodeTables {
  static constexpr std::uint8_t kEscape = 0x80;  // in place of a code; its low bits are a code of 0

  // Plain arrays: SIMD files call no inline function of a library.
  alignas(64) std::uint8_t code_of[256];                // of an exponent, or kEscape
  alignas(16) std::uint8_t exponent[kCodebookEntries];  // of a code
  bool window;  // the 16 exponents are consecutive: a code is exponent - exponent[0]
};

struct EncodeTask {
  ElementType type;
  const std::byte* plane;
  std::size_t chunks;  // whole ones
  const CodeTables* tables;
  Streams<std::byte> out;
  std::uint8_t* counts;
  std::byte* table;  // the escape table
  std::size_t table_words_max;
  bool streaming;  // see kStreamingBytes; nibbles and bytes are then aligned to kAlignment
};

struct EncodeProgress {
  std::size_t chunks;       // done; fewer than asked for where the escape table may not suffice
  std::size_t table_words;  // written
};

struct DecodeTask {
  ElementType type;
  Streams<const std::byte> in;
  const std::uint8_t* codebook;  // kCodebookEntries exponents in range; any byte may be read
  const std::uint8_t* counts;    // each at most kChunkEscapesMax, or kRawChunk
  const std::byte* table;        // as many words as the counts say
  std::size_t chunks;            // whole ones
  std::byte* plane;
  bool streaming;  // see kStreamingBytes; the plane is then aligned to kAlignment
};

struct Kernels {
  EncodeProgress (*encode)(const EncodeTask&);
  // Where the escapes of the next chunk begin; null where places do not ascend or exponents are out
  // of range, and the plane then holds garbage.
  const std::byte* (*decode)(const DecodeTask&);
  std::string_view description;
};

// The kernels of a tier that this processor supports.
const Kernels& kernels_of(Isa isa);

// The normative kernels; the only ones for chunks that are not whole.

// Encodes one chunk of 1 ... kChunkElements values. Returns its words in the escape table, or -1
// when `words_left` do not suffice; the table is then untouched.
int encode_chunk(ElementType type, const std::byte* values, std::size_t elements,
                 const CodeTables& tables, const Streams<std::byte>& out, std::uint8_t* count,
                 std::byte* table, std::size_t words_left);

// Decodes one chunk. False where step 5 of spec/splitzip.md, section 4, fails.
bool decode_chunk(ElementType type, const Streams<const std::byte>& in,
                  const std::uint8_t* codebook, std::uint8_t count, const std::byte* table,
                  std::size_t elements, std::byte* values);

// Whether the fields that no value has are zero in the last group, of 1 ... kGroupElements values.
bool unused_fields_zero(ElementType type, const Streams<const std::byte>& group,
                        std::size_t elements);

EncodeProgress encode_scalar(const EncodeTask& task);
const std::byte* decode_scalar(const DecodeTask& task);
EncodeProgress encode_avx2(const EncodeTask& task);
const std::byte* decode_avx2(const DecodeTask& task);
EncodeProgress encode_avx512_bf16(const EncodeTask& task);
const std::byte* decode_avx512_bf16(const DecodeTask& task);
// Those of the four above for FP8.
EncodeProgress encode_fp8_avx2(const EncodeTask& task);
const std::byte* decode_fp8_avx2(const DecodeTask& task);
EncodeProgress encode_fp8_avx512_bf16(const EncodeTask& task);
const std::byte* decode_fp8_avx512_bf16(const DecodeTask& task);

}  // namespace kvlane::splitzip
