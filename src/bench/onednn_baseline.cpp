// The plainest use of oneDNN's matmul.
// SPDX-License-Identifier: Apache-2.0
#include "bench/onednn_baseline.h"

#include <dnnl.hpp>

#include <cstring>

#include "base/clock.h"
#include "cpu/memory.h"

namespace kvlane {
namespace {

using dnnl::memory;

class Baseline final : public OnednnBaseline {
 public:
  Baseline(int m, int n, int k, memory::data_type type)
      : engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        described_(dnnl::matmul::desc(
                       memory::desc({m, k}, type, memory::format_tag::ab),
                       memory::desc({k, n}, type, memory::format_tag::any),
                       memory::desc({m, n}, memory::data_type::f32, memory::format_tag::ab)),
                   engine_),
        product_(described_) {}

  Status allocate() {
    KVLANE_ASSIGN(x_, PageBuffer::allocate(described_.src_desc().get_size()));
    KVLANE_ASSIGN(w_, PageBuffer::allocate(described_.weights_desc().get_size()));
    KVLANE_ASSIGN(y_, PageBuffer::allocate(described_.dst_desc().get_size()));
    // 0x3c3c is about 0.011 in BF16 and in F32: ordinary numbers in every byte.
    std::memset(x_.data(), 0x3c, x_.bytes());
    std::memset(w_.data(), 0x3c, w_.bytes());
    return {};
  }

  double seconds() override {
    const TimePoint start = SteadyClock::now();
    product_.execute(stream_,
                     {{DNNL_ARG_SRC, memory(described_.src_desc(), engine_, x_.data())},
                      {DNNL_ARG_WEIGHTS, memory(described_.weights_desc(), engine_, w_.data())},
                      {DNNL_ARG_DST, memory(described_.dst_desc(), engine_, y_.data())}});
    stream_.wait();
    return seconds_since(start);
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::matmul::primitive_desc described_;
  dnnl::matmul product_;
  PageBuffer x_, w_, y_;
};

}  // namespace

Result<std::unique_ptr<OnednnBaseline>> OnednnBaseline::create(int m, int n, int k,
                                                               ElementType type) try {
  auto baseline = std::make_unique<Baseline>(
      m, n, k, type == ElementType::kBf16 ? memory::data_type::bf16 : memory::data_type::f32);
  KVLANE_TRY(baseline->allocate());
  return std::unique_ptr<OnednnBaseline>(std::move(baseline));
} catch (const dnnl::error& error) {
  return internal_error(std::string("oneDNN: ") + error.what());
}

}  // namespace kvlane
