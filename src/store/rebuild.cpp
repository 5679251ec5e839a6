// Looks for headers page by page, and behind each extent that is found for the next.
// SPDX-License-Identifier: Apache-2.0
#include "store/rebuild.h"

#include <algorithm>
#include <unordered_map>

#include "cpu/memory.h"
#include "store/directories.h"

namespace kvlane {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 20;

// Pages of a file, read a window at a time.
class Pages {
 public:
  static Result<Pages> of(StoreFiles& files, StoreFile& file) {
    Pages pages(files, file);
    KVLANE_ASSIGN(const std::uint64_t bytes, files.bytes(file));
    pages.bytes_ = bytes / kExtentPageBytes * kExtentPageBytes;
    KVLANE_ASSIGN(pages.window_, PageBuffer::allocate(kWindowBytes));
    return pages;
  }

  std::uint64_t bytes() const { return bytes_; }
  // Of the first read that failed.
  const Status& trouble() const { return trouble_; }

  // Empty when the disk does not give it.
  ByteView at(std::uint64_t offset) {
    const bool there = offset >= begin_ && offset + kExtentPageBytes <= begin_ + filled_;
    // Beside a sector that is lost there are pages that are not: its window is read one by one.
    if (!there && offset >= alone_until_ && !read(offset, kWindowBytes)) {
      alone_until_ = offset + kWindowBytes;
    }
    if (!there && offset < alone_until_ && !read(offset, kExtentPageBytes)) return {};
    return {window_.data() + (offset - begin_), kExtentPageBytes};
  }

 private:
  Pages(StoreFiles& files, StoreFile& file) : files_(&files), file_(&file) {}

  bool read(std::uint64_t offset, std::uint64_t bytes_max) {
    const std::uint64_t wanted = std::min(bytes_max, bytes_ - offset);
    const std::span<std::byte> memory(window_.data(), wanted);
    begin_ = offset;
    const Status status = transfer_and_wait(*files_, *file_, false, offset, memory);
    filled_ = status.ok() ? wanted : 0;
    if (trouble_.ok()) trouble_ = status;
    return status.ok();
  }

  StoreFiles* files_;
  StoreFile* file_;
  PageBuffer window_;
  std::uint64_t bytes_ = 0;
  std::uint64_t begin_ = 0;
  std::uint64_t filled_ = 0;
  std::uint64_t alone_until_ = 0;
  Status trouble_;
};

// Sectors may be lost, and extents with them. Where nothing can be read the disk is in trouble, and
// what it has is not given up.
Status scan(StoreFiles& files, StoreFile& file, std::uint32_t segment,
            std::vector<CatalogueExtent>& found) {
  KVLANE_ASSIGN(Pages pages, Pages::of(files, file));
  const std::size_t before = found.size();
  for (std::uint64_t offset = 0; offset < pages.bytes();) {
    Result<ExtentHead> head = parse_extent_head(pages.at(offset));
    if (!head.ok() || head->extent_bytes() > pages.bytes() - offset) {
      offset += kExtentPageBytes;
      continue;
    }
    const std::uint64_t bytes = head->extent_bytes();
    found.push_back({.segment = segment,
                     .page = static_cast<std::uint32_t>(offset / kExtentPageBytes),
                     .head = std::move(*head)});
    offset += bytes;
  }
  return found.size() > before ? Status() : pages.trouble();
}

// Newer ones hide older ones.
void keep_newest(std::vector<CatalogueExtent>& extents) {
  std::sort(extents.begin(), extents.end(), [](const auto& a, const auto& b) {
    return std::pair(a.segment, a.page) > std::pair(b.segment, b.page);
  });
  std::unordered_map<BlockKey, std::vector<bool>, BlockKeyHash> layers;
  std::erase_if(extents, [&](const CatalogueExtent& extent) {
    std::vector<bool>& taken = layers[extent.head.key];
    const auto first = static_cast<std::size_t>(extent.head.layer);
    const std::size_t end = first + extent.head.parts.size();
    if (taken.size() < end) taken.resize(end);
    const auto begin = taken.begin() + static_cast<std::ptrdiff_t>(first);
    const auto last = taken.begin() + static_cast<std::ptrdiff_t>(end);
    if (std::find(begin, last, true) != last) return true;
    std::fill(begin, last, true);
    return false;
  });
  std::reverse(extents.begin(), extents.end());
  std::int64_t id = 0;
  for (CatalogueExtent& extent : extents) {
    extent.id = ++id;
    extent.used = static_cast<std::uint64_t>(id);
  }
}

}  // namespace

Result<CatalogueContents> contents_from_segments(
    StoreFiles& files, const std::vector<std::filesystem::path>& directories) {
  CatalogueContents contents;
  contents.directories = static_cast<int>(directories.size());
  for (int number = 0; number < contents.directories; ++number) {
    const auto folder = segments_path(directories[static_cast<std::size_t>(number)]);
    KVLANE_ASSIGN(const std::vector<FileEntry> entries, files.list(folder));
    for (const FileEntry& entry : entries) {
      const auto segment = segment_number(entry.name);
      if (!segment) continue;
      // Whatever keeps a segment from being read is no reason to forget it.
      KVLANE_ASSIGN(const auto file, files.open(folder / entry.name, FileAccess::kOpen, number));
      KVLANE_TRY(scan(files, *file, *segment, contents.extents));
      contents.segments.push_back({*segment, number});
    }
  }
  keep_newest(contents.extents);
  return contents;
}

}  // namespace kvlane
