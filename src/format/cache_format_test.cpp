// Names of caches and of their slabs.
// SPDX-License-Identifier: Apache-2.0
#include "format/cache_format.h"

#include <gtest/gtest.h>

namespace kvlane {
namespace {

TEST(CacheFormat, SlabsHaveTheNameWithoutWhatIsNotTheirs) {
  const std::string_view names[][2] = {
      {"bf16", "bf16"},
      {"mxfp4", "mxfp4"},
      {"mxfp4:sink=1", "mxfp4"},
      {"mxfp4:sink=1,recent=2", "mxfp4"},
      {"kivi:bits=2,group=32", "kivi:bits=2,group=32"},
      {"kivi:bits=2,group=32,recent=1", "kivi:bits=2,group=32"},
      {"kvquant:bits=4,outliers=1,room=token,sink=1024,recent=1024",
       "kvquant:bits=4,outliers=1,room=token"},
      {"hack:k=2,v=2,p=128,round=sr,meta=bf16,compute=dequantise,sink=1024,recent=1024",
       "hack:k=2,v=2,p=128,round=sr,meta=bf16"},
      {"hack:k=2,v=2,p=128,meta=bf16,ktail=code,rqe=0,diag=int8,sink=1024,recent=1024",
       "hack:k=2,v=2,p=128,meta=bf16"},
      {"hack:k=2,v=2,p=64,compute=complete,sums=computed", "hack:k=2,v=2,p=64"},
      {"", ""},
  };
  for (const auto& [cache, slab] : names) {
    EXPECT_EQ(slab_format(cache), slab);
    EXPECT_LE(cache.size(), kCacheFormatBytesMax);
  }
}

TEST(CacheFormat, OnlyRowsOf16BitsAreNeverSealed) {
  EXPECT_TRUE(is_row_format("bf16"));
  EXPECT_TRUE(is_row_format("fp16"));
  EXPECT_FALSE(is_row_format("fp8_e4m3"));
  EXPECT_FALSE(is_row_format("int8:sym=1"));
}

}  // namespace
}  // namespace kvlane
