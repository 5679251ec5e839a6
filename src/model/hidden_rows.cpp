// Eight bits: symmetric around zero, since norms have no offset, with the largest value of a row at
// 127.
// SPDX-License-Identifier: Apache-2.0
#include "model/hidden_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "base/bf16.h"
#include "model/model.h"
#include "ops/rows.h"

namespace kvlane {
namespace {

static_assert(std::endian::native == std::endian::little);  // as scales and rows are stored

constexpr float kCodeMax = 127;

struct Float32 {
  float value;
};
float to_float(Float32 x) { return x.value; }

// False where a value is not finite.
template <class Element>
bool encode_row(const Element* row, int n, std::byte* stored) {
  float largest = 0;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::abs(to_float(row[i]));
    if (!std::isfinite(magnitude)) return false;
    largest = std::max(largest, magnitude);
  }
  const float scale = largest / kCodeMax;  // 0 where values are too small to have one
  std::memcpy(stored, &scale, sizeof(scale));
  stored += sizeof(scale);
  for (int i = 0; i < n; ++i) {
    const float code = scale == 0 ? 0 : std::nearbyint(to_float(row[i]) / scale);
    stored[i] =
        static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(code, -kCodeMax, kCodeMax)));
  }
  return true;
}

bool decode_row(const std::byte* stored, int n, ElementType type, std::byte* row) {
  float scale = 0;
  std::memcpy(&scale, stored, sizeof(scale));
  if (!std::isfinite(scale) || std::signbit(scale)) return false;
  stored += sizeof(scale);
  constexpr int kPart = 256;
  float values[kPart];
  for (int first = 0; first < n; first += kPart) {
    const int count = std::min(kPart, n - first);
    for (int i = 0; i < count; ++i) {
      values[i] = scale * static_cast<float>(static_cast<std::int8_t>(stored[first + i]));
    }
    store_row(values, count, type, row + first * element_bytes(type));
  }
  return true;
}

}  // namespace

ElementType hidden_type(const Model& model) {
  // Products of a device read rows of 16 bits alone.
  return model.device() != nullptr ? ElementType::kBf16 : model.row_type();
}

Result<HiddenFormat> HiddenFormat::parse(std::string_view text, const Model& model) {
  for (const Values values : {Values::kExact, Values::kInt8}) {
    const HiddenFormat format(values, hidden_type(model), model.config().hidden);
    if (format.name() == text) return format;
  }
  return invalid_argument("there is no format '" + std::string(text) +
                          "' of hidden states; there are hidden and hidden:int8");
}

Status HiddenFormat::encode(ByteView rows, int count, std::byte* stored) const {
  if (rows.size() != count * row_bytes()) {
    return internal_error(std::to_string(rows.size()) + " bytes are not " + std::to_string(count) +
                          " rows of hidden states");
  }
  if (values_ == Values::kExact) {
    std::memcpy(stored, rows.data(), rows.size());
    return {};
  }
  for (int row = 0; row < count; ++row, stored += stored_bytes()) {
    const std::byte* const values = rows.data() + row * row_bytes();
    const bool finite = type_ == ElementType::kBf16
                            ? encode_row(reinterpret_cast<const bf16*>(values), hidden_, stored)
                            : encode_row(reinterpret_cast<const Float32*>(values), hidden_, stored);
    if (!finite) {
      return invalid_argument("row " + std::to_string(row) +
                              " of the hidden states is not finite and has no 8 bits");
    }
  }
  return {};
}

Status HiddenFormat::decode(ByteView stored, int count, std::byte* rows) const {
  if (stored.size() != count * stored_bytes()) {
    return corrupt(std::to_string(stored.size()) + " bytes are not " + std::to_string(count) +
                   " stored rows of hidden states of " + std::to_string(stored_bytes()) +
                   " bytes each");
  }
  if (values_ == Values::kExact) {
    std::memcpy(rows, stored.data(), stored.size());
    return {};
  }
  for (int row = 0; row < count; ++row) {
    if (!decode_row(stored.data() + row * stored_bytes(), hidden_, type_,
                    rows + row * row_bytes())) {
      return corrupt("stored row " + std::to_string(row) + " of hidden states has no valid scale");
    }
  }
  return {};
}

}  // namespace kvlane
