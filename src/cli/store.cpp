// `kvlane store`: what lies in a state store, whether it is whole, and how it comes and goes.
// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <algorithm>
#include <future>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/streams.h"
#include "cli/command.h"
#include "cli/flags.h"
#include "cli/opened_store.h"
#include "cli/store_listing.h"
#include "cli/store_warm.h"
#include "crypto/sha256.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

struct StoreFlags {
  std::vector<std::string> directories;
  std::string file;  // of export and import
  std::string key_file;
  std::uint64_t bytes_max = 0;  // of each directory
  std::uint64_t segment_bytes = std::uint64_t{1} << 30;
  std::uint64_t saving_bytes = std::uint64_t{256} << 20;
  bool verbose = false;
  bool json = false;
};

std::vector<std::filesystem::path> paths_of(const StoreFlags& flags) {
  return {flags.directories.begin(), flags.directories.end()};
}

Result<std::unique_ptr<Store>> open_from(const StoreFlags& flags, bool create) {
  return open_store({flags.directories, flags.bytes_max, flags.key_file},
                    {.create = create,
                     .saving_bytes_max = flags.saving_bytes,
                     .segment_bytes = flags.segment_bytes});
}

Status list_extents(const StoreFlags& flags) {
  KVLANE_ASSIGN(const CatalogueContents contents, read_catalogue(paths_of(flags)));
  print_extents(contents, flags.json);
  return {};
}

Status sum_up(const StoreFlags& flags) {
  KVLANE_ASSIGN(const CatalogueContents contents, read_catalogue(paths_of(flags)));
  print_sums(contents, flags.json);
  return {};
}

Status verify_extents(const StoreFlags& flags) {
  KVLANE_ASSIGN(const auto store, open_from(flags, false));
  std::uint64_t whole = 0;
  std::uint64_t bytes = 0;
  Json damaged = Json::array();
  for (const PinnedExtent& extent : store->all()) {
    const Status status = store->verify(extent);
    if (status.ok()) {
      whole += 1;
      bytes += extent.head().extent_bytes();
      continue;
    }
    damaged.push_back({{"name", to_hex(extent.head().key.name)},
                       {"layer", extent.head().layer},
                       {"why", status.message()}});
    if (!flags.json) std::cout << extent_title(extent.head()) << ": " << status.message() << '\n';
  }
  const StoreOpening& opening = store->opening();
  const Json shown = {{"whole", whole},
                      {"bytes", bytes},
                      {"damaged", damaged},
                      {"lost", opening.extents_lost},
                      {"rebuilt", opening.rebuilt}};
  if (flags.json) {
    std::cout << shown.dump() << '\n';
  } else {
    std::cout << whole << " extents are whole, " << bytes << " bytes\n";
  }
  if (damaged.empty() && opening.extents_lost == 0) return {};
  return corrupt(std::to_string(damaged.size() + opening.extents_lost) +
                 " extents were damaged; the store has forgotten those that nobody can read");
}

Status collect_garbage(const StoreFlags& flags) {
  KVLANE_ASSIGN(const auto store, open_from(flags, false));
  KVLANE_ASSIGN(const Store::Collected collected, store->collect_garbage());
  const std::uint64_t gone = collected.segments_gone + store->opening().segments_removed;
  if (flags.json) {
    const Json shown = {{"extents_moved", collected.moved},
                        {"segments_removed", gone},
                        {"bytes", store->figures().bytes}};
    std::cout << shown.dump() << '\n';
  } else {
    std::cout << "removed " << gone << " segments, moved " << collected.moved << " extents; "
              << store->figures().bytes << " bytes are kept\n";
  }
  return {};
}

Status export_extents(const StoreFlags& flags) {
  KVLANE_ASSIGN(const auto store, open_from(flags, false));
  KVLANE_ASSIGN(OutputFile out, OutputFile::create(flags.file, false));
  std::uint64_t at = 0;
  std::uint64_t count = 0;
  for (const PinnedExtent& extent : store->all()) {
    KVLANE_ASSIGN(const Bytes bytes, store->export_extent(extent));
    KVLANE_TRY(out.write_at(at, bytes));
    at += bytes.size();
    count += 1;
  }
  KVLANE_TRY(out.commit());
  if (flags.json) {
    const Json shown = {{"file", flags.file}, {"extents", count}, {"bytes", at}};
    std::cout << shown.dump() << '\n';
  } else {
    std::cout << "wrote " << count << " extents, " << at << " bytes, to " << flags.file << '\n';
  }
  return {};
}

// What became of the extents of an import; puts come back on a thread of the store.
struct Import {
  std::mutex mutex;
  std::uint64_t saved = 0;
  Status first_failure;

  void note(const ExtentHead& head, bool verbose, const Status& status) {
    const std::lock_guard lock(mutex);
    if (status.ok()) {
      saved += 1;
      // At once: who reads it may count on the extent from now on.
      if (verbose) std::cout << "saved " << to_hex(head.key.name) << " " << head.layer << std::endl;
    } else if (first_failure.ok()) {
      first_failure = status.with_context(extent_title(head));
    }
  }
};

// The extent at `at`, whose header says how long it is.
Result<Bytes> read_extent(ByteSource& source, std::uint64_t at) {
  Bytes bytes(kExtentHeaderBytes);
  KVLANE_ASSIGN(std::size_t there, source.read_at(at, bytes));
  if (there < bytes.size()) return corrupt("the file ends inside the header of an extent");
  KVLANE_ASSIGN(const ExtentHead head, parse_extent_head(bytes));
  bytes.resize(head.extent_bytes());
  const std::span<std::byte> rest = std::span(bytes).subspan(kExtentHeaderBytes);
  KVLANE_ASSIGN(there, source.read_at(at + kExtentHeaderBytes, rest));
  if (there < rest.size()) return corrupt("the file ends inside an extent");
  return bytes;
}

Status import_extents(const StoreFlags& flags) {
  KVLANE_ASSIGN(InputFile source, InputFile::open(flags.file));
  if (!source.bytes()) return invalid_argument(flags.file + " is not a regular file");
  const auto import = std::make_shared<Import>();
  KVLANE_ASSIGN(const auto store, open_from(flags, true));
  const auto count = static_cast<int>(flags.directories.size());
  for (std::uint64_t at = 0; at < *source.bytes();) {
    const auto bytes = read_extent(source, at);
    if (!bytes.ok()) return bytes.status().with_context(flags.file);
    auto draft = store->import_draft(*bytes);
    if (!draft.ok() && draft.status().code() == Code::kExhausted) {
      store->flush();  // saving is behind: here it is worth waiting for
      draft = store->import_draft(*bytes);
    }
    if (!draft.ok()) return draft.status().with_context(flags.file);
    const ExtentHead head = draft->head();
    // The name of the sequence's first block is not known; any spread will do.
    const int directory = extent_directory(head.key.name, head.layer, 0, count);
    store->put(std::move(*draft), directory, [import, head, &flags](const Status& status) {
      import->note(head, flags.verbose, status);
    });
    at += bytes->size();
  }
  store->flush();
  KVLANE_TRY(import->first_failure);
  if (flags.json) {
    std::cout << Json{{"extents", import->saved}}.dump() << '\n';
  } else {
    std::cout << "saved " << import->saved << " extents\n";
  }
  return {};
}

struct Subcommand {
  const char* name;
  const char* text;
  const char* example;
  Status (*run)(const StoreFlags& flags);
  bool has_file;
  bool has_key;
  const char* json = "as one JSON object";
};

Command add_to_store(Command& parent, const Subcommand& what,
                     const std::shared_ptr<StoreFlags>& flags) {
  Command command = parent.add_subcommand(what.name, what.text);
  command.footer(std::string("Example: kvlane store ") + what.example);
  if (what.has_file) {
    command.add_option("FILE", flags->file, "extents one behind the other").required();
  }
  command.add_option("DIR", flags->directories, "the store's directories, in any order").required();
  if (what.has_key) {
    command.add_option("--key-file", flags->key_file,
                       "file with the key of encrypted extents, 64 hexadecimal digits");
  }
  command.add_flag("--json", flags->json, what.json);
  command.action([flags, what] { return what.run(*flags); });
  return command;
}

}  // namespace

void add_store(Command& app) {
  Command command =
      app.add_subcommand("store", "Look into a state store, check it, copy it, fill it");
  command.require_subcommand();
  command.footer("Example: kvlane store verify /mnt/nvme0/kv /mnt/nvme1/kv");
  const Subcommand all[] = {
      {"ls", "What extents there are, the longest unused first", "ls /mnt/nvme0/kv", list_extents,
       false, false, "as JSON, an object in a line for each extent"},
      {"stat", "How much of what there is", "stat /mnt/nvme0/kv --json", sum_up, false, false},
      {"verify", "Read everything; what is damaged is named, and forgotten",
       "verify /mnt/nvme0/kv --key-file key", verify_extents, false, true},
      {"gc", "Remove what nobody needs and merge small segments", "gc /mnt/nvme0/kv",
       collect_garbage, false, false},
      {"export", "Write all extents into one file", "export kv.extents /mnt/nvme0/kv",
       export_extents, true, false}};
  for (const Subcommand& each : all) add_to_store(command, each, std::make_shared<StoreFlags>());

  add_store_warm(command);

  const auto flags = std::make_shared<StoreFlags>();
  Command import = add_to_store(
      command,
      {"import", "Save the extents of a file; the store is made if it is not there",
       "import kv.extents /mnt/nvme1/kv --directory-bytes 400G", import_extents, true, true},
      flags);
  import
      .add_option("--directory-bytes", flags->bytes_max,
                  "limit of each directory; the longest unused extents go (no limit)")
      .transform(as_size())
      .check(store_limit());
  import.add_option("--segment-bytes", flags->segment_bytes, "where a segment ends (1 GiB)")
      .transform(as_size());
  import
      .add_option("--saving-bytes", flags->saving_bytes,
                  "memory of what is not saved yet (256 MiB)")
      .transform(as_size());
  import.add_flag("--verbose,-v", flags->verbose, "name each extent as soon as it is durable")
      .excludes(import.get_option("--json"));
}

}  // namespace kvlane
