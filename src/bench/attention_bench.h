// `kvlane bench attention`: one token's attention over long caches in every format, beside 16 bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/figures.h"
#include "cpu/isa.h"
#include "kvlane/status.h"
#include "quant/kv_tables.h"

namespace kvlane {

struct AttentionBenchOptions {
  // As `kvlane eval --formats` takes them; bf16 is always there.
  std::string formats =
      "fp8_e4m3,fp8_e5m2,mxfp8_e4m3,mxfp8_e5m2,mxfp6_e2m3,mxfp6_e3m2,mxfp4,int8,int4,kivi,"
      "kivi:bits=4,kvquant,kvquant:bits=2,cachegen,cachegen:form=paper,hack,hack:compute="
      "dequantise,hack:k=4,v=4,hack:paper";
  std::vector<int> tokens = {4096, 32768};  // of the cache
  std::vector<int> groups = {1, 4, 8};      // query heads of a KV head: 1 ... 16
  // Query tokens at once, the last ones of the cache: 1 is a step of decoding, more a part of a
  // prompt.
  int query_tokens = 1;
  int head_dim = 128;
  int kv_heads = 8;
  // Spectra of `zack` (quant/zack.h) of a model of this head_dim and these kv_heads, whose layers
  // come over and over; empty: made up.
  KvTables zack;
  // As rows of 16 bits. Layers are added until a cache has so much, and a run goes over all of
  // them.
  std::size_t size_bytes = std::size_t{256} << 20;
  int repeats = 7;
  int threads = 1;
  Isa isa = Isa::kScalar;
  std::function<void(std::string_view)> progress;  // told what is being done
};

Result<Report> bench_attention(const AttentionBenchOptions& options);

}  // namespace kvlane
