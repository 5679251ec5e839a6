// The index over a hash map of blocks and a list of uses for each directory.
// SPDX-License-Identifier: Apache-2.0
#include "store/extent_index.h"

#include <algorithm>

namespace kvlane {
namespace {

using Extents = std::vector<std::shared_ptr<StoredExtent>>;

// The first extent that ends behind `layer`.
Extents::const_iterator at_layer(const Extents& extents, int layer) {
  return std::find_if(extents.begin(), extents.end(), [layer](const auto& extent) {
    return extent->head.layer + extent->head.layers() > layer;
  });
}

}  // namespace

bool ExtentIndex::overlaps(const ExtentHead& head) const {
  const auto block = blocks_.find(head.key);
  if (block == blocks_.end()) return false;
  const auto next = at_layer(block->second, head.layer);
  return next != block->second.end() && (*next)->head.layer < head.layer + head.layers();
}

bool ExtentIndex::add(const std::shared_ptr<StoredExtent>& extent) {
  if (overlaps(extent->head)) return false;
  Extents& extents = blocks_[extent->head.key];
  extents.insert(at_layer(extents, extent->head.layer), extent);
  StoredExtent::List& order = by_use_[static_cast<std::size_t>(extent->segment->directory)];
  extent->at = order.insert(order.end(), extent);
  extent->listed = true;
  extent->used = ++clock_;
  size_ += 1;
  return true;
}

bool ExtentIndex::remove(const std::shared_ptr<StoredExtent>& extent) {
  if (!extent->listed) return false;
  extent->listed = false;
  size_ -= 1;
  by_use_[static_cast<std::size_t>(extent->segment->directory)].erase(extent->at);
  const auto block = blocks_.find(extent->head.key);
  std::erase(block->second, extent);
  if (block->second.empty()) blocks_.erase(block);
  return true;
}

void ExtentIndex::touch(StoredExtent& extent) {
  if (!extent.listed) return;
  StoredExtent::List& order = by_use_[static_cast<std::size_t>(extent.segment->directory)];
  order.splice(order.end(), order, extent.at);
  extent.used = ++clock_;
}

Extents ExtentIndex::find(const BlockKey& key) const {
  const auto block = blocks_.find(key);
  return block == blocks_.end() ? Extents() : block->second;
}

bool ExtentIndex::holds(const BlockKey& key, int layer, int layers) const {
  const auto block = blocks_.find(key);
  if (block == blocks_.end()) return false;
  const int end = layer + layers;
  for (auto next = at_layer(block->second, layer); layer < end; ++next) {
    if (next == block->second.end() || !(*next)->head.holds(layer)) return false;
    layer = (*next)->head.layer + (*next)->head.layers();
  }
  return true;
}

std::shared_ptr<StoredExtent> ExtentIndex::oldest(int directory) const {
  for (const auto& extent : by_use_[static_cast<std::size_t>(directory)]) {
    if (extent->pins == 0) return extent;
  }
  return nullptr;
}

Extents ExtentIndex::all() const {
  Extents extents;
  for (const StoredExtent::List& order : by_use_) {
    extents.insert(extents.end(), order.begin(), order.end());
  }
  std::sort(extents.begin(), extents.end(),
            [](const auto& a, const auto& b) { return a->used < b->used; });
  return extents;
}

}  // namespace kvlane
