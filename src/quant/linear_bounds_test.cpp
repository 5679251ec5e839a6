// No tier touches a byte outside of the slab, the rows and the page it was given: they lie right
// before or right behind pages that fault, and what is only read may not be written.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "quant/linear_fixture.h"

namespace kvlane::linear_fixture {
namespace {

enum class Side { kStart, kEnd };

// A buffer between two pages that fault. At the end of its pages it begins where its size says.
class Guarded {
 public:
  Guarded(std::size_t size, Side side)
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))),
        inner_((size + page_ - 1) / page_ * page_) {
    void* const all = ::mmap(nullptr, inner_ + 2 * page_, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(all, MAP_FAILED);
    pages_ = static_cast<std::byte*>(all);
    protect(PROT_READ | PROT_WRITE);
    data_ = pages_ + page_ + (side == Side::kEnd ? inner_ - size : 0);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { ::munmap(pages_, inner_ + 2 * page_); }

  std::byte* data() { return data_; }
  std::uint16_t* rows() { return reinterpret_cast<std::uint16_t*>(data_); }
  void read_only() { protect(PROT_READ); }

 private:
  void protect(int allowed) { ASSERT_EQ(::mprotect(pages_ + page_, inner_, allowed), 0); }

  const std::size_t page_;
  const std::size_t inner_;
  std::byte* pages_ = nullptr;
  std::byte* data_ = nullptr;
};

class LinearBounds : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) {
      GTEST_SKIP() << "this processor lacks " << isa_name(GetParam());
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Tiers, LinearBounds, ::testing::ValuesIn(kAllIsas),
                         [](const auto& of) { return std::string(isa_name(of.param)); });

// slab_bytes() is a multiple of 64, so a slab that ends with its pages is aligned too.
TEST_P(LinearBounds, NothingOutsideIsTouched) {
  for (const char* name : kFormats) {
    for (const int head_dim : kHeadDims) {
      const KvShape shape = shape_of(1, head_dim);
      const auto format = format_of(name, shape, GetParam());
      RowMaker maker(static_cast<unsigned>(head_dim));
      const Rows values = maker.page(Kind::kModel, head_dim);
      for (const Side side : {Side::kStart, Side::kEnd}) {
        Guarded rows(shape.slab_bytes(), side);
        Guarded slab(format->slab_bytes(), side);
        Guarded page(shape.page_bytes(), side);
        std::copy(values.begin(), values.end(), rows.rows());
        rows.read_only();
        ASSERT_TRUE(format->seal({0, 0}, rows.rows(), slab.data()).ok());
        slab.read_only();
        format->open_page({0, 0}, slab.data(), 0, page.rows());
        const Slab sealed(slab.data(), slab.data() + format->slab_bytes());
        ASSERT_EQ(open(*format, sealed), Rows(page.rows(), page.rows() + values.size())) << name;
      }
    }
  }
}

TEST_P(LinearBounds, NothingOutsideIsTouchedForAnyBytes) {
  std::mt19937 engine(1);
  for (const char* name : kFormats) {
    for (const int head_dim : {64, 80, 250}) {
      const KvShape shape = shape_of(1, head_dim);
      const auto format = format_of(name, shape, GetParam());
      Guarded slab(format->slab_bytes(), Side::kEnd);
      Guarded page(shape.page_bytes(), Side::kEnd);
      for (const int pattern : {0x00, 0xff, 0x7c, -1}) {
        for (std::size_t i = 0; i < format->slab_bytes(); ++i) {
          slab.data()[i] = std::byte(pattern < 0 ? engine() : unsigned(pattern));
        }
        format->open_page({0, 0}, slab.data(), 0, page.rows());
        EXPECT_LE(format->used_bytes({0, 0}, slab.data()), format->slab_bytes());
      }
    }
  }
}

}  // namespace
}  // namespace kvlane::linear_fixture
