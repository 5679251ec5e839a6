// Bytes from formats, speeds from measurements.
// SPDX-License-Identifier: Apache-2.0
#include "bench/simulated_kv.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

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

// How many times as fast as on rows decode attention is, by query heads a KV head: on bare `hack`
// (docs/gpu.md, the rows with a star: kernels that are newer than bench/gpu/h200.json), and on
// `zack:keep=0.5` (gpu_zack_attention_128x* beside gpu_attention_128x*).
struct Speedup {
  int group;
  double times;
};
using Speedups = std::array<Speedup, 3>;
constexpr Speedups kHackDecode = {{{1, 5.1}, {4, 4.7}, {8, 4.2}}};
constexpr Speedups kZackDecode = {{{1, 1.91}, {4, 1.76}, {8, 1.72}}};
// What they were measured with, in bits of a value.
constexpr double kHackBits = 2.375;
constexpr double kZackBits = 8;
// Prefill attention on `hack` beside that on rows, in the same rounds of bench/gpu/h200.json.
constexpr double kHackPrefill = 1.154;

// Bits a value of `kvquant` beside its codes: limits and outliers; of `cachegen` by level, as
// coded for kvlane-small (docs/results.md).
constexpr double kKvquantBeside = 0.53;
constexpr std::array<double, 2> kCachegenBits = {2.28, 2.80};

// A multiplication and an addition for each value that codes are opened to.
constexpr double kOpenOperations = 2;

// Of the rate at which rows are read, what reading `bits` of 16 at that speed is.
double read_share(const Speedups& speedups, double bits, double group) {
  const auto share = [&](double times) { return times * bits / 16; };
  for (std::size_t i = 1; i < speedups.size(); ++i) {
    const Speedup& low = speedups[i - 1];
    const Speedup& high = speedups[i];
    if (group > high.group) continue;
    const double place = (group - low.group) / (high.group - low.group);
    return share(low.times + place * (high.times - low.times));
  }
  return share(speedups.back().times);
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

Status not_simulated(std::string_view format, const std::string& why) {
  return unsupported("KV format '" + std::string(format.substr(0, 80)) +
                     "' is not simulated: " + why);
}

// Formats whose slabs depend on tables and text.
Result<TokenBytes> table_format_bytes(std::string_view format, FormatText text, double values) {
  if (text.name() == "kvquant") {
    constexpr std::array<int, 3> kBits = {2, 3, 4};
    KVLANE_ASSIGN(const int bits, text.one_of("bits", kBits, 4));
    if (!text.finish().ok()) return not_simulated(format, "of kvquant only bits are known");
    return same((bits + kKvquantBeside) * values / 8);
  }
  constexpr std::array<int, 2> kLevels = {1, 2};
  const Result<int> level = text.one_of("level", kLevels, 2);
  if (!level.ok() || !text.finish().ok()) {
    return not_simulated(format, "of cachegen only level=1 and level=2 are known");
  }
  return same(kCachegenBits[*level - 1] * values / 8);
}

Result<TokenBytes> token_bytes(std::string_view format, const ModelConfig& config);

// What is kept, as codes of another format or in 16 bits.
Result<TokenBytes> zack_bytes(std::string_view format, FormatText text, const ModelConfig& config) {
  const double values = 2.0 * config.kv_heads * config.head_dim;
  const std::string codes = text.take_codes();
  if (text.has("bits")) {
    if (!is_hack(codes)) return not_simulated(format, "zack:bits= is for codes of hack");
    KVLANE_ASSIGN(const int bits, text.decimal("bits", kShareParts / 4, 16 * kShareParts, 0));
    if (!text.finish().ok()) return not_simulated(format, "of zack only keep and bits are known");
    return same(values * bits / kShareParts / 8);
  }
  KVLANE_ASSIGN(const int keep, text.share("keep", kShareParts / 2));
  if (!text.finish().ok()) return not_simulated(format, "of zack only keep and bits are known");
  if (is_row_format(codes) || codes.starts_with("zack") || codes.starts_with("cachegen")) {
    return not_simulated(format, "what zack keeps is in 16 bits, or in codes of another format");
  }
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
    return name == "zack" ? zack_bytes(format, std::move(text), config)
                          : table_format_bytes(format, std::move(text), values);
  }
  KVLANE_ASSIGN(const std::shared_ptr<const KvFormat> made,
                make_kv_format(format, {.shape = config.kv_shape()}));
  if (made->window().sink > 0 || made->window().recent > 0) {
    return not_simulated(format, "blocks that a window keeps in 16 bits are not counted");
  }
  if (is_hack(format) && (made->name().find("compute=bf16") != std::string::npos ||
                          made->name().find("compute=dequantise") != std::string::npos)) {
    return not_simulated(format, "its arithmetic was not measured on a GPU");
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
  const double group = double(config.heads) / config.kv_heads;
  if (rows) {
    kv.measured = !zack || format == "zack:keep=0.5";
    if (!zack) return kv;
    costs.seal_share = kZackSeal;
    costs.read_share = read_share(kZackDecode, kZackBits, group);
    return kv;
  }
  // What zack keeps is cut first and coded then.
  costs.seal_share = zack ? 1 / (1 / kZackSeal + 1 / kHackSeal) : kHackSeal;
  if (is_hack(codes)) {
    costs.read_share = read_share(kHackDecode, kHackBits, group);
    costs.prefill_speed = kHackPrefill;
    costs.approximate_operations = approximate_operations(codes, config.head_dim);
    kv.measured = format == "hack";
    return kv;
  }
  costs.open_operations = kOpenOperations;
  costs.opens_to_memory = open_to_memory;
  return kv;
}

}  // namespace kvlane
