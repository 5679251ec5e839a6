// What sealed slabs look like: rows of 16 bits to a slab's bytes, and back to what attention
// computes on.
//
// A slab is sealed once, when its 64 rows are complete, from its own rows and from tables that
// belong to the model. So its bytes do not depend on company, on chunks, or on later tokens.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "cpu/isa.h"
#include "format/cache_format.h"
#include "format/kv_window.h"
#include "format/shape.h"
#include "format/slab_sizes.h"
#include "kvlane/status.h"
#include "ops/rope_table.h"
#include "quant/kv_tables.h"

namespace kvlane {

class SlabPlanes;

// Where a slab lies: in its model, and in its sequence.
struct SlabPlace {
  int layer;
  int position;  // of its first token, a multiple of kBlockTokens
  // Of its first page: slabs of less than all heads say which they have.
  int kv_head = 0;
};

// What a query reads of its own block instead of rows of 16 bits.
struct OwnBlock {
  bool coded = false;   // what own_page() makes of the rows
  bool sealed = false;  // the slab, once the block is complete, later tokens having weight 0
  // Whether what a token reads depends on which later ones came in the same pass. Then sequences
  // cannot share blocks, and perplexity means nothing.
  bool sees_ahead = false;
};

// Where the page of one KV head lies in a sealed slab.
struct PagePlace {
  std::size_t offset;
  std::size_t bytes;
};

// Immutable, thread-safe. Sealed slabs may hold anything when they come from elsewhere:
// open_page(), used_bytes() and pack() stay within the slab whatever its bytes are.
class KvFormat {
 public:
  virtual ~KvFormat() = default;

  // As users write it, every parameter named: "kivi:bits=2,group=32". Part of block names and
  // reports, and what workers compare; equal names and tables are equal bytes.
  const std::string& name() const { return name_; }
  // The same without what changes no byte of a slab (format/cache_format.h): what frames say.
  const std::string& slab_name() const { return slab_name_; }
  // Which tables slabs are sealed with, 0 without any: tables_id() of what the format was made of.
  // Slabs of other tables cannot be opened.
  std::uint64_t tables() const { return tables_; }
  // Whether slabs keep K after its rotation, as rows do.
  virtual bool rope_applied() const { return true; }
  const KvShape& shape() const { return shape_; }
  const KvWindow& window() const { return window_; }
  // Memory that sealed slabs take.
  const SlabSizes& slab_sizes() const { return slab_sizes_; }
  // The same of a layer, and of the layer that takes the most.
  std::size_t slab_bytes(int layer) const { return slab_sizes_.bytes(layer); }
  std::size_t slab_bytes() const { return slab_sizes_.largest(); }
  // What attention to one head reads of a slab, if only to ask for its memory.
  virtual PagePlace page_place(int layer, int kv_head) const {
    const std::size_t bytes = slab_bytes(layer) / shape_.kv_heads;
    return {bytes * kv_head, bytes};
  }

  // What K of this KV head is multiplied by behind RoPE, x -> x R, before anybody else sees it:
  // [head_dim][head_dim]. Null: K and queries are left as they are.
  virtual const float* key_rotation(int /*layer*/, int /*kv_head*/) const { return nullptr; }
  // The same of the query heads that read it: another matrix where that of K is not orthogonal.
  virtual const float* query_rotation(int layer, int kv_head) const {
    return key_rotation(layer, kv_head);
  }

  // Bytes of a sealed slab that carry something (codes, scales, outliers, lengths; not padding, and
  // not what follows from the rest): what quality is to be compared at, and what travels.
  virtual std::size_t used_bytes(SlabPlace place, const std::byte* slab) const = 0;

  // Encodes a slab. rows: [kv_heads] pages, K[64][head_dim] after RoPE, then V[64][head_dim], in
  // shape().type. slab: slab_bytes(layer), all of them written, aligned to 64, not overlapping
  // `rows`.
  // A value that is not finite is an error that names layer and token.
  virtual Status seal(SlabPlace place, const std::uint16_t* rows, std::byte* slab) const = 0;

  // Decodes the page of one KV head to BF16, K[64][head_dim] with RoPE applied, then
  // V[64][head_dim]. `page` is aligned to 64.
  virtual void open_page(SlabPlace place, const std::byte* slab, int kv_head,
                         std::uint16_t* page) const = 0;

  // How queries read their own block. Only ablations do not read its rows as they are.
  virtual OwnBlock own_block() const { return {}; }
  // Where own_block().coded: what a query reads of its block's page of one head while the block's
  // first `tokens` are there, in the form of open_page(). rows: the slab's, as seal() gets them, of
  // which those of later tokens may hold anything. Whoever cannot code a value leaves all as it is.
  virtual void own_page(SlabPlace place, const std::uint16_t* rows, int kv_head, int tokens,
                        std::uint16_t* page) const;

  // What travels of a slab that seal() made: used_bytes() of it, into as much room. `packed` does
  // not overlap `slab`.
  virtual void pack(SlabPlace place, const std::byte* slab, std::byte* packed) const = 0;

  // Whether pack() and unpack() copy all slab_bytes(layer) as they are, whatever they are.
  virtual bool packs_as_it_lies(int /*layer*/) const { return false; }

  // The reverse, of untrusted bytes: exactly what seal() made, if pack() made them; kCorrupt if
  // they cannot be what it makes, and the slab then holds garbage. Other bytes than pack()'s may
  // pass, as far as the slab opens to something: all slab_bytes(layer) are written, and nothing
  // else.
  virtual Status unpack(SlabPlace place, ByteView packed, std::byte* slab) const = 0;

  // The values of slabs that are no codes: these may go through a codec instead (spec/frame.md,
  // section 4). Null: slabs travel packed. Lives as long as the format.
  virtual const SlabPlanes* planes() const { return nullptr; }

 protected:
  // slab_bytes: of every layer, to be rounded up; or each layer's own.
  KvFormat(std::string name, const KvShape& shape, const KvWindow& window, std::size_t slab_bytes,
           std::uint64_t tables = 0)
      : KvFormat(std::move(name), shape, window,
                 SlabSizes(shape.layers, (slab_bytes + 63) / 64 * 64), tables) {}
  KvFormat(std::string name, const KvShape& shape, const KvWindow& window, SlabSizes slab_sizes,
           std::uint64_t tables = 0)
      : name_(std::move(name)),
        slab_name_(slab_format(name_)),
        shape_(shape),
        window_(window),
        slab_sizes_(std::move(slab_sizes)),
        tables_(tables) {}
  // For formats whose used bytes come first: pack(), and unpack() which refuses what has another
  // length than used_bytes() then says.
  void pack_front(SlabPlace place, const std::byte* slab, std::byte* packed) const;
  Status unpack_front(SlabPlace place, ByteView packed, std::byte* slab) const;
  // For formats whose used bytes have a fixed number.
  Status check_packed_bytes(SlabPlace place, ByteView packed, std::size_t expected) const;
  // Says which slab it was.
  static Status refuse_packed(SlabPlace place, const std::string& why);

 private:
  std::string name_;
  std::string slab_name_;
  KvShape shape_;
  KvWindow window_;
  SlabSizes slab_sizes_;
  std::uint64_t tables_;
};

// Which KV heads slabs have of a model that several ranks compute: bytes of a page are those that
// it has where one process has all heads.
struct KvHeadsHere {
  int first = 0;
  int whole = 0;  // of the model; 0: all are here
};

// What formats are made for.
struct KvFormatContext {
  KvShape shape;                     // kBf16 rows
  const RopeTable* rope = nullptr;   // of the model, outlives formats: some keep K before RoPE
  const KvTables* tables = nullptr;  // what calibration found; read while a format is made
  Isa isa = Isa::kScalar;
  KvHeadsHere heads{};  // whose number is shape.kv_heads

  bool has_all_heads() const { return heads.whole == 0 || heads.whole == shape.kv_heads; }
};

// The format that `text` says: NAME or NAME:KEY=VALUE,KEY=VALUE. Null for "bf16": rows stay as they
// are. Errors name the parameter that is wrong and what would be right.
Result<std::shared_ptr<const KvFormat>> make_kv_format(std::string_view text,
                                                       const KvFormatContext& context);

// "bf16, fp8_e4m3, ...": for help texts and errors.
std::string_view kv_format_names();

// Of formats that code all KV heads of a layer together: kUnsupported where some are elsewhere.
Status check_all_heads(std::string_view name, const KvFormatContext& context);

}  // namespace kvlane
