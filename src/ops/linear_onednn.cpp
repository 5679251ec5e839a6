// The product by oneDNN, its weights in the layout oneDNN likes best.
//
// Known of oneDNN 2.6.3 (measured; tests hold it): with AMX off, a row has the same bits for every
// number of rows and threads in its AVX-512 matmul, in BF16 and in F32; with AMX on it has not.
// Run-time row counts fall to slow reference code, so there is one primitive for each (rounded)
// count, made when first needed. A primitive runs on as many threads as it was made on, whatever
// the count is when it runs: there is one for each of those as well.
//
// Its matmul for AVX2 has other bits for other numbers of rows and threads. A convolution of 1 x 1
// over an image of one line is the same product, and the AVX2 kernel of that adds up the terms of a
// value one after the other, in any company. The layout of weights that this kernel alone takes
// selects it, on processors with AVX-512 as well.
//
// SPDX-License-Identifier: Apache-2.0
#include <dnnl.hpp>

#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "base/bf16.h"
#include "cpu/memory.h"
#include "cpu/parallel.h"
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

// Where elements of a packed matrix lie: packing cuts each index by itself, so a place is the sum
// of what its output and its input give.
class PackedPlaces {
 public:
  // `output` and `input`: which dimensions of `weights` these are.
  PackedPlaces(const memory::desc& weights, int output, int input)
      : blocking_(weights.data.format_desc.blocking),
        output_(output),
        inputs_(static_cast<std::size_t>(weights.data.dims[input])) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = weights.data.offset0 + offset(input, static_cast<memory::dim>(i));
    }
  }

  memory::dim of_output(int output) const { return offset(output_, output); }
  // Of each input, beside that of an output.
  std::span<const memory::dim> of_inputs() const { return inputs_; }

 private:
  // From the innermost block outwards, then by whole ones.
  memory::dim offset(int dimension, memory::dim at) const {
    memory::dim place = 0;
    memory::dim stride = 1;
    for (int block = blocking_.inner_nblks - 1; block >= 0; --block) {
      const memory::dim size = blocking_.inner_blks[block];
      if (blocking_.inner_idxs[block] == dimension) {
        place += at % size * stride;
        at /= size;
      }
      stride *= size;
    }
    return place + at * blocking_.strides[dimension];
  }

  const dnnl_blocking_desc_t blocking_;
  const int output_;
  std::vector<memory::dim> inputs_;
};

// What products have to have in common to share their kernels.
struct Shape {
  Isa isa;
  int n, k;
  memory::data_type type;  // of x and the weights
  bool biased;             // whether oneDNN adds the bias

  auto operator<=>(const Shape&) const = default;
};

// oneDNN has BF16 where the processor has its dot product, else F32. Its AVX2 kernel begins sums
// with the bias, which belongs behind them: there it is added afterwards.
Shape shape_for(Isa isa, int n, const LinearWeights& weights) {
  const bool wide = isa != Isa::kAvx512Bf16 || weights.type != ElementType::kBf16;
  return {isa, n, weights.k, wide ? memory::data_type::f32 : memory::data_type::bf16,
          isa >= Isa::kAvx512 && !weights.bias.empty()};
}

// One product shape: a primitive for each row and thread count, shared by all layers that have the
// shape.
class Product {
 public:
  explicit Product(const Shape& shape)
      : shape_(shape),
        weights_(packed_weights()),
        places_(weights_, convolves() ? 0 : 1, convolves() ? 1 : 0) {}

  const Shape& shape() const { return shape_; }
  // As in a checkpoint, [n][k], and packed.
  memory::desc plain_weights() const {
    return convolves() ? memory::desc(dims(shape_.n), shape_.type, memory::format_tag::oihw)
                       : memory::desc(dims(shape_.n), shape_.type, memory::format_tag::ba);
  }
  const memory::desc& weights() const { return weights_; }
  const PackedPlaces& places() const { return places_; }
  // Those of some outputs where they lie; empty where they do not begin and end with a panel.
  memory::desc weights_part(int first, int count) const {
    const memory::dims at = convolves() ? memory::dims{first, 0, 0, 0} : memory::dims{0, first};
    return weights_.submemory_desc(dims(count), at, true);
  }
  memory::desc bias() const {
    return {{1, shape_.n}, memory::data_type::f32, memory::format_tag::ab};
  }

  struct Kernel {
    dnnl::primitive primitive;
    memory::desc x, y, scratch;
  };

  const Kernel& kernel(int rows) {
    const Use use{rows, convolves() ? 1 : parallel_threads()};
    const std::lock_guard lock(mutex_);
    if (const auto found = kernels_.find(use); found != kernels_.end()) return found->second;
    Kernel made = convolves() ? make<dnnl::convolution_forward>(describe_convolution(rows))
                              : make<dnnl::matmul>(describe_matmul(rows, weights_));
    return kernels_.emplace(use, std::move(made)).first->second;  // std::map never moves entries
  }

 private:
  bool convolves() const { return shape_.isa == Isa::kAvx2; }
  memory::dims dims(int n) const {
    return convolves() ? memory::dims{n, shape_.k, 1, 1} : memory::dims{shape_.k, n};
  }

  // What a matmul wants is the same for every row count from 64 on; smaller counts take it as
  // given.
  memory::desc packed_weights() const {
    if (convolves()) return {dims(shape_.n), shape_.type, memory::format_tag::OIhw8i8o};
    const memory::desc any(dims(shape_.n), shape_.type, memory::format_tag::any);
    return describe_matmul(64, any).weights_desc();
  }

  template <class Primitive>
  static Kernel make(const typename Primitive::primitive_desc& described) {
    return {Primitive(described), described.src_desc(), described.dst_desc(),
            described.scratchpad_desc()};
  }

  dnnl::matmul::primitive_desc describe_matmul(int rows, const memory::desc& weights) const {
    const memory::desc x({rows, shape_.k}, shape_.type, memory::format_tag::ab);
    const memory::desc y({rows, shape_.n}, memory::data_type::f32, memory::format_tag::ab);
    const auto described = shape_.biased ? dnnl::matmul::desc(x, weights, bias(), y)
                                         : dnnl::matmul::desc(x, weights, y);
    return {described, own_scratch(), cpu_engine()};
  }

  // Rows are the pixels of a line, inputs and outputs its channels. For one thread: see Slices.
  dnnl::convolution_forward::primitive_desc describe_convolution(int rows) const {
    const ParallelScope alone(1);
    const memory::desc x({1, shape_.k, 1, rows}, shape_.type, memory::format_tag::nhwc);
    const memory::desc y({1, shape_.n, 1, rows}, shape_.type, memory::format_tag::nhwc);
    return {dnnl::convolution_forward::desc(dnnl::prop_kind::forward_inference,
                                            dnnl::algorithm::convolution_direct, x, weights_, y,
                                            {1, 1}, {0, 0}, {0, 0}),
            own_scratch(), cpu_engine()};
  }

  static dnnl::primitive_attr own_scratch() {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attributes;
  }

  const Shape shape_;
  const memory::desc weights_;
  const PackedPlaces places_;  // of its elements
  // What a kernel is made for.
  struct Use {
    int rows, threads;
    auto operator<=>(const Use&) const = default;
  };
  std::mutex mutex_;
  std::map<Use, Kernel> kernels_;
};

// The shapes in use, each once. They live as long as the program: their number is bounded by the
// models loaded, and generated code is small.
std::shared_ptr<Product> find_product(const Shape& shape) {
  static std::mutex mutex;
  static std::map<Shape, std::shared_ptr<Product>> products;
  const std::lock_guard lock(mutex);
  auto& product = products[shape];
  if (!product) product = std::make_shared<Product>(shape);
  return product;
}

Status ensure_bytes(PageBuffer& buffer, std::size_t bytes) {
  if (buffer.bytes() >= bytes) return {};
  KVLANE_ASSIGN(buffer, PageBuffer::allocate(bytes));
  return {};
}

void widen(const bf16* narrow, float* wide, std::size_t count) {
  parallel_ranges(count, std::int64_t{1} << 14, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) wide[i] = to_float(narrow[i]);
  });
}

// `bias` is read where the shape has one.
Status execute(Product& product, const Product::Kernel& kernel, const void* x, std::byte* packed,
               const float* bias, float* y) try {
  thread_local PageBuffer scratch;
  KVLANE_TRY(ensure_bytes(scratch, kernel.scratch.get_size()));
  const dnnl::engine& engine = cpu_engine();
  dnnl::stream stream(engine);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, memory(kernel.x, engine, const_cast<void*>(x))},
      {DNNL_ARG_WEIGHTS, memory(product.weights(), engine, packed)},
      {DNNL_ARG_DST, memory(kernel.y, engine, y)},
      {DNNL_ARG_SCRATCHPAD, memory(kernel.scratch, engine, scratch.data())}};
  if (product.shape().biased) {
    arguments.emplace(DNNL_ARG_BIAS, memory(product.bias(), engine, const_cast<float*>(bias)));
  }
  kernel.primitive.execute(stream, arguments);
  stream.wait();
  return {};
} catch (const dnnl::error& error) {
  return onednn_status(error);
}

// The outputs of a product by convolution in runs, one for each thread. oneDNN would share out
// rows, of which decoding has few.
class Slices {
 public:
  Slices(const Shape& shape, int rows) : n_(shape.n), rows_(rows) {
    constexpr int kRegisters = 24;  // outputs that the kernel computes at a time
    const int threads = parallel_threads();
    width_ = ((n_ + threads - 1) / threads + kRegisters - 1) / kRegisters * kRegisters;
    count_ = (n_ + width_ - 1) / width_;
    Shape cut = shape;
    cut.n = outputs(0);
    first_ = find_product(cut);
    cut.n = outputs(count_ - 1);
    last_ = find_product(cut);
  }

  int count() const { return count_; }
  int begin(int i) const { return i * width_; }
  int outputs(int i) const { return std::min(width_, n_ - begin(i)); }

  // Outputs of slice `i` to their columns of y, and the bias, if there is one, to them.
  Status compute(int i, const void* x, std::byte* packed, const float* bias, float* y) const try {
    Product& product = i == count_ - 1 ? *last_ : *first_;
    const Product::Kernel& kernel = product.kernel(Linear::rows_rounded(rows_));
    thread_local PageBuffer sums;
    KVLANE_TRY(ensure_bytes(sums, kernel.y.get_size()));
    KVLANE_TRY(execute(product, kernel, x, packed, nullptr, sums.as<float>()));
    const int width = outputs(i);
    for (int row = 0; row < rows_; ++row) {
      const float* from = sums.as<float>() + std::size_t(row) * width;
      float* to = y + std::size_t(row) * n_ + begin(i);
      for (int out = 0; out < width; ++out) {
        to[out] = bias == nullptr ? from[out] : from[out] + bias[begin(i) + out];
      }
    }
    return {};
  } catch (const dnnl::error& error) {
    return onednn_status(error);
  }

 private:
  int n_;
  int rows_;
  int width_;
  int count_;
  std::shared_ptr<Product> first_, last_;  // all slices but the last are alike
};

class OnednnLinear final : public Linear {
 public:
  OnednnLinear(std::shared_ptr<Product> product, ElementType input_type, PageBuffer memory,
               std::vector<float> bias)
      : Linear(product->shape().n, product->shape().k, input_type, memory.bytes(), std::move(bias)),
        product_(std::move(product)),
        memory_(std::move(memory)),
        packed_(memory_.data()) {}
  // Over weights that another one packed.
  OnednnLinear(std::shared_ptr<Product> product, ElementType input_type, std::byte* packed,
               std::vector<float> bias)
      : Linear(product->shape().n, product->shape().k, input_type, product->weights().get_size(),
               std::move(bias)),
        product_(std::move(product)),
        packed_(packed) {}

  Status apply(const void* x, float* y, int rows) const override try {
    thread_local PageBuffer wide;
    if (input_type_ == ElementType::kBf16 && product_->shape().type == memory::data_type::f32) {
      const std::size_t count = std::size_t(rows_rounded(rows)) * k_;
      KVLANE_TRY(ensure_bytes(wide, count * sizeof(float)));
      widen(static_cast<const bf16*>(x), wide.as<float>(), count);
      x = wide.data();
    }
    if (product_->shape().isa == Isa::kAvx2) return apply_slices(x, y, rows);
    const Product::Kernel& kernel = product_->kernel(rows_rounded(rows));
    return execute(*product_, kernel, x, packed_, bias_.data(), y);
  } catch (const dnnl::error& error) {
    return onednn_status(error);
  }

  // oneDNN lays weights out in panels of outputs, one after another. Some of them are laid out as
  // those of a smaller product where they begin with a panel.
  Result<std::unique_ptr<Linear>> part(int first, int count) const override try {
    memory::desc cut = product_->weights_part(first, count);
    if (!cut) return std::unique_ptr<Linear>();
    Shape shape = product_->shape();
    shape.n = count;
    auto product = find_product(shape);
    const std::size_t skipped =
        std::exchange(cut.data.offset0, 0) * memory::data_type_size(shape.type);
    if (product->weights() != cut) return std::unique_ptr<Linear>();
    return std::unique_ptr<Linear>(std::make_unique<OnednnLinear>(
        std::move(product), input_type_, packed_ + skipped, bias_part(first, count)));
  } catch (const dnnl::error& error) {
    return onednn_status(error);
  }

  void weights_of(int output, float* row) const override {
    if (product_->shape().type == memory::data_type::bf16) {
      gather(reinterpret_cast<const bf16*>(packed_), output, row);
    } else {
      gather(reinterpret_cast<const float*>(packed_), output, row);
    }
  }

 private:
  template <class T>
  void gather(const T* packed, int output, float* row) const {
    packed += product_->places().of_output(output);
    for (const memory::dim place : product_->places().of_inputs()) {
      if constexpr (std::is_same_v<T, bf16>) {
        *row++ = to_float(packed[place]);
      } else {
        *row++ = packed[place];
      }
    }
  }

  Status apply_slices(const void* x, float* y, int rows) const {
    const Slices slices(product_->shape(), rows);
    std::vector<Status> done(slices.count());
    parallel_for(slices.count(), [&](std::int64_t i) {
      const int slice = static_cast<int>(i);
      const memory::desc cut = product_->weights_part(slices.begin(slice), slices.outputs(slice));
      done[i] = slices.compute(slice, x, packed_ + cut.data.offset0 * sizeof(float),
                               bias_.empty() ? nullptr : bias_.data(), y);
    });
    for (Status& status : done) KVLANE_TRY(std::move(status));
    return {};
  }

  std::shared_ptr<Product> product_;
  PageBuffer memory_;  // empty over weights of another
  std::byte* packed_;
};

// Stacks the parts, of elements of `T`, to one matrix of floats. They may lie unaligned.
template <class T>
void stack_widened(std::span<const ByteView> parts, float* stacked) {
  for (const ByteView part : parts) {
    for (std::size_t at = 0; at < part.size(); at += sizeof(T)) {
      T narrow;
      std::memcpy(&narrow, part.data() + at, sizeof(T));
      *stacked++ = to_float(narrow);
    }
  }
}

void stack(std::span<const ByteView> parts, std::byte* stacked) {
  for (const ByteView part : parts) {
    std::memcpy(stacked, part.data(), part.size());
    stacked += part.size();
  }
}

}  // namespace

Result<std::unique_ptr<Linear>> pack_linear_onednn(Isa isa, const LinearWeights& weights,
                                                   int n) try {
  const auto product = find_product(shape_for(isa, n, weights));
  const memory::desc plain = product->plain_weights();

  KVLANE_ASSIGN(PageBuffer packed, PageBuffer::allocate(product->weights().get_size()));
  // A single aligned matrix that needs no widening is packed from where it lies.
  PageBuffer stacked;
  void* source = const_cast<std::byte*>(weights.parts[0].data());
  const std::size_t width = element_bytes(weights.type);
  const bool aligned = reinterpret_cast<std::uintptr_t>(source) % width == 0;
  const bool widened = width != memory::data_type_size(product->shape().type);
  if (weights.parts.size() > 1 || widened || !aligned) {
    KVLANE_ASSIGN(stacked, PageBuffer::allocate(plain.get_size()));
    if (!widened) {
      stack(weights.parts, stacked.data());
    } else if (weights.type == ElementType::kBf16) {
      stack_widened<bf16>(weights.parts, stacked.as<float>());
    } else {
      stack_widened<fp16>(weights.parts, stacked.as<float>());
    }
    source = stacked.data();
  }
  const dnnl::engine& engine = cpu_engine();
  dnnl::stream stream(engine);
  memory from(plain, engine, source);
  memory to(product->weights(), engine, packed.data());
  dnnl::reorder(from, to).execute(stream, from, to);
  stream.wait();
  const auto input_type =
      weights.type == ElementType::kBf16 ? ElementType::kBf16 : ElementType::kF32;
  return std::unique_ptr<Linear>(
      std::make_unique<OnednnLinear>(product, input_type, std::move(packed), weights.bias));
} catch (const dnnl::error& error) {
  return onednn_status(error);
}

std::string onednn_description(Isa isa) {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) +
         (isa == Isa::kAvx512Bf16 ? ", AVX-512 with BF16 dot product"
          : isa == Isa::kAvx512   ? ", AVX-512 in F32"
                                  : ", AVX2 in F32");
}

}  // namespace kvlane
