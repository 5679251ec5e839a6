// The product by oneDNN, its weights in the layout oneDNN likes best.
//
// Known of oneDNN 2.6.3 (measured; tests hold it): with AMX off, a row has the same bits for every
// number of rows and threads, in BF16 and in F32; with AMX on it has not. Run-time row counts fall
// to slow reference code, so there is one primitive for each (rounded) count, made when first
// needed. SPDX-License-Identifier: Apache-2.0
#include <dnnl.hpp>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/bf16.h"
#include "cpu/memory.h"
#include "ops/linear.h"

namespace kvlane {
namespace {

using dnnl::memory;

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine = [] {
    // Must come before everything else: the first question about the limit freezes it.
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

Status onednn_status(const dnnl::error& error) {
  if (error.status == dnnl_out_of_memory) return exhausted("oneDNN found no memory for a product");
  return internal_error(std::string("oneDNN: ") + error.what());
}

// One product shape: a primitive for each row count, shared by all layers that have the shape.
class Product {
 public:
  Product(int n, int k, memory::data_type type, bool biased)
      : n_(n),
        k_(k),
        type_(type),
        biased_(biased),
        weights_(describe(64, memory::desc({k, n}, type, memory::format_tag::any)).weights_desc()) {
  }

  // Layout of packed weights. It is the same for every row count from 64 on; smaller counts take it
  // as given.
  const memory::desc& weights() const { return weights_; }
  memory::desc bias() const { return {{1, n_}, memory::data_type::f32, memory::format_tag::ab}; }

  struct Kernel {
    dnnl::matmul primitive;
    memory::desc x, y, scratch;
  };

  const Kernel& kernel(int rows) {
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(rows); found != kernels_.end()) return found->second;
    const auto described = describe(rows, weights_);
    return kernels_
        .emplace(rows, Kernel{dnnl::matmul(described), described.src_desc(), described.dst_desc(),
                              described.scratchpad_desc()})
        .first->second;  // std::map never moves its entries
  }

 private:
  dnnl::matmul::primitive_desc describe(int rows, const memory::desc& weights) const {
    const memory::desc x({rows, k_}, type_, memory::format_tag::ab);
    const memory::desc y({rows, n_}, memory::data_type::f32, memory::format_tag::ab);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto described =
        biased_ ? dnnl::matmul::desc(x, weights, bias(), y) : dnnl::matmul::desc(x, weights, y);
    return {described, attributes, cpu_engine()};
  }

  const int n_;
  const int k_;
  const memory::data_type type_;
  const bool biased_;
  const memory::desc weights_;
  std::mutex mutex_;
  std::map<int, Kernel> kernels_;
};

// The shapes in use, each once. They live as long as the program: their number is bounded by the
// models loaded, and generated code is small.
std::shared_ptr<Product> find_product(int n, int k, memory::data_type type, bool biased) {
  static std::mutex mutex;
  static std::map<std::tuple<int, int, int, bool>, std::shared_ptr<Product>> products;
  const std::lock_guard lock(mutex);
  auto& product = products[{n, k, static_cast<int>(type), biased}];
  if (!product) product = std::make_shared<Product>(n, k, type, biased);
  return product;
}

class OnednnLinear final : public Linear {
 public:
  OnednnLinear(std::shared_ptr<Product> product, int n, int k, ElementType input_type,
               PageBuffer memory, std::vector<float> bias)
      : Linear(n, k, input_type, memory.bytes(), std::move(bias)),
        product_(std::move(product)),
        memory_(std::move(memory)),
        packed_(memory_.data()) {}
  // Over weights that another one packed.
  OnednnLinear(std::shared_ptr<Product> product, int n, int k, ElementType input_type,
               std::byte* packed, std::vector<float> bias)
      : Linear(n, k, input_type, product->weights().get_size(), std::move(bias)),
        product_(std::move(product)),
        packed_(packed) {}

  Status apply(const void* x, float* y, int rows) const override try {
    const Product::Kernel& kernel = product_->kernel(rows_rounded(rows));
    thread_local PageBuffer scratch;
    if (scratch.bytes() < kernel.scratch.get_size()) {
      KVLANE_ASSIGN(scratch, PageBuffer::allocate(kernel.scratch.get_size()));
    }
    const dnnl::engine& engine = cpu_engine();
    dnnl::stream stream(engine);
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, memory(kernel.x, engine, const_cast<void*>(x))},
        {DNNL_ARG_WEIGHTS, memory(product_->weights(), engine, packed_)},
        {DNNL_ARG_DST, memory(kernel.y, engine, y)},
        {DNNL_ARG_SCRATCHPAD, memory(kernel.scratch, engine, scratch.data())}};
    if (!bias_.empty()) {
      arguments.emplace(DNNL_ARG_BIAS,
                        memory(product_->bias(), engine, const_cast<float*>(bias_.data())));
    }
    kernel.primitive.execute(stream, arguments);
    stream.wait();
    return {};
  } catch (const dnnl::error& error) {
    return onednn_status(error);
  }

  // oneDNN lays weights out in panels of outputs, one after another. Some of them are laid out as
  // those of a smaller product where they begin with a panel.
  Result<std::unique_ptr<Linear>> part(int first, int count) const override try {
    memory::desc cut = product_->weights().submemory_desc({k_, count}, {0, first}, true);
    if (!cut) return std::unique_ptr<Linear>();
    const std::size_t skipped = std::exchange(cut.data.offset0, 0) * element_bytes(input_type_);
    const auto type =
        input_type_ == ElementType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32;
    auto product = find_product(count, k_, type, !bias_.empty());
    if (product->weights() != cut) return std::unique_ptr<Linear>();
    return std::unique_ptr<Linear>(std::make_unique<OnednnLinear>(
        std::move(product), count, k_, input_type_, packed_ + skipped, bias_part(first, count)));
  } catch (const dnnl::error& error) {
    return onednn_status(error);
  }

 private:
  std::shared_ptr<Product> product_;
  PageBuffer memory_;  // empty over weights of another
  std::byte* packed_;
};

// Stacks the parts to one matrix and widens F16 to F32 on the way.
void stack_weights(const LinearWeights& weights, std::byte* stacked) {
  for (const ByteView part : weights.parts) {
    if (weights.type != ElementType::kFp16) {
      std::memcpy(stacked, part.data(), part.size());
      stacked += part.size();
      continue;
    }
    auto* wide = reinterpret_cast<float*>(stacked);
    const std::size_t count = part.size() / sizeof(fp16);
    for (std::size_t i = 0; i < count; ++i) {
      fp16 narrow;
      std::memcpy(&narrow, part.data() + i * sizeof(fp16), sizeof(fp16));
      wide[i] = to_float(narrow);
    }
    stacked += count * sizeof(float);
  }
}

}  // namespace

Result<std::unique_ptr<Linear>> pack_linear_onednn(const LinearWeights& weights, int n) try {
  const bool narrow = weights.type == ElementType::kBf16;
  const auto type = narrow ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc plain({weights.k, n}, type, memory::format_tag::ba);
  const auto product = find_product(n, weights.k, type, !weights.bias.empty());

  KVLANE_ASSIGN(PageBuffer packed, PageBuffer::allocate(product->weights().get_size()));
  // A single aligned matrix that needs no widening is packed from where it lies.
  PageBuffer stacked;
  void* source = const_cast<std::byte*>(weights.parts[0].data());
  const bool aligned = reinterpret_cast<std::uintptr_t>(source) % element_bytes(weights.type) == 0;
  if (weights.parts.size() > 1 || weights.type == ElementType::kFp16 || !aligned) {
    KVLANE_ASSIGN(stacked, PageBuffer::allocate(plain.get_size()));
    stack_weights(weights, stacked.data());
    source = stacked.data();
  }
  const dnnl::engine& engine = cpu_engine();
  dnnl::stream stream(engine);
  memory from(plain, engine, source);
  memory to(product->weights(), engine, packed.data());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  return std::unique_ptr<Linear>(std::make_unique<OnednnLinear>(
      product, n, weights.k, narrow ? ElementType::kBf16 : ElementType::kF32, std::move(packed),
      weights.bias));
} catch (const dnnl::error& error) {
  return onednn_status(error);
}

std::string onednn_description() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) + ", AVX-512 with BF16 dot product";
}

}  // namespace kvlane
