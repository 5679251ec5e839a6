// Rendezvous: UCX tells that a message is there, and where; we say into which memory it goes.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/ucx_inbox.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "transfer/ucx_library.h"

namespace kvlane {
namespace {

// Memory of so many messages is used again.
constexpr std::size_t kKeptMax = 32;

}  // namespace

bool UcxInbox::expects(std::uint64_t number) const {
  return number >= next_ && number - next_ < kUcxAheadMax && !held_.contains(number) &&
         (!end_ || number < *end_);
}

void UcxInbox::take(std::uint64_t number, ByteView header, ByteView body) {
  Item& item = add(number, header, body.size());
  reserve(item);
  std::ranges::copy(body, item.memory.begin() + kMessageHeaderBytes);
  item.here = true;
}

void UcxInbox::take(std::uint64_t number, ByteView header, std::size_t body_bytes,
                    void* descriptor) {
  add(number, header, body_bytes).source = descriptor;
}

UcxInbox::Item& UcxInbox::add(std::uint64_t number, ByteView header, std::size_t body_bytes) {
  auto item = std::make_unique<Item>();
  item->inbox = this;
  std::ranges::copy(header, item->header.begin());
  item->bytes = header.size() + body_bytes;
  return *(held_[number] = std::move(item));
}

// Memory that was used before, if it is there: fresh memory costs more than the copy into it.
void UcxInbox::reserve(Item& item) {
  const auto fits = [&](const Bytes& memory) { return memory.size() >= item.bytes; };
  auto found = std::ranges::find_if(free_, fits);
  if (found == free_.end() && !free_.empty()) found = free_.end() - 1;
  if (found != free_.end()) {
    free_bytes_ -= found->size();
    item.memory = std::move(*found);
    free_.erase(found);
  }
  if (item.memory.size() < item.bytes) item.memory = Bytes(item.bytes);
  std::ranges::copy(item.header, item.memory.begin());
}

void UcxInbox::keep(Bytes memory) {
  if (free_.size() >= kKeptMax || free_bytes_ + memory.size() > kUcxFetchBytesMax) return;
  free_bytes_ += memory.size();
  free_.push_back(std::move(memory));
}

Status UcxInbox::fetch() {
  if (failed_) return unavailable("a message of the peer could not be fetched");
  const bool begun = next_ > 0 || (held_.contains(0) && held_.at(0)->here);
  for (const auto& [number, item] : held_) {
    if (item->source == nullptr) continue;
    if (!begun && item->bytes > kMessageHeaderBytes + kControlBodyBytesMax) break;
    if (fetching_bytes_ > 0 && fetching_bytes_ + item->bytes > kUcxFetchBytesMax) break;
    KVLANE_TRY(fetch(*item));
  }
  return {};
}

Status UcxInbox::fetch(Item& item) {
  try {
    reserve(item);
  } catch (const std::bad_alloc&) {
    return exhausted("no memory for a message of " + std::to_string(item.bytes) + " bytes");
  }
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = on_fetched;
  param.user_data = &item;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  void* const source = std::exchange(item.source, nullptr);  // UCX's again, even if this fails
  ++fetching_;
  fetching_bytes_ += item.bytes;
  const ucs_status_ptr_t request =
      ucx().ucp_am_recv_data_nbx(worker_, source, item.memory.data() + kMessageHeaderBytes,
                                 item.bytes - kMessageHeaderBytes, &param);
  if (!UCS_PTR_IS_PTR(request)) arrived(item, UCS_PTR_STATUS(request));
  return {};
}

void UcxInbox::on_fetched(void* request, ucs_status_t status, std::size_t, void* item) {
  Item& fetched = *static_cast<Item*>(item);
  UcxInbox& inbox = *fetched.inbox;
  ucx().ucp_request_free(request);
  inbox.arrived(fetched, status);
  inbox.changed_();
}

// `item` is no longer UCX's.
void UcxInbox::arrived(Item& item, ucs_status_t status) {
  --fetching_;
  fetching_bytes_ -= item.bytes;
  const auto is_it = [&](const std::unique_ptr<Item>& other) { return other.get() == &item; };
  if (std::erase_if(dropped_, is_it) > 0) return;
  if (status != UCS_OK) {
    failed_ = true;
    return;
  }
  item.here = true;
}

ByteView UcxInbox::front() const {
  const auto oldest = held_.begin();
  if (oldest == held_.end() || oldest->first != next_ || !oldest->second->here) return {};
  return ByteView(oldest->second->memory).first(oldest->second->bytes);
}

void UcxInbox::pop() {
  keep(std::move(held_.begin()->second->memory));
  held_.erase(held_.begin());
  ++next_;
}

void UcxInbox::drop() {
  for (auto& [number, item] : held_) {
    if (item->source != nullptr) {
      // The sender is told that it is done with.
      ucx().ucp_am_data_release(worker_, item->source);
    } else if (!item->here) {
      dropped_.push_back(std::move(item));
    }
  }
  held_.clear();
  free_.clear();
  free_bytes_ = 0;
}

}  // namespace kvlane
