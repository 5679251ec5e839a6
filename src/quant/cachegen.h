// KV format `cachegen`: symbols of a few levels, entropy-coded with models of each channel
// (spec/slab_cachegen.md).
//
// CacheGen's paper and its public code are two algorithms; both are here, over one coder.
//   form=code   each token's K (and V) divided by the largest magnitude over all channels, rounded
//               to 31, 15 or 11 levels; how many, says the layer and `level`.
//   form=paper  groups of 10 tokens: the first (anchor) in 8 bits, the others as distances from it,
//               in bins of 0.5, 1.0 and 1.5 standard deviations of the channel by thirds of layers.
// Probabilities belong to (layer, channel), come from calibration and are shared: a slab of 64
// tokens could not pay for its own. A slab is variable in size; its memory is that of the worst
// case, where a page is symbols without coding. Dequantised to BF16 before attention, as CacheGen
// does.
//
// The sealed slab is also what travels: its first used_bytes() bytes are CacheGen's bitstream, and
// there is no second way, as a codec, to the same bytes.
//
// Tables for each layer and K or V ("cachegen.layers.3.k." before each name), C channels:
//   bins32 [C][31], bins16 [C][15], bins12 [C][11]   form=code: how often each symbol occurs
//   deviation [C], anchor [C][32], delta [C][63]     form=paper: see the spec
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quant/format_text.h"
#include "quant/kv_format.h"

namespace kvlane {

// "cachegen:form=code|paper,level=1|2|3": level 2 by default, and only for form=code.
Result<std::shared_ptr<const KvFormat>> make_cachegen(FormatText text,
                                                      const KvFormatContext& context);

}  // namespace kvlane
