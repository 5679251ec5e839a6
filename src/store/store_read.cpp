// Reading: batches go to the files at once, and every part is checked before anybody sees it.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "format/checksum.h"
#include "store/store_impl.h"

namespace kvlane {
namespace {

Status check_request(const ExtentRead& read) {
  const ExtentHead& head = read.extent.head();
  if (read.first < 0 || read.count < 1 || read.first > head.layers() - read.count) {
    return invalid_argument("the extent has " + std::to_string(head.layers()) +
                            " parts, not those that are asked for");
  }
  if (reinterpret_cast<std::uintptr_t>(read.memory.data()) % kFileAlignment != 0 ||
      read.memory.size() < extent_read_bytes(head, read.first, read.count)) {
    return invalid_argument("the memory of a read is too small or not aligned");
  }
  if (read.unchecked_on_device && head.encrypted) {
    return invalid_argument("an encrypted extent is not read to memory of a device");
  }
  return {};
}

// `whole`: an extent as it lies on the disk.
Status check_sums(const ExtentHead& head, ByteView whole) {
  for (const ExtentPart& part : head.parts) {
    const ByteView bytes = whole.subspan(std::size_t{part.page} * kExtentPageBytes, part.bytes());
    if (xxh3_64(bytes) != part.checksum) {
      return corrupt("a part of an extent has a wrong checksum");
    }
  }
  return {};
}

}  // namespace

std::size_t extent_read_bytes(const ExtentHead& head, int first, int count) {
  const ExtentPart& begin = head.parts[static_cast<std::size_t>(first)];
  const ExtentPart& last = head.parts[static_cast<std::size_t>(first + count - 1)];
  return std::size_t{last.page - begin.page} * kExtentPageBytes + last.padded_bytes();
}

// Extents of another key stay for whoever has it, until the same state is saved with ours.
bool Store::Impl::opens(const ExtentHead& head) const {
  return !head.encrypted || (options.key && head.key_id == key_id);
}

AesNonce Store::Impl::part_nonce(const ExtentHead& head, int part) const {
  AesNonce nonce = head.nonce;
  std::uint32_t last = 0;
  std::memcpy(&last, nonce.data() + 8, sizeof last);
  last += static_cast<std::uint32_t>(part);
  std::memcpy(nonce.data() + 8, &last, sizeof last);
  return nonce;
}

// `bytes`: the part as it lies on the disk; decrypted, if it is right.
Status Store::Impl::check_part(const ExtentHead& head, int number,
                               std::span<std::byte> bytes) const {
  const ExtentPart& part = head.parts[static_cast<std::size_t>(number)];
  if (xxh3_64(bytes) != part.checksum) {
    return corrupt("layer " + std::to_string(head.layer + number) +
                   " of an extent has a wrong checksum");
  }
  if (!head.encrypted) return {};
  if (!opens(head)) return unsupported("an extent is encrypted with another key");
  KVLANE_ASSIGN(const Bytes page, build_extent_head(head));
  ByteWriter also;
  also.write_bytes(ByteView(page).first(kExtentFixedBytes));
  also.write(static_cast<std::uint32_t>(number));
  return aes_gcm_decrypt(*options.key, part_nonce(head, number), also.bytes(), part.tag, bytes);
}

Status Store::Impl::check_parts(const ExtentRead& read) const {
  const ExtentHead& head = read.extent.head();
  const std::uint32_t begin = head.parts[static_cast<std::size_t>(read.first)].page;
  for (int p = read.first; p < read.first + read.count; ++p) {
    const ExtentPart& part = head.parts[static_cast<std::size_t>(p)];
    const std::size_t at = std::size_t{part.page - begin} * kExtentPageBytes;
    KVLANE_TRY(check_part(head, p, read.memory.subspan(at, part.bytes())));
  }
  return {};
}

// Nobody finds it any more; the thread that saves does the rest.
void Store::Impl::condemn(const std::shared_ptr<StoredExtent>& extent) {
  {
    const std::lock_guard guard(mutex);
    if (!index->remove(extent)) return;
    memory->remove(*extent);
    condemned.push_back(extent);
  }
  changed.notify_one();
}

void Store::Impl::condemn_damaged(const std::shared_ptr<StoredExtent>& extent) {
  {
    const std::lock_guard guard(mutex);
    figures.damaged += 1;
  }
  condemn(extent);
}

void Store::Impl::remember(const std::shared_ptr<StoredExtent>& extent, PageBuffer bytes) {
  const std::lock_guard guard(mutex);
  if (extent->listed && memory->wants(*extent)) {
    memory->add(extent, spare->shared(std::move(bytes)));
  }
}

// What came from the disk is checked, and kept in memory if there is room for it.
void Store::Impl::finish(const ExtentRead& read, Status& status) {
  const auto& extent = read.extent.extent_;
  PageBuffer copy;
  if (status.ok() && read.count == extent->head.layers()) {
    bool wanted = false;
    {
      const std::lock_guard guard(mutex);
      wanted = extent->listed && memory->wants(*extent);
    }
    const auto page = build_extent_head(extent->head);
    auto buffer = wanted ? spare->take(extent->head.extent_bytes()) : PageBuffer();
    if (wanted && buffer.ok() && page.ok()) {
      copy = std::move(*buffer);
      std::memcpy(copy.data(), page->data(), page->size());
      std::memcpy(copy.data() + kExtentHeaderBytes, read.memory.data(),
                  extent_read_bytes(extent->head, read.first, read.count));
    }
  }
  if (status.ok()) status = check_parts(read);
  if (status.ok() && copy.data() != nullptr) remember(extent, std::move(copy));
  if (status.code() == Code::kCorrupt) condemn_damaged(extent);
}

// From an extent in memory, `in_memory`.
void Store::Impl::serve(const std::shared_ptr<ReadBatch>& batch, std::size_t which,
                        ByteView in_memory) {
  const ExtentRead& read = batch->reads[which];
  const ExtentHead& head = read.extent.head();
  const std::size_t from =
      std::size_t{head.parts[static_cast<std::size_t>(read.first)].page} * kExtentPageBytes;
  const std::size_t bytes = extent_read_bytes(head, read.first, read.count);
  std::memcpy(read.memory.data(), in_memory.data() + from, bytes);
  Status status;
  finish(read, status);
  batch->done(which, status);
}

// Under the lock.
void Store::Impl::count_read(const std::shared_ptr<StoredExtent>& extent, std::size_t bytes) {
  index->touch(*extent);
  memory->touch(*extent);
  memory->note_read(*extent);
  if (!std::exchange(extent->touched, true)) touched.push_back(extent);
  figures.reads += 1;
  figures.read_bytes += bytes;
}

void Store::Impl::read_to_device(const std::shared_ptr<ReadBatch>& batch, std::size_t which) {
  const ExtentRead& read = batch->reads[which];
  const auto& extent = read.extent.extent_;
  const std::uint32_t first = extent->head.parts[static_cast<std::size_t>(read.first)].page;
  const std::size_t bytes = extent_read_bytes(extent->head, read.first, read.count);
  std::shared_ptr<StoredSegment> segment;
  std::uint64_t page = 0;
  {
    const std::lock_guard guard(mutex);
    segment = extent->segment;
    page = std::uint64_t{extent->page} + first;
    count_read(extent, bytes);
    figures.device_reads += 1;
  }
  StoreFile* const file = segment->file.get();
  files->submit({.file = file,
                 .offset = page * kExtentPageBytes,
                 .memory = read.memory.first(bytes),
                 .done =
                     [this, batch, segment, which](const Status& status) {
                       if (status.code() == Code::kCorrupt) {
                         condemn_damaged(batch->reads[which].extent.extent_);
                       }
                       batch->done(which, status);
                     },
                 .to_device = true});
}

gpu::DirectStorage* Store::direct_storage() const { return impl_->files->direct_storage(); }

bool Store::reads_to_device(const PinnedExtent& pinned) const {
  const StoredExtent& extent = *pinned.extent_;
  if (extent.head.encrypted) return false;
  const std::lock_guard guard(impl_->mutex);
  return extent.bytes == nullptr && extent.ahead != StoredExtent::Ahead::kComing &&
         impl_->files->reads_to_device(*extent.segment->file);
}

std::size_t Store::read(std::vector<ExtentRead> reads, ReadDone done) {
  const auto batch =
      std::make_shared<Impl::ReadBatch>(Impl::ReadBatch{std::move(reads), std::move(done)});
  Impl* const impl = impl_.get();
  std::size_t from_memory = 0;
  for (std::size_t i = 0; i < batch->reads.size(); ++i) {
    const ExtentRead& read = batch->reads[i];
    if (const Status status = check_request(read); !status.ok()) {
      batch->done(i, status);
      continue;
    }
    if (read.unchecked_on_device) {
      impl->read_to_device(batch, i);
      continue;
    }
    const auto& extent = read.extent.extent_;
    const std::uint32_t first = extent->head.parts[static_cast<std::size_t>(read.first)].page;
    const std::size_t bytes = extent_read_bytes(extent->head, read.first, read.count);
    std::shared_ptr<PageBuffer> in_memory;
    std::shared_ptr<StoredSegment> segment;
    std::uint64_t page = 0;
    {
      const std::lock_guard guard(impl->mutex);
      in_memory = extent->bytes;
      segment = extent->segment;
      page = std::uint64_t{extent->page} + first;
      impl->count_read(extent, bytes);
      const bool coming = extent->ahead == StoredExtent::Ahead::kComing;
      const bool asks_no_disk = in_memory != nullptr || coming;
      from_memory += asks_no_disk;
      impl->figures.memory_reads += asks_no_disk;
      if (coming) {
        extent->waiting.push_back([impl, batch, i](const Status& status, ByteView arrived) {
          if (status.ok()) {
            impl->serve(batch, i, arrived);
          } else {
            batch->done(i, status);
          }
        });
        continue;
      }
    }
    if (in_memory != nullptr) {
      impl->serve(batch, i, {in_memory->data(), in_memory->bytes()});
      continue;
    }
    StoreFile* const file = segment->file.get();
    // The segment stays open until the read is done, whoever moves or deletes its extents.
    impl->files->submit({.file = file,
                         .offset = page * kExtentPageBytes,
                         .memory = read.memory.first(bytes),
                         .done = [impl, batch, segment, i](const Status& outcome) {
                           Status status = outcome;
                           impl->finish(batch->reads[i], status);
                           batch->done(i, status);
                         }});
  }
  return from_memory;
}

void Store::prefetch(std::vector<PinnedExtent> extents) {
  for (const PinnedExtent& pinned : extents) impl_->prefetch(pinned);
}

void Store::Impl::prefetch(const PinnedExtent& pinned) {
  const auto& extent = pinned.extent_;
  const ExtentHead& head = extent->head;
  std::shared_ptr<StoredSegment> segment;
  std::uint64_t page = 0;
  {
    const std::lock_guard guard(mutex);
    memory->touch(*extent);
    if (!extent->listed || !memory->expect(*extent)) return;
    segment = extent->segment;
    page = std::uint64_t{extent->page} + head.parts.front().page;
  }
  auto buffer = spare->take(head.extent_bytes());
  const auto header = build_extent_head(head);
  const auto bytes = spare->shared(buffer.ok() ? std::move(*buffer) : PageBuffer());
  if (!buffer.ok() || !header.ok()) {
    finish_prefetch(pinned, bytes, buffer.ok() ? header.status() : buffer.status());
    return;
  }
  std::memcpy(bytes->data(), header->data(), header->size());
  StoreFile* const file = segment->file.get();
  // As in read(), the segment stays open; and the pin keeps the extent until it is there.
  files->submit(
      {.file = file,
       .offset = page * kExtentPageBytes,
       .memory = {bytes->data() + kExtentHeaderBytes, extent_read_bytes(head, 0, head.layers())},
       .done = [this, pinned, segment, bytes](const Status& status) {
         finish_prefetch(pinned, bytes, status);
       }});
}

// What came is checked before it is kept; reads check again what they copy, and decrypt it.
void Store::Impl::finish_prefetch(const PinnedExtent& pinned,
                                  const std::shared_ptr<PageBuffer>& bytes, Status status) {
  const auto& extent = pinned.extent_;
  const ByteView whole(bytes->data(), bytes->bytes());
  if (status.ok()) status = check_sums(extent->head, whole);
  std::vector<StoredExtent::Arrived> waiting;
  {
    const std::lock_guard guard(mutex);
    waiting.swap(extent->waiting);
    figures.damaged += status.code() == Code::kCorrupt;
    if (status.ok() && extent->listed) {
      figures.prefetched += 1;
      memory->arrive(extent, bytes);
      if (!waiting.empty()) memory->note_read(*extent);
    } else {
      memory->cancel(*extent);
    }
  }
  if (status.code() == Code::kCorrupt) condemn(extent);
  for (const StoredExtent::Arrived& arrived : waiting) arrived(status, whole);
}

Result<PageBuffer> Store::Impl::read_whole(const std::shared_ptr<StoredExtent>& extent) {
  std::shared_ptr<StoredSegment> segment;
  std::uint64_t page = 0;
  {
    const std::lock_guard guard(mutex);
    segment = extent->segment;
    page = extent->page;
  }
  const ExtentHead& head = extent->head;
  KVLANE_ASSIGN(PageBuffer buffer, PageBuffer::allocate(head.extent_bytes()));
  KVLANE_TRY(transfer_and_wait(*files, *segment->file, false, page * kExtentPageBytes,
                               {buffer.data(), buffer.bytes()}));
  const auto there = parse_extent_head({buffer.data(), kExtentHeaderBytes});
  if (!there.ok()) return corrupt(there.status().message());
  if (*there != head) return corrupt("an extent's header is not the catalogue's");
  KVLANE_TRY(check_sums(head, {buffer.data(), buffer.bytes()}));
  return buffer;
}

Status Store::verify(const PinnedExtent& pinned) {
  const auto& extent = pinned.extent_;
  const auto check = [&]() -> Status {
    KVLANE_ASSIGN(const PageBuffer buffer, impl_->read_whole(extent));
    if (!extent->head.encrypted || !impl_->options.key) return {};
    for (int p = 0; p < extent->head.layers(); ++p) {
      const ExtentPart& part = extent->head.parts[static_cast<std::size_t>(p)];
      std::byte* const at = buffer.data() + std::size_t{part.page} * kExtentPageBytes;
      KVLANE_TRY(impl_->check_part(extent->head, p, {at, part.bytes()}));
    }
    return {};
  };
  const Status status = check();
  if (status.code() == Code::kCorrupt) impl_->condemn_damaged(extent);
  return status;
}

Result<Bytes> Store::export_extent(const PinnedExtent& pinned) {
  KVLANE_ASSIGN(const PageBuffer buffer, impl_->read_whole(pinned.extent_));
  return Bytes(buffer.data(), buffer.data() + buffer.bytes());
}

}  // namespace kvlane
