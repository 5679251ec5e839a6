// Golden slabs (tests/golden/slab), made and read by an independent encoder and reader in Python.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/test_paths.h"
#include "quant/linear_fixture.h"

namespace kvlane::golden_fixture {

using linear_fixture::Rows;
using linear_fixture::Slab;

// A file below tests/golden/slab.
inline Slab read(const std::string& name) {
  const auto path = std::filesystem::path(kSourceDir) / "tests/golden/slab" / name;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Slab bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline Rows read_rows(const std::string& name) {
  const Slab bytes = read(name);
  Rows rows(bytes.size() / 2);
  std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

// Of a format's files.
inline std::string file_name(std::string name) {
  for (char& c : name) c = c == ':' || c == ',' ? '.' : c;
  return name;
}

}  // namespace kvlane::golden_fixture
