// What callers of a store see: pins, drafts, the queue of what is to be saved.
// SPDX-License-Identifier: Apache-2.0
#include "store/store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "format/checksum.h"
#include "store/store_impl.h"

namespace kvlane {

PinnedExtent::PinnedExtent(std::shared_ptr<StoredExtent> extent) : extent_(std::move(extent)) {
  extent_->pins += 1;
}
PinnedExtent::PinnedExtent(const PinnedExtent& other) : extent_(other.extent_) {
  if (extent_ != nullptr) extent_->pins += 1;
}
PinnedExtent& PinnedExtent::operator=(PinnedExtent other) noexcept {
  std::swap(extent_, other.extent_);
  return *this;
}
PinnedExtent::~PinnedExtent() {
  if (extent_ != nullptr) extent_->pins -= 1;
}
const ExtentHead& PinnedExtent::head() const { return extent_->head; }

ExtentDraft::ExtentDraft(std::unique_ptr<Content> content) : content_(std::move(content)) {}
ExtentDraft::ExtentDraft(ExtentDraft&&) noexcept = default;
ExtentDraft& ExtentDraft::operator=(ExtentDraft&&) noexcept = default;
ExtentDraft::~ExtentDraft() = default;
const ExtentHead& ExtentDraft::head() const { return content_->head; }

void ExtentDraft::set_name(const BlockName& name) { content_->head.key.name = name; }

std::span<std::byte> ExtentDraft::part(int index) const {
  return content_->part(static_cast<std::size_t>(index));
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::~Store() = default;

Result<std::unique_ptr<Store>> Store::open(const StoreOptions& options,
                                           std::unique_ptr<StoreFiles> files) {
  auto impl = std::make_unique<Impl>();
  KVLANE_TRY(impl->start(options, std::move(files)));
  return std::unique_ptr<Store>(new Store(std::move(impl)));
}

Store::Impl::~Impl() {
  if (thread.joinable()) {
    {
      const std::lock_guard guard(mutex);
      ending = true;
    }
    changed.notify_one();
    thread.join();
    // When extents were used is not worth an error.
    const CatalogueChanges uses = take_touched();
    if (!uses.empty()) (void)catalogue->commit(uses);
    // What was evicted in vain comes back otherwise.
    if (!owed.empty()) (void)give_up(owed);
  }
  files.reset();  // waits for reads
}

const StoreOpening& Store::opening() const { return impl_->opening; }
int Store::directories() const { return static_cast<int>(impl_->directories.size()); }

Result<ExtentDraft> Store::draft(ExtentHead head) {
  KVLANE_TRY(place_parts(head));
  head.encrypted = false;
  head.key_id = 0;
  head.nonce = {};
  for (ExtentPart& part : head.parts) {
    part.checksum = 0;
    part.tag = {};
  }
  if (const auto page = build_extent_head(head); !page.ok()) return page.status();
  auto content = std::make_unique<ExtentDraft::Content>();
  const std::uint64_t bytes = head.extent_bytes();
  content->head = std::move(head);
  if (impl_->draft_bytes->fetch_add(bytes) + bytes > impl_->options.saving_bytes_max) {
    *impl_->draft_bytes -= bytes;
    const std::lock_guard guard(impl_->mutex);
    impl_->figures.refused += 1;
    return exhausted("saving is behind: drafts take all of their " +
                     std::to_string(impl_->options.saving_bytes_max) + " bytes");
  }
  content->counted = impl_->draft_bytes;
  content->home = impl_->spare;
  KVLANE_ASSIGN(content->bytes, impl_->spare->take(bytes));
  for (const ExtentPart& part : content->head.parts) {
    std::byte* const at = content->bytes.data() + std::size_t{part.page} * kExtentPageBytes;
    std::memset(at + part.bytes(), 0, part.padded_bytes() - part.bytes());
  }
  return ExtentDraft(std::move(content));
}

// Another one may be quicker to take what has come back, but not for ever.
Result<ExtentDraft> Store::wait_for_draft(const ExtentHead& head) {
  constexpr int kTriesMax = 100;
  Result<ExtentDraft> made = draft(head);
  for (int tries = 1; tries < kTriesMax && made.status().code() == Code::kExhausted; ++tries) {
    flush();
    made = draft(head);
  }
  return made;
}

Result<ExtentDraft> Store::import_draft(ByteView bytes) {
  KVLANE_ASSIGN(const ExtentHead head, parse_extent_head(bytes));
  if (bytes.size() != head.extent_bytes()) {
    return corrupt("the extent has " + std::to_string(bytes.size()) + " bytes instead of " +
                   std::to_string(head.extent_bytes()));
  }
  KVLANE_ASSIGN(ExtentDraft made, draft(head));
  for (std::size_t p = 0; p < head.parts.size(); ++p) {
    const std::size_t at = std::size_t{head.parts[p].page} * kExtentPageBytes;
    const ByteView part = bytes.subspan(at, head.parts[p].bytes());
    if (xxh3_64(part) != head.parts[p].checksum) {
      return corrupt("a part of the extent has a wrong checksum");
    }
    std::memcpy(made.part(static_cast<int>(p)).data(), part.data(), part.size());
  }
  // Encrypted bytes stay as they are, whoever has the key; others become this store's own.
  if (head.encrypted) {
    made.content_->head = head;
    made.content_->sealed = true;
  }
  return made;
}

void Store::put(ExtentDraft draft, int directory, SaveDone done) {
  const auto count = static_cast<int>(impl_->directories.size());
  {
    const std::lock_guard guard(impl_->mutex);
    impl_->queue.push_back({.draft = std::move(draft),
                            .directory = (directory % count + count) % count,
                            .done = std::move(done)});
    impl_->puts += 1;
    // While it waits for others, the thread that saves is not disturbed.
    if (impl_->queue.size() > 1 && !impl_->saves_now()) return;
  }
  impl_->changed.notify_one();
}

void Store::flush() {
  std::unique_lock guard(impl_->mutex);
  impl_->flushing += 1;
  impl_->changed.notify_one();
  impl_->saved.wait(guard, [this, last = impl_->puts] { return impl_->puts_done >= last; });
  impl_->flushing -= 1;
}

std::vector<PinnedExtent> Store::find(const BlockKey& key) {
  const std::lock_guard guard(impl_->mutex);
  std::vector<PinnedExtent> found;
  for (auto& extent : impl_->index->find(key)) {
    if (!impl_->opens(extent->head)) continue;
    impl_->index->touch(*extent);
    impl_->memory->touch(*extent);
    if (!std::exchange(extent->touched, true)) impl_->touched.push_back(extent);
    found.emplace_back(std::move(extent));
  }
  return found;
}

bool Store::holds(const BlockKey& key, int layer, int layers) const {
  const std::lock_guard guard(impl_->mutex);
  const auto there = impl_->index->find(key);
  const bool mine =
      std::ranges::all_of(there, [&](const auto& e) { return impl_->opens(e->head); });
  return mine && impl_->index->holds(key, layer, layers);
}

std::vector<PinnedExtent> Store::all() const {
  const std::lock_guard guard(impl_->mutex);
  std::vector<PinnedExtent> found;
  for (auto& extent : impl_->index->all()) found.emplace_back(std::move(extent));
  return found;
}

void Store::forget(const PinnedExtent& extent) { impl_->condemn(extent.extent_); }
void Store::damaged(const PinnedExtent& extent) { impl_->condemn_damaged(extent.extent_); }

StoreFigures Store::figures() const {
  const std::lock_guard guard(impl_->mutex);
  StoreFigures figures = impl_->figures;
  figures.extents = impl_->index->size();
  for (const Impl::Directory& directory : impl_->directories) {
    figures.bytes += directory.pages * kExtentPageBytes;
  }
  figures.segments = impl_->segments.size();
  figures.memory_bytes = impl_->memory->bytes();
  return figures;
}

}  // namespace kvlane
