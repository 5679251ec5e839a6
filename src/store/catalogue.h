// Which extents there are and where they lie: a SQLite database, written in transactions that are
// on the disk when they return. Schema and rules: spec/store.md, section 8.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "format/extent.h"
#include "kvlane/status.h"

struct sqlite3;       // SQLite's: its header stays out of ours
struct sqlite3_stmt;  // likewise

namespace kvlane {

struct CatalogueSegment {
  std::uint32_t segment = 0;
  int directory = 0;
};

struct CatalogueExtent {
  std::int64_t id = 0;
  std::uint32_t segment = 0;
  std::uint32_t page = 0;  // in its segment
  std::uint64_t used = 0;  // larger: later
  ExtentHead head;

  std::uint32_t pages() const {
    return static_cast<std::uint32_t>(head.extent_bytes() / kExtentPageBytes);
  }
};

// Everything that is in a catalogue. `bad`: rows whose header fails its checks or disagrees with
// the other columns.
struct CatalogueContents {
  std::string identity;
  int directories = 0;
  std::vector<CatalogueSegment> segments;
  std::vector<CatalogueExtent> extents;
  std::vector<std::int64_t> bad;
};

// What one transaction changes. Rows that are gone already are no error.
struct CatalogueChanges {
  struct Place {
    std::int64_t id;
    std::uint32_t segment;
    std::uint32_t page;
  };
  struct Use {
    std::int64_t id;
    std::uint64_t used;
  };
  std::vector<CatalogueSegment> new_segments;
  std::vector<std::uint32_t> gone_segments;
  std::vector<std::int64_t> removed;
  std::vector<CatalogueExtent> added;
  std::vector<Place> moved;
  std::vector<Use> uses;

  bool empty() const {
    return new_segments.empty() && gone_segments.empty() && added.empty() && removed.empty() &&
           moved.empty() && uses.empty();
  }
};

// One thread at a time. Movable.
class Catalogue {
 public:
  // A new one with `first` in it; `path` must not be there. What was begun and not ended, by
  // whatever failed, opens as kCorrupt.
  static Result<Catalogue> create(const std::filesystem::path& path, std::string identity,
                                  int directories, const CatalogueChanges& first = {});
  // kNotFound, kCorrupt when it is no catalogue or damaged, kUnsupported when another version made
  // it.
  enum class Access { kRead, kWrite };
  static Result<Catalogue> open(const std::filesystem::path& path, Access access);

  // kCorrupt when SQLite cannot read it.
  Result<CatalogueContents> load();

  // Gives back what the file of the last transactions takes, as far as that can be done now.
  void shrink();

  // All of the changes or none; on the disk when it returns. kExhausted when the disk is full.
  Status commit(const CatalogueChanges& changes);
  Status set_directories(int directories);

  // SQLite's own check of the whole file.
  Status check();

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  using Statement = std::unique_ptr<sqlite3_stmt, Finalize>;

  static Result<Catalogue> connect(const std::filesystem::path& path, int flags);
  Status run(const char* sql);
  Result<Statement> prepare(const char* sql);
  Status failed(int code, const char* verb) const;
  Status step(sqlite3_stmt* statement);
  Status write_changes(const CatalogueChanges& changes);
  Status add_extents(const std::vector<CatalogueExtent>& added);
  Status load_extents(CatalogueContents& contents);

  std::filesystem::path path_;
  std::unique_ptr<sqlite3, Close> database_;
};

}  // namespace kvlane
