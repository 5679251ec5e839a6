// Bytes from formats, speeds from measurements.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_kv.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "format/cache_format.h"
#include "quant/format_text.h"
#include "quant/kv_format.h"

namespace kvlane {
namespace {

// Shares of an H200's 4.8 TB/s (bench/gpu/h200.json: gpu_splitzip_*_4096, gpu_hack_seal_128,
// gpu_zack_seal_128), and ratios of the same runs.
struct CodecCost {
  std::string_view name;
  double ratio;
  double encode;
  double decode;
};
constexpr std::array<CodecCost, 3> kCodecs = {{
    {"none", 1, 0, 0},
    {"splitzip", 1.3225, 1991 / 4800.0, 2111 / 4800.0},
    {"splitzip:channel", 1.4857, 1019 / 4800.0, 1160 / 4800.0},
}};
constexpr double kHackSeal = 286 / 4800.0;
constexpr double kZackSeal = 3357 / 4800.0;

// Decode attention on bare `hack`, 2.5 bits, is so many times as fast as on rows (docs/gpu.md): by
// query heads a KV head.
struct Speedup {
  int group;
  double times;
};
constexpr std::array<Speedup, 3> kHackDecode = {{{1, 5.1}, {4, 4.7}, {8, 4.2}}};
constexpr double kHackBits = 2.5;
// The same of `zack:keep=0.5`, from bytes alone twice as fast.
constexpr double kZackDecode = 1.9 / 2;
// gpu_hack_prefill_128_16384 against gpu_prefill_128_16384.
constexpr double kHackPrefill = 444.0 / 381.0;

// Bits a value of `kvquant` beside its codes: limits and outliers; of `cachegen` by level, as
// coded for kvlane-small (docs/results.md).
constexpr double kKvquantBeside = 0.53;
constexpr std::array<double, 2> kCachegenBits = {2.28, 2.80};

// A multiplication and an addition for each value that codes are opened to.
constexpr double kOpenOperations = 2;

double hack_read_share(double group) {
  const auto share = [](const Speedup& speedup) { return speedup.times * kHackBits / 16; };
  for (std::size_t i = 1; i < kHackDecode.size(); ++i) {
    const Speedup& low = kHackDecode[i - 1];
    const Speedup& high = kHackDecode[i];
    if (group > high.group) continue;
    const double place = (group - low.group) / (high.group - low.group);
    return share(low) + place * (share(high) - share(low));
  }
  return share(kHackDecode.back());
}

// Whether attention computes on the codes themselves.
bool is_hack(std::string_view format) { return format == "hack" || format.starts_with("hack:"); }

// HACK's own arithmetic corrects each partition's sum of products, of K and of V, by nine
// operations (HACK, section 5.3); the lean one has nothing to correct.
double approximate_operations(std::string_view format, int head_dim) {
  if (format.find("compute=complete") == format.npos) return 0;
  int partition = 64;
  for (const int each : {32, 64, 128}) {
    if (format.find("p=" + std::to_string(each)) != std::string_view::npos) partition = each;
  }
  return 2 * 9.0 * head_dim / partition;
}

// Bytes of a token of a layer, in memory and on a link.
struct TokenBytes {
  double resident;
  double wire;
};
TokenBytes same(double bytes) { return {bytes, bytes}; }

Result<TokenBytes> table_format_bytes(FormatText text, double values) {
  if (text.name() == "kvquant") {
    constexpr std::array<int, 3> kBits = {2, 3, 4};
    KVLANE_ASSIGN(const int bits, text.one_of("bits", kBits, 4));
    KVLANE_TRY(text.finish());
    return same((bits + kKvquantBeside) * values / 8);
  }
  constexpr std::array<int, 2> kLevels = {1, 2};
  KVLANE_ASSIGN(const int level, text.one_of("level", kLevels, 2));
  KVLANE_TRY(text.finish());
  return same(kCachegenBits[level - 1] * values / 8);
}

Result<TokenBytes> token_bytes(std::string_view format, const ModelConfig& config);

// What is kept, as codes of another format or in 16 bits.
Result<TokenBytes> zack_bytes(FormatText text, const ModelConfig& config) {
  const double values = 2.0 * config.kv_heads * config.head_dim;
  const std::string codes = text.take_codes();
  if (text.has("bits")) {
    KVLANE_ASSIGN(const int bits, text.decimal("bits", kShareParts / 4, 16 * kShareParts, 0));
    KVLANE_TRY(text.finish());
    return same(values * bits / kShareParts / 8);
  }
  KVLANE_ASSIGN(const int keep, text.share("keep", kShareParts / 2));
  KVLANE_TRY(text.finish());
  KVLANE_ASSIGN(const TokenBytes whole, token_bytes(codes.empty() ? "bf16" : codes, config));
  const double share = double(keep) / kShareParts;
  return TokenBytes{whole.resident * share, whole.wire * share};
}

Result<TokenBytes> token_bytes(std::string_view format, const ModelConfig& config) {
  const double values = 2.0 * config.kv_heads * config.head_dim;
  if (is_row_format(format)) return same(2 * values);
  const std::string_view name = format.substr(0, format.find_first_of(":+"));
  if (name == "zack" || name == "kvquant" || name == "cachegen") {
    KVLANE_ASSIGN(FormatText text, FormatText::parse(format));
    return name == "zack" ? zack_bytes(std::move(text), config)
                          : table_format_bytes(std::move(text), values);
  }
  KVLANE_ASSIGN(const std::shared_ptr<const KvFormat> made,
                make_kv_format(format, {.shape = config.kv_shape()}));
  if (made->window().sink > 0 || made->window().recent > 0) {
    return unsupported(
        "blocks that a window keeps in 16 bits are not simulated: leave sink and recent out of '" +
        std::string(format.substr(0, 80)) + "'");
  }
  // What a slab is padded by does not travel; how much that is does not depend on its values.
  const std::vector<std::uint16_t> rows(kBlockTokens * std::size_t(values));
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines(made->slab_bytes() / sizeof(Line));
  std::byte* const slab = lines.front().bytes;
  KVLANE_TRY(made->seal({.layer = 0, .position = 0}, rows.data(), slab));
  const double used = double(made->used_bytes({.layer = 0, .position = 0}, slab));
  return TokenBytes{double(made->slab_bytes()) / kBlockTokens, used / kBlockTokens};
}

}  // namespace

SimModel simulated_model(const ModelConfig& config) {
  const double hidden = config.hidden;
  const double attention = 2 * hidden * config.head_dim * (config.heads + config.kv_heads);
  const int matrices = config.activation == Activation::kSwiGlu ? 3 : 2;
  const double table = hidden * config.vocab;
  return {.layer = {.hidden = config.hidden,
                    .heads = config.heads,
                    .kv_heads = config.kv_heads,
                    .head_dim = config.head_dim,
                    .parameters = attention + matrices * hidden * config.ffn},
          .layers = config.layers,
          .output_parameters = table,
          .embedding_parameters = config.tied_embeddings ? 0 : table};
}

Result<SimulatedKv> simulated_kv(std::string_view format, std::string_view codec,
                                 const ModelConfig& config, bool open_to_memory) {
  const auto coder = std::find_if(kCodecs.begin(), kCodecs.end(),
                                  [&](const CodecCost& each) { return each.name == codec; });
  if (coder == kCodecs.end()) {
    return invalid_argument("codecs to simulate are none, splitzip and splitzip:channel, not '" +
                            std::string(codec.substr(0, 40)) + "'");
  }
  KVLANE_ASSIGN(const TokenBytes bytes, token_bytes(format, config));
  SimulatedKv kv;
  KvCosts& costs = kv.costs;
  costs.name = format;
  costs.resident_bytes = bytes.resident;
  costs.wire_bytes = bytes.wire;
  const std::size_t plus = format.find('+');
  const bool zack = format.starts_with("zack");
  const std::string_view codes = zack && plus != format.npos ? format.substr(plus + 1) : format;
  const bool rows = is_row_format(format) || (zack && plus == format.npos);
  if (rows && coder->name != "none") {
    costs.name += " + " + std::string(coder->name);
    costs.wire_bytes /= coder->ratio;
    costs.encode_share = coder->encode;
    costs.decode_share = coder->decode;
  }
  if (zack) costs.seal_share = kZackSeal;
  if (rows) {
    if (zack) costs.read_share = kZackDecode;
    kv.measured = true;
    return kv;
  }
  costs.seal_share = kHackSeal;
  if (is_hack(codes)) {
    costs.read_share = hack_read_share(double(config.heads) / config.kv_heads);
    costs.prefill_speed = kHackPrefill;
    costs.approximate_operations = approximate_operations(codes, config.head_dim);
    kv.measured = !zack && costs.approximate_operations == 0;
    return kv;
  }
  costs.open_operations = kOpenOperations;
  costs.opens_to_memory = open_to_memory;
  return kv;
}

}  // namespace kvlane
