// Directories, their files and the key.
// SPDX-License-Identifier: Apache-2.0
#include "cli/opened_store.h"

#include <cstddef>
#include <iostream>
#include <utility>

#include "base/file.h"
#include "crypto/aes_gcm.h"
#include "store/direct_files.h"

namespace kvlane {
namespace {

constexpr std::size_t kKeyFileBytesMax = 4096;

// A key of AES-256: 64 lower-case hexadecimal digits and white space behind them.
Result<AesKey> read_store_key(const std::string& path) {
  KVLANE_ASSIGN(std::string text, read_text_file(path, kKeyFileBytesMax));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  AesKey key{};
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  bool good = text.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    key[i] = static_cast<std::byte>(16 * high + low);
  }
  if (!good) return invalid_argument(path + " does not hold 64 lower-case hexadecimal digits");
  return key;
}

}  // namespace

Result<std::unique_ptr<Store>> open_store(const StorePlace& place, StoreOptions options) {
  for (const std::string& path : place.directories) {
    options.directories.push_back({path, place.bytes_max});
  }
  if (!place.key_file.empty()) {
    KVLANE_ASSIGN(options.key, read_store_key(place.key_file));
  }
  const FileOptions file_options{.devices = static_cast<int>(options.directories.size())};
  KVLANE_ASSIGN(auto files, open_store_files(file_options));
  if (place.direct != nullptr) files = direct_files(std::move(files), place.direct, file_options);
  KVLANE_ASSIGN(auto store, Store::open(options, std::move(files)));
  for (const std::string& note : store->opening().notes) std::cerr << "kvlane: " << note << '\n';
  return store;
}

}  // namespace kvlane
