// Listings of a store from its catalogue alone.
// SPDX-License-Identifier: Apache-2.0
#include "cli/store_listing.h"

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "crypto/sha256.h"
#include "store/directories.h"

namespace kvlane {
namespace {

using Json = nlohmann::ordered_json;

std::string layer_title(const ExtentHead& head) {
  const int last = head.layer + head.layers() - 1;
  const std::string first = std::to_string(head.layer);
  return last == head.layer ? "layer " + first : "layers " + first + "-" + std::to_string(last);
}

Json extent_json(const CatalogueContents& contents, const CatalogueExtent& extent) {
  const ExtentHead& head = extent.head;
  int directory = 0;
  for (const CatalogueSegment& segment : contents.segments) {
    if (segment.segment == extent.segment) directory = segment.directory;
  }
  return {{"name", to_hex(head.key.name)},
          {"kind", extent_kind_name(head.key.kind)},
          {"layer", head.layer},
          {"layers", head.layers()},
          {"shard", head.key.shard},
          {"shards", head.key.shards},
          {"position", head.position},
          {"tokens", head.tokens},
          {"model", to_hex(head.model)},
          {"format", head.format},
          {"codec", head.codec},
          {"element_type", element_name(head.type)},
          {"encrypted", head.encrypted},
          {"bytes", head.extent_bytes()},
          {"directory", directory},
          {"segment", extent.segment},
          {"offset", std::uint64_t{extent.page} * kExtentPageBytes},
          {"used", extent.used}};
}

struct Sum {
  std::uint64_t extents = 0;
  std::uint64_t bytes = 0;
};

}  // namespace

Result<CatalogueContents> read_catalogue(const std::vector<std::filesystem::path>& directories) {
  for (const std::filesystem::path& directory : directories) {
    KVLANE_ASSIGN(const auto mark, read_mark(directory));
    if (!mark || mark->number != 0) continue;
    KVLANE_ASSIGN(Catalogue catalogue,
                  Catalogue::open(catalogue_path(directory), Catalogue::Access::kRead));
    return catalogue.load();
  }
  return not_found("there is no catalogue of a store in " + directories.front().string());
}

std::string extent_title(const ExtentHead& head) {
  std::string title = to_hex(head.key.name).substr(0, 16) + " " + extent_kind_name(head.key.kind) +
                      " " + layer_title(head);
  if (head.key.shards > 1) {
    title += ", shard " + std::to_string(head.key.shard) + " of " + std::to_string(head.key.shards);
  }
  return title;
}

void print_extents(const CatalogueContents& contents, bool json) {
  for (const CatalogueExtent& extent : contents.extents) {
    if (json) {
      std::cout << extent_json(contents, extent).dump() << '\n';
      continue;
    }
    const ExtentHead& head = extent.head;
    std::cout << extent_title(head) << ", tokens from " << head.position << ", " << head.format
              << ", codec " << head.codec << (head.encrypted ? ", encrypted, " : ", ")
              << head.extent_bytes() << " bytes\n";
  }
}

void print_sums(const CatalogueContents& contents, bool json) {
  using Alike = std::tuple<std::string, std::string, std::string, std::string>;
  std::map<Alike, Sum> sums;
  Sum all;
  for (const CatalogueExtent& extent : contents.extents) {
    const ExtentHead& head = extent.head;
    Sum& sum = sums[{to_hex(head.model), extent_kind_name(head.key.kind), head.format, head.codec}];
    for (Sum* const each : {&sum, &all}) {
      each->extents += 1;
      each->bytes += head.extent_bytes();
    }
  }
  Json rows = Json::array();
  for (const auto& [alike, sum] : sums) {
    const auto& [model, kind, format, codec] = alike;
    rows.push_back({{"model", model},
                    {"kind", kind},
                    {"format", format},
                    {"codec", codec},
                    {"extents", sum.extents},
                    {"bytes", sum.bytes}});
  }
  if (json) {
    const Json shown = {{"store", contents.identity},
                        {"directories", contents.directories},
                        {"segments", contents.segments.size()},
                        {"extents", all.extents},
                        {"bytes", all.bytes},
                        {"damaged_rows", contents.bad.size()},
                        {"contents", rows}};
    std::cout << shown.dump() << '\n';
    return;
  }
  std::cout << "store " << contents.identity << ": " << all.extents << " extents, " << all.bytes
            << " bytes in " << contents.segments.size() << " segments on " << contents.directories
            << " directories\n";
  for (const Json& row : rows) {
    std::cout << "  " << row["kind"].get<std::string>() << " of model "
              << row["model"].get<std::string>().substr(0, 16) << ", "
              << row["format"].get<std::string>() << ", codec " << row["codec"].get<std::string>()
              << ": " << row["extents"] << " extents, " << row["bytes"] << " bytes\n";
  }
}

}  // namespace kvlane
