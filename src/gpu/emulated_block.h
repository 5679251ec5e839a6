// Kernels on a CPU: a block of threads that take turns, for tests of device code where no GPU is.
//
// Threads are fibers of one thread. At every barrier and exchange the next one that may go on runs,
// chosen by `seed`: an order that a GPU could have too, so a barrier that is missing shows as a
// wrong result for some seed. With most seeds one warp is slow. What is copied asynchronously has
// poison (bytes of FF) in its place until the wait, so a wait that is missing shows too.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gpu/device_code.h"

namespace kvlane::gpu {

class EmulatedBlock;

// See gpu/device_code.h.
class EmulatedThread {
 public:
  EmulatedThread(EmulatedBlock& block, int index) : block_(block), index_(index) {}

  int index() const { return index_; }
  int threads() const;
  int lane() const { return index_ % kWarpThreads; }
  int warp() const { return index_ / kWarpThreads; }
  int warps() const { return threads() / kWarpThreads; }

  void sync_block();
  void sync_warp() { exchange(0); }
  std::uint32_t shuffle(std::uint32_t x, int lane) { return exchange(x)[lane]; }
  std::uint32_t shuffle_up(std::uint32_t x, int by, int width) {
    const Lanes all = exchange(x);
    return lane() % width < by ? x : all[lane() - by];
  }
  std::uint32_t ballot(bool condition);
  std::uint32_t sum(std::uint32_t x);
  // See gpu/device_float.h. Sums are of floats, product after product.
  void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
  void mma_fp16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
  void mma_fp16(float (&d)[4], const std::uint32_t (&a)[2], std::uint32_t b) {
    mma_fp16(d, {a[0], a[1], 0, 0}, b, 0);
  }
  void mma_u8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                std::uint32_t b1);
  void mma_u8u8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                std::uint32_t b1);
  void mma_s8s8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                std::uint32_t b1);
  std::uint32_t transposed(std::uint32_t pair);
  // A lane reads its own row before the warp meets.
  void load_matrices(const Words4& own, std::uint32_t (&m)[4]) { exchange_matrices(own, m); }
  void load_transposed(const Words4& own, std::uint32_t (&m)[4]) { exchange_transposed(own, m); }
  void copy_async(Words4& to, const std::byte* from, bool wanted) {
    to = {{~0U, ~0U, ~0U, ~0U}};
    if (wanted) {
      touch(from);
      touch(from + sizeof(Words4) - 1);
    }
    copies_.push_back({&to, from, wanted, groups_});
  }
  void fetch_ahead(const std::byte* at) { touch(at); }
  void wait_copies() { complete_copies(groups_); }
  void close_copies() { ++groups_; }
  template <int kLeft>
  void wait_copies_but() {
    complete_copies(groups_ - kLeft - 1);
  }
  // Launches are emulated one after the other.
  void let_next_begin() {}
  void wait_previous() {}
  void add(std::uint32_t& word, std::uint32_t x) { word += x; }
  // Of a warpgroup: see gpu/hopper_thread.h. What is multiplied is read at the begin of a product
  // or at the wait, as the block's seed has it, and the result is poison until the wait.
  void publish() {}
  void begin_products() {}
  template <bool kAdd, std::size_t kSize>
  void multiply_s8s8(std::int32_t (&d)[kSize], const Words4& a, const Words4& b, int step) {
    static_assert(sizeof(d) == kSize * sizeof(std::uint32_t));
    begin_product({.d = d, .size = kSize, .kind = kAdd ? kAddBytes : kBytes, .a = &a, .b = &b},
                  step);
  }
  template <std::size_t kSize>
  void multiply_fp16(float (&d)[kSize], const std::uint32_t (&a)[4], const Words4& b, int step) {
    begin_product({.d = d, .size = kSize, .kind = kHalves, .a = nullptr, .b = &b}, step, a);
  }
  void close_products() { ++product_groups_; }
  template <int kLeft, class... Arrays>
  void wait_products_but(Arrays&... /*results*/) {
    complete_products(product_groups_ - kLeft - 1);
    sync_warp();  // a warp waits as one
  }
  template <class Array>
  void settle(Array& /*array*/) {}
  int warpgroup() const { return index_ / kWarpgroupThreads; }
  void sync_warpgroup(int which);
  void init_arrivals(Arrivals& arrivals, int count);
  void arrive(Arrivals& arrivals);
  static constexpr int kWarpArrivals = 1;
  void arrive_as_warp(Arrivals& arrivals) {
    sync_warp();
    if (lane() == 0) arrive(arrivals);
  }
  void expect_bytes(Arrivals& arrivals, unsigned bytes);
  void copy_bulk(Words4& to, const std::byte* from, unsigned bytes, Arrivals& arrivals);
  void wait_arrivals(Arrivals& arrivals, unsigned parity);
  template <int kRegisters>
  void take_registers() {}
  template <int kRegisters>
  void leave_registers() {}

  // What threads may bring to an exchange at most.
  static constexpr int kWords = 6;
  using Words = std::array<std::uint32_t, kWords>;
  using WarpWords = std::array<Words, kWarpThreads>;

 private:
  // Reads the byte, so that AddressSanitizer sees whether it is there.
  static void touch(const std::byte* at) {
    static_cast<void>(*static_cast<const volatile std::byte*>(at));
  }
  // What every thread of the warp has brought. Good until this one comes to the next exchange.
  const WarpWords& exchange(const Words& words);
  class Lanes {
   public:
    explicit Lanes(const WarpWords& words) : words_(words) {}
    std::uint32_t operator[](int lane) const { return words_[lane][0]; }

   private:
    const WarpWords& words_;
  };
  Lanes exchange(std::uint32_t x) { return Lanes(exchange(Words{x})); }
  void exchange_matrices(Words4 own, std::uint32_t (&m)[4]);
  void exchange_transposed(Words4 own, std::uint32_t (&m)[4]);
  // The warpgroup comes together.
  void meet_warpgroup();
  // As the block's seed has it.
  bool toss();
  // The part of A B that this lane has, added to d. kBits of an operand; value_a(word, i) and
  // value_b(word, i) are the i-th of a word.
  template <int kBits, class Sum, class ValueA, class ValueB>
  void multiply(Sum (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                const ValueA& value_a, const ValueB& value_b);

  // Those of groups up to this one.
  void complete_copies(int group);

  EmulatedBlock& block_;
  const int index_;
  struct Copy {
    Words4* to;
    const std::byte* from;
    bool wanted;
    int group;
  };
  std::vector<Copy> copies_;  // that were begun, in order
  int groups_ = 0;            // that were closed

  enum ProductKind : std::uint8_t { kBytes, kAddBytes, kHalves };
  struct Product {
    void* d;
    std::size_t size;  // of d
    ProductKind kind;
    const Words4 *a, *b;
    int step = 0, group = 0;
    std::array<Words, 4> of_row{};    // A in registers: what the lanes of this row have
    std::vector<double> sums{};       // of products alone, once they are known
    std::vector<std::uint32_t> to{};  // d before, of the first product that has it
  };
  void begin_product(Product product, int step, const std::uint32_t* a = nullptr);
  void sum(Product& product) const;
  // Those of groups up to this one.
  void complete_products(int group);

  std::vector<Product> products_;  // that were begun, in order
  int product_groups_ = 0;         // that were closed
};

// Runs `kernel` once for each of `threads` threads, a multiple of 32, and returns when all are
// done. Throws std::logic_error when some wait for others that have ended: a barrier that not all
// reach.
void run_block(int threads, std::uint64_t seed, const std::function<void(EmulatedThread&)>& kernel);

}  // namespace kvlane::gpu
