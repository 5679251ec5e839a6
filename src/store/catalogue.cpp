// The catalogue over SQLite: WAL, so that others may look at it meanwhile, and synchronous FULL, so
// that a transaction that returned is there after a power cut.
// SPDX-License-Identifier: Apache-2.0
#include "store/catalogue.h"

#include <sqlite3.h>

#include <cstring>
#include <initializer_list>
#include <system_error>

namespace kvlane {
namespace {

constexpr int kApplicationId = 0x4B564C53;  // "KVLS"
constexpr int kVersion = 1;
// Others only look at the catalogue, but SQLite may make them hold it for a moment.
constexpr int kBusyMilliseconds = 5000;

constexpr const char* kSchema = R"(
  CREATE TABLE store (identity BLOB NOT NULL, directories INTEGER NOT NULL);
  CREATE TABLE segments (segment INTEGER PRIMARY KEY, directory INTEGER NOT NULL);
  CREATE TABLE extents (extent INTEGER PRIMARY KEY, segment INTEGER NOT NULL, page INTEGER NOT NULL,
                        pages INTEGER NOT NULL, name BLOB NOT NULL, kind INTEGER NOT NULL,
                        shards INTEGER NOT NULL, shard INTEGER NOT NULL, layer INTEGER NOT NULL,
                        layers INTEGER NOT NULL, used INTEGER NOT NULL, head BLOB NOT NULL,
                        UNIQUE (name, kind, shards, shard, layer));
)";

Status bind_all(sqlite3_stmt* statement, std::initializer_list<std::int64_t> values) {
  ::sqlite3_reset(statement);
  int at = 0;
  for (const std::int64_t value : values) {
    if (::sqlite3_bind_int64(statement, ++at, value) != SQLITE_OK) {
      return internal_error("the catalogue's statements do not fit their values");
    }
  }
  return {};
}

ByteView blob_of(sqlite3_stmt* statement, int column) {
  const void* data = ::sqlite3_column_blob(statement, column);
  const int bytes = ::sqlite3_column_bytes(statement, column);
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)};
}

// What the other columns must be if `head` is right.
bool agrees(sqlite3_stmt* row, const CatalogueExtent& extent) {
  const ExtentHead& head = extent.head;
  const ByteView name = blob_of(row, 4);
  const auto number = [row](int column) { return ::sqlite3_column_int64(row, column); };
  constexpr std::int64_t kPagesMax = std::int64_t{1} << 32;
  return number(1) >= 0 && number(1) < kPagesMax && number(2) >= 0 &&
         number(2) + number(3) <= kPagesMax && number(3) == extent.pages() &&
         name.size() == head.key.name.size() &&
         std::memcmp(name.data(), head.key.name.data(), name.size()) == 0 &&
         number(5) == std::int64_t(head.key.kind) && number(6) == head.key.shards &&
         number(7) == head.key.shard && number(8) == head.layer && number(9) == head.layers();
}

Result<CatalogueExtent> extent_of(sqlite3_stmt* row) {
  CatalogueExtent extent{.id = ::sqlite3_column_int64(row, 0),
                         .segment = static_cast<std::uint32_t>(::sqlite3_column_int64(row, 1)),
                         .page = static_cast<std::uint32_t>(::sqlite3_column_int64(row, 2)),
                         .used = static_cast<std::uint64_t>(::sqlite3_column_int64(row, 10))};
  KVLANE_ASSIGN(const Bytes page, lengthen_extent_head(blob_of(row, 11)));
  KVLANE_ASSIGN(extent.head, parse_extent_head(page));
  if (!agrees(row, extent)) return corrupt("a row of the catalogue disagrees with its header");
  return extent;
}

}  // namespace

void Catalogue::Close::operator()(sqlite3* database) const { ::sqlite3_close_v2(database); }
void Catalogue::Finalize::operator()(sqlite3_stmt* statement) const {
  ::sqlite3_finalize(statement);
}

Status Catalogue::failed(int code, const char* verb) const {
  const std::string message = std::string("cannot ") + verb + " the catalogue " + path_.string() +
                              ": " + ::sqlite3_errmsg(database_.get());
  switch (code & 0xFF) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return corrupt(message);
    case SQLITE_FULL: return exhausted(message);
    // Also of the files beside it, on a disk that takes no more.
    case SQLITE_CANTOPEN: {
      std::error_code unknown;
      const bool missing = !std::filesystem::exists(path_, unknown) && !unknown;
      return missing ? not_found(message) : unavailable(message);
    }
    case SQLITE_NOMEM: return exhausted(message);
    default: return unavailable(message);
  }
}

Status Catalogue::run(const char* sql) {
  const int code = ::sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? Status() : failed(code, "use");
}

Result<Catalogue::Statement> Catalogue::prepare(const char* sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = ::sqlite3_prepare_v2(database_.get(), sql, -1, &statement, nullptr);
  if (code != SQLITE_OK) return failed(code, "read");
  return Statement(statement);
}

Status Catalogue::step(sqlite3_stmt* statement) {
  const int code = ::sqlite3_step(statement);
  return code == SQLITE_DONE ? Status() : failed(code, "write");
}

Result<Catalogue> Catalogue::connect(const std::filesystem::path& path, int flags) {
  Catalogue catalogue;
  catalogue.path_ = path;
  sqlite3* database = nullptr;
  const int code = ::sqlite3_open_v2(path.c_str(), &database, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  catalogue.database_.reset(database);  // also when it failed: it has the message
  if (code != SQLITE_OK) return catalogue.failed(code, "open");
  ::sqlite3_busy_timeout(database, kBusyMilliseconds);
  if ((flags & SQLITE_OPEN_READONLY) == 0) {
    KVLANE_TRY(catalogue.run("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL"));
  }
  return catalogue;
}

Result<Catalogue> Catalogue::create(const std::filesystem::path& path, std::string identity,
                                    int directories, const CatalogueChanges& first) {
  KVLANE_ASSIGN(Catalogue catalogue, connect(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE));
  // One transaction: a catalogue has all of its tables and all that was found for it, or counts as
  // damaged. With empty tables it would say that no segment is worth keeping.
  KVLANE_TRY(catalogue.run("BEGIN IMMEDIATE"));
  KVLANE_TRY(catalogue.run(kSchema));
  KVLANE_ASSIGN(const Statement insert, catalogue.prepare("INSERT INTO store VALUES (?2, ?1)"));
  KVLANE_TRY(bind_all(insert.get(), {directories}));
  ::sqlite3_bind_blob(insert.get(), 2, identity.data(), static_cast<int>(identity.size()),
                      SQLITE_TRANSIENT);
  KVLANE_TRY(catalogue.step(insert.get()));
  KVLANE_TRY(catalogue.write_changes(first));
  const std::string version = "PRAGMA application_id = " + std::to_string(kApplicationId) +
                              "; PRAGMA user_version = " + std::to_string(kVersion) + "; COMMIT";
  KVLANE_TRY(catalogue.run(version.c_str()));
  return catalogue;
}

Result<Catalogue> Catalogue::open(const std::filesystem::path& path, Access access) {
  KVLANE_ASSIGN(
      Catalogue catalogue,
      connect(path, access == Access::kRead ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE));
  const auto number = [&](const char* sql) -> Result<int> {
    KVLANE_ASSIGN(const Statement statement, catalogue.prepare(sql));
    const int code = ::sqlite3_step(statement.get());
    if (code != SQLITE_ROW) return catalogue.failed(code, "read");
    return ::sqlite3_column_int(statement.get(), 0);
  };
  KVLANE_ASSIGN(const int application, number("PRAGMA application_id"));
  if (application != kApplicationId) return corrupt(path.string() + " is no catalogue of a store");
  KVLANE_ASSIGN(const int version, number("PRAGMA user_version"));
  if (version != kVersion) {
    return unsupported("the catalogue " + path.string() + " has version " +
                       std::to_string(version) + ", this program knows version " +
                       std::to_string(kVersion));
  }
  return catalogue;
}

Status Catalogue::load_extents(CatalogueContents& contents) {
  KVLANE_ASSIGN(const Statement rows,
                prepare("SELECT extent, segment, page, pages, name, kind, shards, shard, layer, "
                        "layers, used, head FROM extents ORDER BY used, extent"));
  int code = SQLITE_OK;
  while ((code = ::sqlite3_step(rows.get())) == SQLITE_ROW) {
    Result<CatalogueExtent> extent = extent_of(rows.get());
    if (extent.ok()) {
      contents.extents.push_back(std::move(*extent));
    } else {
      contents.bad.push_back(::sqlite3_column_int64(rows.get(), 0));
    }
  }
  return code == SQLITE_DONE ? Status() : failed(code, "read");
}

Result<CatalogueContents> Catalogue::load() {
  CatalogueContents contents;
  KVLANE_ASSIGN(const Statement store, prepare("SELECT identity, directories FROM store"));
  int code = ::sqlite3_step(store.get());
  if (code == SQLITE_DONE) return corrupt("the catalogue " + path_.string() + " is empty");
  if (code != SQLITE_ROW) return failed(code, "read");
  contents.identity = as_text(blob_of(store.get(), 0));
  contents.directories = ::sqlite3_column_int(store.get(), 1);
  KVLANE_ASSIGN(const Statement segments, prepare("SELECT segment, directory FROM segments"));
  while ((code = ::sqlite3_step(segments.get())) == SQLITE_ROW) {
    contents.segments.push_back(
        {static_cast<std::uint32_t>(::sqlite3_column_int64(segments.get(), 0)),
         ::sqlite3_column_int(segments.get(), 1)});
  }
  if (code != SQLITE_DONE) return failed(code, "read");
  KVLANE_TRY(load_extents(contents));
  return contents;
}

Status Catalogue::commit(const CatalogueChanges& changes) {
  KVLANE_TRY(run("BEGIN IMMEDIATE"));
  Status status = write_changes(changes);
  if (status.ok()) status = run("COMMIT");
  // SQLite has rolled back some failures by itself.
  if (!status.ok() && ::sqlite3_get_autocommit(database_.get()) == 0) (void)run("ROLLBACK");
  return status;
}

Status Catalogue::add_extents(const std::vector<CatalogueExtent>& added) {
  KVLANE_ASSIGN(const Statement insert,
                prepare("INSERT INTO extents (extent, segment, page, pages, kind, shards, shard, "
                        "layer, layers, used, name, head) "
                        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"));
  for (const CatalogueExtent& extent : added) {
    const ExtentHead& head = extent.head;
    KVLANE_TRY(bind_all(insert.get(),
                        {extent.id, extent.segment, extent.page, extent.pages(),
                         std::int64_t(head.key.kind), head.key.shards, head.key.shard, head.layer,
                         head.layers(), static_cast<std::int64_t>(extent.used)}));
    KVLANE_ASSIGN(const Bytes page, build_extent_head(head));
    const Bytes shortened = shorten_extent_head(page);
    ::sqlite3_bind_blob(insert.get(), 11, head.key.name.data(),
                        static_cast<int>(head.key.name.size()), SQLITE_STATIC);
    ::sqlite3_bind_blob(insert.get(), 12, shortened.data(), static_cast<int>(shortened.size()),
                        SQLITE_STATIC);
    KVLANE_TRY(step(insert.get()));
  }
  return {};
}

Status Catalogue::write_changes(const CatalogueChanges& changes) {
  // Rows go before others come: a new extent may have the key of one that was removed.
  KVLANE_ASSIGN(const Statement remove, prepare("DELETE FROM extents WHERE extent = ?1"));
  for (const std::int64_t id : changes.removed) {
    KVLANE_TRY(bind_all(remove.get(), {id}));
    KVLANE_TRY(step(remove.get()));
  }
  KVLANE_ASSIGN(const Statement drop, prepare("DELETE FROM segments WHERE segment = ?1"));
  for (const std::uint32_t segment : changes.gone_segments) {
    KVLANE_TRY(bind_all(drop.get(), {segment}));
    KVLANE_TRY(step(drop.get()));
  }
  KVLANE_ASSIGN(const Statement begin, prepare("INSERT INTO segments VALUES (?1, ?2)"));
  for (const CatalogueSegment& segment : changes.new_segments) {
    KVLANE_TRY(bind_all(begin.get(), {segment.segment, segment.directory}));
    KVLANE_TRY(step(begin.get()));
  }
  KVLANE_ASSIGN(const Statement move,
                prepare("UPDATE extents SET segment = ?2, page = ?3 WHERE extent = ?1"));
  for (const CatalogueChanges::Place& place : changes.moved) {
    KVLANE_TRY(bind_all(move.get(), {place.id, place.segment, place.page}));
    KVLANE_TRY(step(move.get()));
  }
  KVLANE_ASSIGN(const Statement use, prepare("UPDATE extents SET used = ?2 WHERE extent = ?1"));
  for (const CatalogueChanges::Use& touched : changes.uses) {
    KVLANE_TRY(bind_all(use.get(), {touched.id, static_cast<std::int64_t>(touched.used)}));
    KVLANE_TRY(step(use.get()));
  }
  return add_extents(changes.added);
}

void Catalogue::shrink() {
  // What cannot be done is no worse than before.
  (void)::sqlite3_wal_checkpoint_v2(database_.get(), nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr,
                                    nullptr);
}

Status Catalogue::set_directories(int directories) {
  KVLANE_ASSIGN(const Statement update, prepare("UPDATE store SET directories = ?1"));
  KVLANE_TRY(bind_all(update.get(), {directories}));
  return step(update.get());
}

Status Catalogue::check() {
  KVLANE_ASSIGN(const Statement check, prepare("PRAGMA integrity_check(1)"));
  const int code = ::sqlite3_step(check.get());
  if (code != SQLITE_ROW) return failed(code, "check");
  const std::string verdict(as_text(blob_of(check.get(), 0)));
  return verdict == "ok" ? Status() : corrupt(path_.string() + ": " + verdict);
}

}  // namespace kvlane
