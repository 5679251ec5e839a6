// What a store keeps where nobody has measured.
// SPDX-License-Identifier: Apache-2.0
#include "restore/state_forms.h"

#include <gtest/gtest.h>

#include "base/test_results.h"
#include "quant/kv_format.h"
#include "restore/tiny_model_fixture.h"

namespace kvlane {
namespace {

// Without groups of heads hidden states are half of K and V in 16 bits; codes of 2 bits are less.
TEST(StateForms, WithoutAProfileWhatHasFewerBytes) {
  const auto model = tiny_model_fixture::load();
  const KvShape shape = model->config().kv_shape();
  const StateForms hidden = smaller_forms(*model, nullptr);
  EXPECT_EQ(hidden, take(make_state_forms("hidden", shape.layers, nullptr, 0)));
  const auto format =
      take(make_kv_format("hack", {.shape = shape, .rope = &model->rope(), .isa = model->isa()}));
  EXPECT_EQ(smaller_forms(*model, format.get()), StateForms());
}

}  // namespace
}  // namespace kvlane
