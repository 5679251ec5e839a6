// What ggml's flash attention on the CPU reaches for one token, in the unit and on the shapes of
// `kvlane bench attention`. Built by hand against an installed or built ggml:
// bench/peers/README.md.
//
//   ggml_attention TOKENS GROUPS TYPES ROUNDS     e.g. 32768 1,4 f16,bf16,q8_0,q4_0 3
//
// A layer has 8 KV heads of 128 channels, the keys of a head in a row and its values in a row, in
// huge pages where the system has them; there are layers until K and V would take 256 MiB in 16
// bits, and a run goes over all of them on one thread. Speeds are medians over rounds, by the
// thread's processor time. Prints one JSON object; an entry's `error` is the largest difference of
// an output from attention in double precision over the same K and V, relative to the largest
// output. ggml sums up values of type f16 in that type: where many tokens have a small weight each,
// these are lost, which is not a mistake of this program: f16 is checked by queries 16 times as
// long, which few tokens answer.
// SPDX-License-Identifier: Apache-2.0
#include <ggml-cpu.h>
#include <ggml.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;
constexpr std::size_t kSizeBytes = std::size_t{256} << 20;  // were K and V in 16 bits
constexpr int kSampleTokens = 1024;  // of different values; a plane repeats them
constexpr double kRoundSeconds = 0.02;

constexpr float kSharp = 16;
// Beyond the rounding of queries to 8 bits, which ggml does for quantised keys, something is wrong.
constexpr double kErrorMax = 0.02;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "ggml_attention: %s\n", why.c_str());
  std::exit(1);
}

double thread_seconds() {
  std::timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::byte* pages(std::size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("no memory");
  madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

struct ContextDeleter {
  void operator()(ggml_context* context) const { ggml_free(context); }
};

// K and V of all layers in one type.
class Cache {
 public:
  Cache(ggml_type type, int tokens) : type_(type), tokens_(tokens) {
    const std::size_t in_16_bits = std::size_t{4} * kHeadDim * kKvHeads * tokens;
    layers_ = static_cast<int>(std::max<std::size_t>(kSizeBytes / in_16_bits, 1));
    memory_ = pages(2 * layers_ * plane_bytes());
    fill();
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;
  ~Cache() { munmap(memory_, 2 * layers_ * plane_bytes()); }

  ggml_type type() const { return type_; }
  int tokens() const { return tokens_; }
  int layers() const { return layers_; }
  std::size_t row_bytes() const { return ggml_row_size(type_, kHeadDim); }

  // [kKvHeads][tokens][kHeadDim] of K or V.
  std::byte* plane(int layer, bool values) const {
    return memory_ + (2 * layer + (values ? 1 : 0)) * plane_bytes();
  }
  ggml_tensor* tensor(ggml_context* context, int layer, bool values) const {
    ggml_tensor* tensor = ggml_new_tensor_3d(context, type_, kHeadDim, tokens_, kKvHeads);
    tensor->data = plane(layer, values);
    return tensor;
  }
  // A row as ggml reads it.
  std::vector<float> row(int layer, bool values, int kv_head, int token) const {
    std::vector<float> out(kHeadDim);
    const std::size_t at = (std::size_t(kv_head) * tokens_ + token) * row_bytes();
    ggml_get_type_traits(type_)->to_float(plane(layer, values) + at, out.data(), kHeadDim);
    return out;
  }

 private:
  std::size_t plane_bytes() const { return row_bytes() * kKvHeads * tokens_; }

  // Gaussian, every channel with a mean and a scale of its own, as keys have.
  void fill() {
    std::mt19937 engine(1);
    std::normal_distribution<float> gauss;
    std::vector<float> mean(kHeadDim);
    std::vector<float> scale(kHeadDim);
    for (float& x : mean) x = gauss(engine);
    for (float& x : scale) x = std::exp2(gauss(engine));
    std::vector<float> rows(std::size_t{kSampleTokens} * kHeadDim);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = mean[i % kHeadDim] + scale[i % kHeadDim] * gauss(engine);
    }
    std::vector<std::byte> coded(kSampleTokens * row_bytes());
    ggml_quantize_chunk(type_, rows.data(), coded.data(), 0, kSampleTokens, kHeadDim, nullptr);
    // From an odd number of rows further on each time, so that K, V and heads differ.
    std::size_t from = 0;
    for (std::size_t i = 0; i < std::size_t{2} * layers_ * kKvHeads * tokens_; ++i, ++from) {
      if (i % tokens_ == 0) from += 77;
      std::memcpy(memory_ + i * row_bytes(), &coded[from % kSampleTokens * row_bytes()],
                  row_bytes());
    }
  }

  ggml_type type_;
  int tokens_;
  int layers_;
  std::byte* memory_;
};

// One token's attention in every layer, `group` query heads a KV head.
class Attention {
 public:
  Attention(const Cache& cache, int group) : cache_(cache), group_(group) {
    const std::size_t bytes =
        cache.layers() * (ggml_graph_overhead_custom(8, false) + 8 * ggml_tensor_overhead());
    context_.reset(ggml_init({bytes, nullptr, true}));
    if (!context_) fail("ggml has no context");
    std::mt19937 engine(2);
    std::normal_distribution<float> gauss;
    q_.resize(std::size_t(heads()) * kHeadDim);
    for (float& x : q_) x = ggml_bf16_to_fp32(ggml_fp32_to_bf16(gauss(engine)));
    out_.resize(q_.size());
    const float scale = 1.0F / std::sqrt(float{kHeadDim});
    for (int layer = 0; layer < cache.layers(); ++layer) {
      ggml_tensor* q = ggml_new_tensor_3d(context_.get(), GGML_TYPE_F32, kHeadDim, 1, heads());
      q->data = q_.data();
      ggml_tensor* out =
          ggml_flash_attn_ext(context_.get(), q, cache.tensor(context_.get(), layer, false),
                              cache.tensor(context_.get(), layer, true), nullptr, scale, 0, 0);
      ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
      out->data = out_.data();
      graphs_.push_back(ggml_new_graph_custom(context_.get(), 8, false));
      ggml_build_forward_expand(graphs_.back(), out);
      plans_.push_back(ggml_graph_plan(graphs_.back(), 1, nullptr));
      work_.resize(std::max(work_.size(), plans_.back().work_size));
    }
    for (ggml_cplan& plan : plans_) plan.work_data = work_.data();
  }

  void run(int layer) {
    if (ggml_graph_compute(graphs_[layer], &plans_[layer]) != GGML_STATUS_SUCCESS) {
      fail("ggml could not compute");
    }
  }
  void run() {
    for (int layer = 0; layer < cache_.layers(); ++layer) run(layer);
  }

  // Of the last layer's last KV head, for queries that are `times` as long.
  double error(float times) {
    const std::vector<float> q = q_;
    for (float& x : q_) x *= times;
    const double found = error();
    q_ = q;
    return found;
  }

 private:
  int heads() const { return kKvHeads * group_; }

  double error() {
    const int layer = cache_.layers() - 1;
    const int kv_head = kKvHeads - 1;
    run(layer);
    double largest = 0;
    double off = 0;
    for (int head = kv_head * group_; head < heads(); ++head) {
      const std::vector<double> wanted = attend(layer, kv_head, &q_[std::size_t(head) * kHeadDim]);
      for (int i = 0; i < kHeadDim; ++i) {
        largest = std::max(largest, std::abs(wanted[i]));
        off = std::max(off, std::abs(wanted[i] - out_[std::size_t(head) * kHeadDim + i]));
      }
    }
    return off / largest;
  }

  // In double precision, one token after the other.
  std::vector<double> attend(int layer, int kv_head, const float* q) const {
    std::vector<double> score(cache_.tokens());
    for (int token = 0; token < cache_.tokens(); ++token) {
      const std::vector<float> key = cache_.row(layer, false, kv_head, token);
      for (int i = 0; i < kHeadDim; ++i) score[token] += double{q[i]} * key[i];
      score[token] /= std::sqrt(double{kHeadDim});
    }
    const double max = *std::max_element(score.begin(), score.end());
    double sum = 0;
    std::vector<double> out(kHeadDim);
    for (int token = 0; token < cache_.tokens(); ++token) {
      const double weight = std::exp(score[token] - max);
      const std::vector<float> value = cache_.row(layer, true, kv_head, token);
      sum += weight;
      for (int i = 0; i < kHeadDim; ++i) out[i] += weight * value[i];
    }
    for (double& x : out) x /= sum;
    return out;
  }

  const Cache& cache_;
  int group_;
  std::unique_ptr<ggml_context, ContextDeleter> context_;
  std::vector<float> q_, out_;
  std::vector<ggml_cgraph*> graphs_;
  std::vector<ggml_cplan> plans_;
  std::vector<std::uint8_t> work_;
};

ggml_type type_named(const std::string& name) {
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    const char* its = ggml_type_name(type);
    if (its != nullptr && name == its) return type;
  }
  fail("ggml has no type " + name);
}

std::vector<std::string> words(const char* list) {
  std::vector<std::string> out;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');) out.push_back(word);
  return out;
}

// KV tokens a second, one token of one KV head and layer each.
double speed(Attention& attention, const Cache& cache, int rounds) {
  attention.run();
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const double start = thread_seconds();
    double end = start;
    int runs = 0;
    for (; end - start < kRoundSeconds; ++runs) {
      attention.run();
      end = thread_seconds();
    }
    seconds.push_back((end - start) / runs);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return double{kKvHeads} * cache.tokens() * cache.layers() / seconds[rounds / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("usage: ggml_attention TOKENS GROUPS TYPES ROUNDS");
  const int tokens = std::atoi(argv[1]);
  const int rounds = std::atoi(argv[4]);
  if (tokens < 1 || rounds < 1) fail("TOKENS and ROUNDS are positive numbers");
  ggml_cpu_init();
  std::printf("{\"version\": \"%s\", \"results\": [", ggml_commit());
  const char* comma = "";
  for (const std::string& name : words(argv[3])) {
    const Cache cache(type_named(name), tokens);
    for (const std::string& word : words(argv[2])) {
      const int group = std::atoi(word.c_str());
      if (group < 1) fail("a group has one query head or more, not " + word);
      Attention attention(cache, group);
      const double error = attention.error(1);
      const double wrong = cache.type() == GGML_TYPE_F16 ? attention.error(kSharp) : error;
      if (!(wrong < kErrorMax)) fail(name + " is wrong by " + std::to_string(wrong));
      std::printf(
          "%s\n  {\"type\": \"%s\", \"tokens\": %d, \"group\": %d, \"error\": %.3g, "
          "\"tokens_per_second\": %.6g}",
          comma, name.c_str(), tokens, group, error, speed(attention, cache, rounds));
      std::fflush(stdout);
      comma = ",";
    }
  }
  std::printf("\n]}\n");
}
