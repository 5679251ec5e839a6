// For tests: a SQLite whose disk takes no writes when told so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sqlite3.h>

#include <functional>
#include <map>
#include <mutex>
#include <string_view>

namespace kvlane {

// In force for what is opened while it lives; one at a time. What it asks is called by any thread.
class CatalogueFaults {
 public:
  // SQLite's code for a write or for opening a file of that name; SQLITE_OK: as usual.
  std::function<int()> on_write;
  std::function<int(std::string_view path)> on_open;

  CatalogueFaults() : usual_(::sqlite3_vfs_find(nullptr)), faulty_(*usual_) {
    current() = this;
    faulty_.zName = "kvlane-faulty";
    faulty_.xOpen = &open;
    ::sqlite3_vfs_register(&faulty_, 1);
  }
  CatalogueFaults(const CatalogueFaults&) = delete;
  CatalogueFaults& operator=(const CatalogueFaults&) = delete;
  ~CatalogueFaults() {
    ::sqlite3_vfs_register(usual_, 1);
    ::sqlite3_vfs_unregister(&faulty_);
    current() = nullptr;
  }

 private:
  static CatalogueFaults*& current() {
    static CatalogueFaults* faults = nullptr;
    return faults;
  }

  // As the usual system does, but with methods of ours.
  static int open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* given) {
    CatalogueFaults& faults = *current();
    const int refused = faults.on_open && name != nullptr ? faults.on_open(name) : SQLITE_OK;
    file->pMethods = nullptr;
    if (refused != SQLITE_OK) return refused;
    const int code = faults.usual_->xOpen(faults.usual_, name, file, flags, given);
    if (code != SQLITE_OK || file->pMethods == nullptr) return code;
    const std::lock_guard guard(faults.mutex_);
    faults.write_ = file->pMethods->xWrite;
    sqlite3_io_methods& methods = faults.methods_[file->pMethods];
    methods = *file->pMethods;
    methods.xWrite = &write;
    file->pMethods = &methods;
    return code;
  }

  static int write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
    CatalogueFaults& faults = *current();
    const int refused = faults.on_write ? faults.on_write() : SQLITE_OK;
    return refused != SQLITE_OK ? refused : faults.write_(file, data, bytes, offset);
  }

  sqlite3_vfs* const usual_;
  sqlite3_vfs faulty_;
  std::mutex mutex_;
  std::map<const sqlite3_io_methods*, sqlite3_io_methods> methods_;
  int (*write_)(sqlite3_file*, const void*, int, sqlite3_int64) = nullptr;
};

}  // namespace kvlane
