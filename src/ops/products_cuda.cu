// Products by cuBLASLt, whose functions are looked up when the first object is made.
//
// cuBLASLt's matrices are column by column: our W [n][k] is its A, k x n, transposed; x its B,
// k x rows; y its C and D, n x rows. Bytes moved: 2 n k + 2 rows k + 4 rows n (8 where it adds);
// operations: 2 rows n k.
// SPDX-License-Identifier: Apache-2.0
#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "gpu/cuda_status.h"
#include "ops/products_gpu.h"

namespace kvlane {
namespace {

// What we call of it.
struct Library {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find_kernel = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

Result<Library> load_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  // It stays for as long as the program runs: its kernels may be in some stream until then.
  void* const file = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    return unavailable("products on a GPU need cuBLASLt, and " + name + " cannot be loaded (" +
                       dlerror() + "); LD_LIBRARY_PATH may name its folder");
  }
  Library library;
  std::string missing;
  const auto look_up = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, symbol));
    if (function == nullptr) missing = symbol;
  };
  look_up(library.create, "cublasLtCreate");
  look_up(library.destroy, "cublasLtDestroy");
  look_up(library.status_string, "cublasLtGetStatusString");
  look_up(library.matmul, "cublasLtMatmul");
  look_up(library.find_kernel, "cublasLtMatmulAlgoGetHeuristic");
  look_up(library.create_operation, "cublasLtMatmulDescCreate");
  look_up(library.destroy_operation, "cublasLtMatmulDescDestroy");
  look_up(library.set_operation, "cublasLtMatmulDescSetAttribute");
  look_up(library.create_layout, "cublasLtMatrixLayoutCreate");
  look_up(library.destroy_layout, "cublasLtMatrixLayoutDestroy");
  look_up(library.create_preference, "cublasLtMatmulPreferenceCreate");
  look_up(library.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  look_up(library.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  if (!missing.empty()) return unavailable(name + " has no function " + missing);
  return library;
}

// One for the program.
const Result<Library>& library() {
  static const Result<Library> loaded = load_library();
  return loaded;
}

Status checked(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  const std::string sentence =
      "cuBLASLt refused to " + what + ": " + library()->status_string(status);
  return status == CUBLAS_STATUS_ALLOC_FAILED ? exhausted(sentence) : internal_error(sentence);
}

// Handles, which are all pointers, with their ends.
template <class Handle, auto kDestroy>
class Owned {
 public:
  Owned() = default;
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) static_cast<void>((*library().*kDestroy)(handle_));
  }
  Handle get() const { return handle_; }
  Handle* out() { return &handle_; }

 private:
  Handle handle_ = nullptr;
};
using Operation = Owned<cublasLtMatmulDesc_t, &Library::destroy_operation>;
using Layout = Owned<cublasLtMatrixLayout_t, &Library::destroy_layout>;
using Preference = Owned<cublasLtMatmulPreference_t, &Library::destroy_preference>;
using Context = Owned<cublasLtHandle_t, &Library::destroy>;

// All that is decided about one shape.
struct Plan {
  Operation operation;
  Layout weights, x, y;
  cublasLtMatmulAlgo_t kernel{};
};

constexpr std::uint32_t kAlignment = 16;

bool aligned(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % kAlignment == 0;
}

class CublasLtProducts final : public GpuProducts {
 public:
  CublasLtProducts(Context context, gpu::DeviceBuffer workspace)
      : context_(std::move(context)), workspace_(std::move(workspace)) {}

  Status multiply(const GpuProduct& product, const gpu::Stream& stream) override {
    if (product.rows < 1 || product.n < 8 || product.k < 8 || product.n % 8 != 0 ||
        product.k % 8 != 0) {
      return invalid_argument("there is no product on GPUs of " + name_of(product));
    }
    if (!aligned(product.weights) || !aligned(product.x) || !aligned(product.y)) {
      return invalid_argument("products on a GPU need addresses that are multiples of 16");
    }
    KVLANE_TRY(gpu::use_device(stream.device()));
    KVLANE_ASSIGN(const Plan* plan, plan_of(product));
    const float alpha = 1;
    const float beta = product.add ? 1 : 0;
    return checked(
        library()->matmul(context_.get(), plan->operation.get(), &alpha, product.weights,
                          plan->weights.get(), product.x, plan->x.get(), &beta, product.y,
                          plan->y.get(), product.y, plan->y.get(), &plan->kernel, workspace_.data(),
                          workspace_.bytes(), static_cast<cudaStream_t>(stream.handle())),
        "multiply " + name_of(product));
  }

 private:
  static std::string name_of(const GpuProduct& product) {
    return std::to_string(product.rows) + " rows of " + std::to_string(product.k) +
           " values with " + std::to_string(product.n) + " rows of weights";
  }

  // Until the next call.
  Result<const Plan*> plan_of(const GpuProduct& product) {
    if (plans_.size() == kPlansMax) plans_.clear();
    const auto [at, is_new] =
        plans_.try_emplace(std::tuple(product.n, product.k, product.rows, product.add));
    if (is_new) {
      if (const Status made = make_plan(product, at->second); !made.ok()) {
        plans_.erase(at);
        return made;
      }
    }
    return static_cast<const Plan*>(&at->second);
  }

  Status make_plan(const GpuProduct& product, Plan& plan) {
    const Library& lt = *library();
    const std::string what = "prepare a product of " + name_of(product);
    const auto n = static_cast<std::uint64_t>(product.n);
    const auto k = static_cast<std::uint64_t>(product.k);
    const auto rows = static_cast<std::uint64_t>(product.rows);
    KVLANE_TRY(
        checked(lt.create_operation(plan.operation.out(), CUBLAS_COMPUTE_32F, CUDA_R_32F), what));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    KVLANE_TRY(checked(lt.set_operation(plan.operation.get(), CUBLASLT_MATMUL_DESC_TRANSA,
                                        &transposed, sizeof(transposed)),
                       what));
    KVLANE_TRY(checked(lt.create_layout(plan.weights.out(), CUDA_R_16BF, k, n, product.k), what));
    KVLANE_TRY(checked(lt.create_layout(plan.x.out(), CUDA_R_16BF, k, rows, product.k), what));
    KVLANE_TRY(checked(lt.create_layout(plan.y.out(), CUDA_R_32F, n, rows, product.n), what));
    Preference preference;
    KVLANE_TRY(checked(lt.create_preference(preference.out()), what));
    const std::size_t workspace = workspace_.bytes();
    KVLANE_TRY(checked(lt.set_preference(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &workspace, sizeof(workspace)),
                       what));
    // Else it takes all addresses to be multiples of 256.
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      KVLANE_TRY(checked(
          lt.set_preference(preference.get(), attribute, &kAlignment, sizeof(kAlignment)), what));
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    KVLANE_TRY(checked(
        lt.find_kernel(context_.get(), plan.operation.get(), plan.weights.get(), plan.x.get(),
                       plan.y.get(), plan.y.get(), preference.get(), 1, &found, &count),
        what));
    if (count == 0) return internal_error("cuBLASLt has no kernel for " + name_of(product));
    KVLANE_TRY(checked(found.state, what));
    plan.kernel = found.algo;
    return {};
  }

  // Passes have any number of rows.
  static constexpr std::size_t kPlansMax = 4096;

  Context context_;
  gpu::DeviceBuffer workspace_;
  std::map<std::tuple<int, int, int, bool>, Plan> plans_;
};

}  // namespace

Result<std::unique_ptr<GpuProducts>> GpuProducts::create(int device) {
  // First the device: where there is none, that is what to say.
  KVLANE_ASSIGN(gpu::DeviceBuffer workspace, gpu::DeviceBuffer::allocate(device, kWorkspaceBytes));
  if (!library().ok()) return library().status();
  KVLANE_TRY(gpu::use_device(device));
  Context context;
  KVLANE_TRY(checked(library()->create(context.out()), "start"));
  return std::unique_ptr<GpuProducts>(
      std::make_unique<CublasLtProducts>(std::move(context), std::move(workspace)));
}

}  // namespace kvlane

#else

#include "ops/products_gpu.h"

namespace kvlane {

Result<std::unique_ptr<GpuProducts>> GpuProducts::create(int) {
  return unsupported("this build of kvlane has no products on GPUs: cublasLt.h was not there");
}

}  // namespace kvlane

#endif
