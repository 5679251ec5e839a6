// A directory for the files of one test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

namespace kvlane {

// Created by the constructor, removed with everything in it by the destructor.
class TemporaryDirectory {
 public:
  enum class Place : std::uint8_t {
    kDisk,
    kMemory,  // if the system has room there: hundreds of syncs take long on a disk
  };

  explicit TemporaryDirectory(Place place = Place::kDisk) {
    std::string name = (parent(place) / "kvlane-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << "cannot create " << name;
    path_ = name;
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }

 private:
  static std::filesystem::path parent(Place place) {
    constexpr std::uintmax_t kRoom = std::uintmax_t{1} << 30;
    const std::filesystem::path memory = "/dev/shm";
    std::error_code missing;
    const std::filesystem::space_info space = std::filesystem::space(memory, missing);
    const bool there = !missing && space.available >= kRoom;
    return place == Place::kMemory && there ? memory : std::filesystem::temp_directory_path();
  }

  std::filesystem::path path_;
};

}  // namespace kvlane
