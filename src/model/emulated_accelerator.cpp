// Kernels are compiled here, once for all tests on such devices.
// SPDX-License-Identifier: Apache-2.0
#include "model/emulated_accelerator.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "attention/decode_device.h"
#include "attention/decode_gpu.h"
#include "attention/decode_merge_device.h"
#include "attention/hack_decode_device.h"
#include "attention/hack_decode_gpu.h"
#include "attention/hack_prefill_device.h"
#include "attention/hack_prefill_gpu.h"
#include "attention/narrow_decode_device.h"
#include "attention/narrow_decode_gpu.h"
#include "attention/narrow_prefill_device.h"
#include "attention/narrow_prefill_gpu.h"
#include "attention/prefill_device.h"
#include "attention/prefill_gpu.h"
#include "base/bf16.h"
#include "codec/channel_device_decode.h"
#include "codec/channel_device_encode.h"
#include "codec/splitzip_device_decode.h"
#include "codec/splitzip_device_encode.h"
#include "gpu/device.h"
#include "gpu/emulated_block.h"
#include "gpu/xxh3_device.h"
#include "ops/greedy_device.h"
#include "ops/greedy_gpu.h"
#include "ops/products_gpu.h"
#include "ops/rotated_qkv_device.h"
#include "ops/rows_device.h"
#include "ops/rows_gpu.h"
#include "quant/hack_seal_device.h"
#include "quant/zack_seal_device.h"

namespace kvlane {
namespace {

constexpr int kThreads = 64;

template <class Shared>
std::unique_ptr<Shared> poisoned() {
  auto shared = std::make_unique<Shared>();
  std::memset(static_cast<void*>(shared.get()), 0xFF, sizeof(Shared));
  return shared;
}

template <class Each>
void for_parts(std::uint64_t& seed, int rows, int length, const Each& each) {
  for (int row = 0; row < rows; ++row) {
    for (int part = 0; part * kThreads * kRowValues < length; ++part) {
      gpu::run_block(kThreads, seed++,
                     [&](gpu::EmulatedThread& thread) { each(thread, row, part); });
    }
  }
}

template <int kParts>
void run_norm(std::uint64_t& seed, const NormRows& rows) {
  for (int row = 0; row < rows.rows; ++row) {
    const auto shared = poisoned<NormShared>();
    gpu::run_block(norm_threads(rows.n), seed++, [&](gpu::EmulatedThread& thread) {
      norm_row<kParts>(thread, rows, row, *shared);
    });
  }
}

void write_turned(std::uint64_t& seed, const QkvRows& rows, int lanes_log2) {
  const int heads = rows.rows * (rows.heads / rows.kv_heads + 1);
  for (int kv_head = 0; kv_head < rows.kv_heads; ++kv_head) {
    for (int first = 0; first < heads; first += kTurnedHeads) {
      const auto shared = poisoned<TurnedHeads>();
      gpu::run_block(kThreads, seed++, [&](gpu::EmulatedThread& thread) {
        write_turned_heads(thread, rows, kv_head, first, lanes_log2, *shared);
      });
    }
  }
}

template <int kDim, int kTiles>
void run_decode(std::uint64_t& seed, const DecodeBatch& batch, const DecodeUnit& unit) {
  const auto shared = poisoned<DecodeShared<kDim, kTiles>>();
  gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
    attend_unit<kDim, kTiles>(thread, batch, unit, *shared);
  });
}

template <int kDim, int kTiles>
void run_narrow_decode(std::uint64_t& seed, const NarrowDecodeBatch& batch, int machine) {
  const auto shared = poisoned<NarrowDecodeShared<kDim, kTiles>>();
  gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
    attend_narrow_pieces<kDim, kTiles>(thread, batch, machine, *shared);
  });
}

template <int kDim, int kTiles, class Seen>
void run_prefill(std::uint64_t& seed, const PrefillBatch& batch, const PrefillUnit& unit,
                 const Seen& seen) {
  const auto shared = poisoned<PrefillShared<kDim, kTiles>>();
  gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
    attend_tile<kDim, kTiles>(thread, batch, unit, *shared, seen);
  });
}

template <class Seen>
Status run_prefill_units(std::uint64_t& seed, const PrefillBatch& batch, const PrefillUnit* units,
                         std::size_t count, const Seen& seen) {
  const PrefillKernelShape* kernel = prefill_kernel(batch.head_dim);
  for (std::size_t i = 0; i < count; ++i) {
    switch (kernel->dim * 8 + kernel->tiles) {
      case 64 * 8 + 2: run_prefill<64, 2>(seed, batch, units[i], seen); break;
      case 128 * 8 + 2: run_prefill<128, 2>(seed, batch, units[i], seen); break;
      case 256 * 8 + 1: run_prefill<256, 1>(seed, batch, units[i], seen); break;
      default: return internal_error("a kernel that is not emulated");
    }
  }
  return {};
}

template <int kDim, int kTiles>
void run_narrow_prefill(std::uint64_t& seed, const NarrowPrefillBatch& batch,
                        const PrefillUnit& unit) {
  const auto shared = poisoned<PrefillShared<kDim, kTiles>>();
  gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
    attend_narrow_tile<kDim, kTiles>(thread, batch, unit, *shared);
  });
}

template <int kDim, bool kKeys, bool kBoth>
void seal_in(std::uint64_t& seed, const HackSealPart& part) {
  const auto shared = poisoned<HackSealShared<kDim>>();
  gpu::run_block(kHackSealWarps * gpu::kWarpThreads, seed++, [&](gpu::EmulatedThread& thread) {
    seal_part<kKeys, kBoth>(thread, part, *shared);
  });
}

// K or V of a page.
template <bool kKeys>
void seal_one(std::uint64_t& seed, hack::Axis axis, const HackSealPart& part) {
  const bool both = axis == hack::Axis::kBoth;
  if (part.head_dim <= 64) {
    both ? seal_in<64, kKeys, true>(seed, part) : seal_in<64, kKeys, false>(seed, part);
  } else if (part.head_dim <= 128) {
    both ? seal_in<128, kKeys, true>(seed, part) : seal_in<128, kKeys, false>(seed, part);
  } else {
    both ? seal_in<256, kKeys, true>(seed, part) : seal_in<256, kKeys, false>(seed, part);
  }
}

}  // namespace

class EmulatedAccelerator::Graph final : public DeviceGraph {
 public:
  std::vector<EmulatedLine::Work> works;
};

class EmulatedAccelerator::Mark final : public DeviceMark {
 public:
  Mark(EmulatedAccelerator& device, std::shared_ptr<EmulatedLine> line)
      : device_(device), line_(std::move(line)), place_(line_->given()) {}
  Status reach() const override {
    KVLANE_TRY(device_.count_call(Counted::kBesideTheLine));
    line_->pass(place_);
    return {};
  }
  // Work that is done when the line is there.
  EmulatedLine::Work passed() const {
    return [line = line_, place = place_]() -> Status {
      line->pass(place);
      return {};
    };
  }

 private:
  EmulatedAccelerator& device_;
  const std::shared_ptr<EmulatedLine> line_;
  const std::size_t place_;
};

class EmulatedAccelerator::Lane final : public DeviceLane {
 public:
  explicit Lane(EmulatedAccelerator& device) : device_(device) {}
  Status wait(const DeviceMark& mark) override {
    KVLANE_TRY(device_.count_call(Counted::kBesideTheLine));
    // Kernels' errors are told where the accelerator's line is finished.
    own_->give(static_cast<const Mark&>(mark).passed());
    return {};
  }
  Result<std::shared_ptr<const DeviceMark>> mark() override {
    KVLANE_TRY(device_.count_call(Counted::kBesideTheLine));
    return mark_of(device_, own_);
  }
  Status copy(std::byte* to, const std::byte* from, std::size_t bytes) override {
    return give([to, from, bytes] { return copy_on_host(to, from, bytes); });
  }
  Status copy_rows(const RowsCopy& rows) override {
    return give([rows]() -> Status {
      for (std::size_t i = 0; i < rows.rows; ++i) {
        KVLANE_TRY(copy_on_host(rows.to + i * rows.to_stride, rows.from + i * rows.from_stride,
                                rows.bytes));
      }
      return {};
    });
  }
  Status encode(ElementType, const splitzip::DeviceEncodeTask* tasks, std::size_t count) override {
    return code<splitzip::DeviceEncodeShared>(tasks, count,
                                              [](auto&... all) { splitzip::encode_plane(all...); });
  }
  Status encode(ElementType, const channel::DeviceEncodeTask* tasks, std::size_t count) override {
    return code<channel::DeviceEncodeShared>(tasks, count,
                                             [](auto&... all) { channel::encode_plane(all...); });
  }
  Status decode(ElementType, const splitzip::DeviceDecodeTask* tasks, std::size_t count) override {
    struct Shared {
      splitzip::DeviceDecodeShared own;
      splitzip::DeviceDecodeRing rings[kThreads / gpu::kWarpThreads];
    };
    return code<Shared>(tasks, count, [](auto& thread, const auto& task, Shared& shared) {
      splitzip::decode_plane(thread, task, shared.own, shared.rings);
    });
  }
  Status decode(ElementType, const channel::DeviceDecodeTask* tasks, std::size_t count) override {
    return code<channel::DeviceDecodeShared>(tasks, count,
                                             [](auto&... all) { channel::decode_plane(all...); });
  }
  Status checksum(const gpu::Xxh3Task* tasks, std::size_t count) override {
    return code<gpu::Xxh3Shared>(tasks, count, [](auto&... all) { gpu::sum_xxh3(all...); });
  }
  Status finish() override {
    const Status done = own_->run(own_->given());
    KVLANE_TRY(device_.count_call(Counted::kBesideTheLine));
    return done;
  }

 private:
  Status give(std::function<Status()> work) {
    KVLANE_TRY(device_.count_call(Counted::kBesideTheLine));
    // By whoever is first to wait for it, perhaps when the lane is gone.
    own_->give([&device = device_, work = std::move(work)] {
      const EmulatedMemory::Open open(device.memory_);
      return work();
    });
    return {};
  }
  // A block of threads a task.
  template <class Shared, class Task, class Kernel>
  Status code(const Task* tasks, std::size_t count, const Kernel& kernel) {
    return give([this, tasks, count, kernel]() -> Status {
      for (std::size_t i = 0; i < count; ++i) {
        const auto shared = poisoned<Shared>();
        gpu::run_block(kThreads, seed_++,
                       [&](gpu::EmulatedThread& thread) { kernel(thread, tasks[i], *shared); });
      }
      return {};
    });
  }

  EmulatedAccelerator& device_;
  const std::shared_ptr<EmulatedLine> own_ = std::make_shared<EmulatedLine>();
  std::uint64_t seed_ = 1;
};

void EmulatedAccelerator::with_memory(const std::function<void()>& touch) {
  const EmulatedMemory::Open open(memory_);
  touch();
}

Result<Accelerator::Memory> EmulatedAccelerator::allocate(std::size_t bytes) {
  KVLANE_TRY(count_call());
  KVLANE_TRY(not_captured("memory"));
  return memory_.allocate(bytes);
}

Result<Accelerator::Memory> EmulatedAccelerator::allocate_host(std::size_t bytes) {
  KVLANE_TRY(count_call());
  struct alignas(256) Line {
    std::byte bytes[256];
  };
  auto owner = std::make_shared<std::vector<Line>>(bytes / sizeof(Line) + 1);
  for (Line& line : *owner)
    std::fill(std::begin(line.bytes), std::end(line.bytes), std::byte{0xFF});
  return Memory(owner->data()->bytes, [owner](std::byte*) mutable { owner.reset(); });
}

Status EmulatedAccelerator::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  KVLANE_TRY(not_captured("a copy"));
  return give([to, from, bytes] { return copy_on_host(to, from, bytes); });
}

Status EmulatedAccelerator::finish() {
  KVLANE_TRY(not_captured("an end"));
  const Status done = line_->run(line_->given());
  KVLANE_TRY(count_call());
  return done;
}

Result<std::unique_ptr<DeviceGraph>> EmulatedAccelerator::capture(
    const std::function<Status()>& give) {
  KVLANE_TRY(count_call());
  auto graph = std::make_unique<Graph>();
  captured_ = &graph->works;
  const Status given = give();
  captured_ = nullptr;
  KVLANE_TRY(given);
  if (refuses_captures_) return internal_error("captures are refused");
  return std::unique_ptr<DeviceGraph>(std::move(graph));
}

Status EmulatedAccelerator::replay(const DeviceGraph& graph) {
  KVLANE_TRY(count_call());
  ++replays_;
  for (const EmulatedLine::Work& work : static_cast<const Graph&>(graph).works) line_->give(work);
  return {};
}

Result<std::shared_ptr<const DeviceMark>> EmulatedAccelerator::mark() {
  KVLANE_TRY(count_call());
  return mark_of(*this, line_);
}

Status EmulatedAccelerator::wait(const DeviceMark& mark) {
  KVLANE_TRY(count_call());
  KVLANE_TRY(not_captured("waiting"));
  line_->give(static_cast<const Mark&>(mark).passed());
  return {};
}

Result<std::unique_ptr<DeviceLane>> EmulatedAccelerator::lane() {
  KVLANE_TRY(count_call());
  return std::unique_ptr<DeviceLane>(std::make_unique<Lane>(*this));
}

Status EmulatedAccelerator::embed(const EmbedRows& rows) {
  KVLANE_TRY(check_rows(rows));
  return give([this, rows]() -> Status {
    for_parts(seed_, rows.rows, rows.hidden, [&](gpu::EmulatedThread& thread, int row, int part) {
      embed_values(thread, rows, row, part);
    });
    return {};
  });
}

Status EmulatedAccelerator::norm(const NormRows& rows) {
  KVLANE_TRY(check_rows(rows));
  return give([this, rows]() -> Status {
    switch (norm_parts(rows.n)) {
      case 1: run_norm<1>(seed_, rows); break;
      case 2: run_norm<2>(seed_, rows); break;
      default: run_norm<4>(seed_, rows); break;
    }
    return {};
  });
}

Status EmulatedAccelerator::write_qkv(const QkvRows& rows) {
  KVLANE_TRY(check_rows(rows));
  return give([this, rows]() -> Status {
    const int lanes_log2 = qkv_lanes_log2(rows.head_dim);
    if (rows.rotations != nullptr) {
      write_turned(seed_, rows, lanes_log2);
      return {};
    }
    const int step = kThreads >> lanes_log2;
    for (int row = 0; row < rows.rows; ++row) {
      for (int head = 0; head < rows.heads + 2 * rows.kv_heads; head += step) {
        gpu::run_block(kThreads, seed_++, [&](gpu::EmulatedThread& thread) {
          write_heads(thread, rows, row, head, lanes_log2);
        });
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::silu(const SiluRows& rows) {
  KVLANE_TRY(check_rows(rows));
  return give([this, rows]() -> Status {
    for_parts(seed_, rows.rows, rows.ffn, [&](gpu::EmulatedThread& thread, int row, int part) {
      silu_values(thread, rows, row, part);
    });
    return {};
  });
}

Status EmulatedAccelerator::choose(const GreedyRows& rows) {
  KVLANE_TRY(check_greedy(rows));
  return give([this, rows]() -> Status {
    for (int row = 0; row < rows.rows; ++row) {
      for (int part = 0; part < greedy_parts(rows.vocab); ++part) {
        const auto shared = poisoned<GreedyShared>();
        gpu::run_block(kGreedyThreads, seed_++, [&](gpu::EmulatedThread& thread) {
          scan_logits(thread, rows, row, part, *shared);
        });
      }
      gpu::run_block(gpu::kWarpThreads, seed_++,
                     [&](gpu::EmulatedThread& thread) { choose_token(thread, rows, row); });
    }
    return {};
  });
}

Status EmulatedAccelerator::multiply(const GpuProduct& product) {
  return give([product]() -> Status {
    const auto* const w = reinterpret_cast<const bf16*>(product.weights);
    const auto* const x = reinterpret_cast<const bf16*>(product.x);
    for (int row = 0; row < product.rows; ++row) {
      for (int out = 0; out < product.n; ++out) {
        float sum = 0;
        for (int i = 0; i < product.k; ++i) {
          sum += to_float(x[std::size_t(row) * product.k + i]) *
                 to_float(w[std::size_t(out) * product.k + i]);
        }
        float& y = product.y[std::size_t(row) * product.n + out];
        y = product.add ? y + sum : sum;
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::attend(const DecodeBatch& batch, const DecodeUnit* units,
                                   std::size_t count) {
  return give([this, batch, units, count]() -> Status {
    const DecodeKernelShape* kernel = decode_kernel(batch.heads / batch.kv_heads, batch.head_dim);
    for (std::size_t i = 0; i < count; ++i) {
      switch (kernel->dim * 8 + kernel->tiles) {
        case 64 * 8 + 1: run_decode<64, 1>(seed_, batch, units[i]); break;
        case 64 * 8 + 2: run_decode<64, 2>(seed_, batch, units[i]); break;
        case 128 * 8 + 1: run_decode<128, 1>(seed_, batch, units[i]); break;
        case 128 * 8 + 2: run_decode<128, 2>(seed_, batch, units[i]); break;
        case 256 * 8 + 1: run_decode<256, 1>(seed_, batch, units[i]); break;
        default: return internal_error("a kernel that is not emulated");
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::merge(const DecodeMerge& merge) {
  return give([this, merge]() -> Status {
    for (int row = 0; row < merge.sequences * merge.heads; ++row) {
      gpu::run_block(gpu::kWarpThreads, seed_++,
                     [&](gpu::EmulatedThread& thread) { merge_states(thread, merge, row); });
    }
    return {};
  });
}

Status EmulatedAccelerator::attend(const PrefillBatch& batch, const PrefillUnit* units,
                                   std::size_t count) {
  return give([=, this] { return run_prefill_units(seed_, batch, units, count, NothingSeen{}); });
}

Status EmulatedAccelerator::attend(const PrefillBatch& batch, const SealedSeen& seen,
                                   const PrefillUnit* units, std::size_t count) {
  return give([=, this] { return run_prefill_units(seed_, batch, units, count, seen); });
}

Status EmulatedAccelerator::seal(const HackSealBatch& batch, std::size_t count) {
  return give([this, batch, count]() -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      if (batch.places[i].rows < 0) continue;
      for (int head = 0; head < batch.kv_heads; ++head) {
        const int place = static_cast<int>(i);
        seal_one<true>(seed_, batch.k.axis, seal_part_of<true>(batch, place, head));
        seal_one<false>(seed_, batch.v.axis, seal_part_of<false>(batch, place, head));
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::prepare(const HackPrepare& prepare) {
  return give([this, prepare]() -> Status {
    for (int row = 0; row < prepare.rows; row += hack_prepare_rows(prepare.head_dim)) {
      gpu::run_block(gpu::kWarpThreads, seed_++,
                     [&](gpu::EmulatedThread& thread) { prepare_queries(thread, prepare, row); });
    }
    return {};
  });
}

Status EmulatedAccelerator::attend(const HackKind& kind, const HackDecodeBatch& batch,
                                   const DecodeUnit* units, std::size_t count) {
  KVLANE_TRY(hack_decode_shape(kind, batch.heads, batch.kv_heads, batch.head_dim, 1).status());
  return give([this, kind, batch, units, count]() -> Status {
    with_hack_decode_kernel(kind, batch.head_dim, batch.heads / batch.kv_heads, [&](auto known) {
      using Known = decltype(known);
      for (std::size_t i = 0; i < count; ++i) {
        const auto shared = poisoned<
            HackDecodeMemory<Known::kDim, Known::kKeyBits, Known::kValueBits, Known::kPartition>>();
        gpu::run_block(kDecodeWarps * gpu::kWarpThreads, seed_++, [&](gpu::EmulatedThread& thread) {
          attend_coded_unit<Known::kDim, Known::kKeyBits, Known::kValueBits, Known::kPartition,
                            Known::kWhole, Known::kHeads>(thread, batch, units[i], *shared);
        });
      }
    });
    return {};
  });
}

Status EmulatedAccelerator::attend(const HackKind& kind, const HackPrefillBatch& batch,
                                   const PrefillUnit* units, std::size_t count) {
  KVLANE_TRY(hack_prefill_shape(kind, batch.heads, batch.kv_heads, batch.head_dim).status());
  return give([this, kind, batch, units, count]() -> Status {
    with_hack_prefill_kernel(kind.partition, batch.head_dim, [&](auto known) {
      using Known = decltype(known);
      const std::size_t bytes = hack_prefill_pages_bytes(batch.layout, Known::kDim);
      for (std::size_t i = 0; i < count; ++i) {
        const auto shared = poisoned<HackPrefillShared<Known::kDim, Known::kTiles>>();
        std::vector<gpu::Words4> pages(bytes / sizeof(gpu::Words4), {{~0U, ~0U, ~0U, ~0U}});
        gpu::run_block(kPrefillWarps * gpu::kWarpThreads, seed_++,
                       [&](gpu::EmulatedThread& thread) {
                         attend_coded_tile<Known::kDim, Known::kTiles, Known::kPartition>(
                             thread, batch, units[i], *shared, pages.data());
                       });
      }
    });
    return {};
  });
}

Status EmulatedAccelerator::seal(const ZackSealBatch& batch, std::size_t count) {
  return give([this, batch, count]() -> Status {
    for (int i = 0; i < static_cast<int>(count) * batch.kv_heads; ++i) {
      const int place = i / batch.kv_heads, head = i % batch.kv_heads;
      if (batch.places[place].rows < 0) continue;
      for (const bool keys : {true, false}) {
        std::uint32_t wrong = ~0U;
        gpu::run_block(kThreads, seed_++, [&](gpu::EmulatedThread& thread) {
          keys ? seal_narrow_part<true>(thread, batch, place, head, wrong)
               : seal_narrow_part<false>(thread, batch, place, head, wrong);
        });
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::attend(const NarrowDecodeBatch& batch, int width_max, int machines) {
  return give([this, batch, width_max, machines]() -> Status {
    const auto* const kernel = narrow_decode_kernel(batch.heads / batch.kv_heads, width_max);
    for (int machine = 0; machine < machines; ++machine) {
      switch (kernel->dim * 8 + kernel->tiles) {
        case 64 * 8 + 1: run_narrow_decode<64, 1>(seed_, batch, machine); break;
        case 64 * 8 + 2: run_narrow_decode<64, 2>(seed_, batch, machine); break;
        case 128 * 8 + 1: run_narrow_decode<128, 1>(seed_, batch, machine); break;
        case 128 * 8 + 2: run_narrow_decode<128, 2>(seed_, batch, machine); break;
        default: run_narrow_decode<256, 1>(seed_, batch, machine);
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::attend(const NarrowPrefillBatch& batch, int width_max,
                                   const PrefillUnit* units, std::size_t count) {
  KVLANE_TRY(check_narrow_prefill(batch, width_max));
  return give([this, batch, width_max, units, count]() -> Status {
    for (std::size_t i = 0; i < count; ++i) {
      switch (prefill_kernel(width_max)->dim) {
        case 64: run_narrow_prefill<64, 2>(seed_, batch, units[i]); break;
        case 128: run_narrow_prefill<128, 2>(seed_, batch, units[i]); break;
        default: run_narrow_prefill<256, 1>(seed_, batch, units[i]);
      }
    }
    return {};
  });
}

Status EmulatedAccelerator::count_call(Counted kind) {
  if (counted_ != Counted::kAll && counted_ != kind) return {};
  if (++calls_ != failing_call_) return {};
  return internal_error("call " + std::to_string(failing_call_) + " was made to fail");
}

Status EmulatedAccelerator::not_captured(const char* what) const {
  if (captured_ == nullptr) return {};
  return internal_error(std::string("graphs are of kernels, not of ") + what);
}

Status EmulatedAccelerator::give(std::function<Status()> work) {
  KVLANE_TRY(count_call());
  EmulatedLine::Work opened = [this, work = std::move(work)] {
    const EmulatedMemory::Open open(memory_);
    return work();
  };
  if (captured_ != nullptr) {
    captured_->push_back(std::move(opened));
  } else {
    line_->give(std::move(opened));
  }
  return {};
}

std::shared_ptr<const DeviceMark> EmulatedAccelerator::mark_of(EmulatedAccelerator& device,
                                                               std::shared_ptr<EmulatedLine> line) {
  return std::make_shared<Mark>(device, std::move(line));
}

}  // namespace kvlane
