// Everybody sends first and reads then: links have threads that read meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/peer_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvlane {

std::vector<int> peers_of(const ModelPart& part) {
  std::vector<int> peers;
  const int own = number_of(part);
  for (int rank = 0; rank < part.ranks; ++rank) {
    const int number = part.stage * part.ranks + rank;
    if (number != own) peers.push_back(number);
  }
  if (!part.begins()) peers.push_back(own - part.ranks);
  if (!part.ends()) peers.push_back(own + part.ranks);
  return peers;
}

Status PeerExchange::add(int rank, std::shared_ptr<RankLink> link) {
  const std::vector<int> peers = peers_of(part_);
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(peers, rank) == peers.end() || links_.contains(rank)) {
    return invalid_argument("rank " + std::to_string(rank) + " is no peer of rank " +
                            std::to_string(number_of(part_)) + ", or one already");
  }
  links_.emplace(rank, std::move(link));
  return {};
}

bool PeerExchange::complete() const {
  const std::lock_guard lock(mutex_);
  return links_.size() == peers_of(part_).size();
}

bool PeerExchange::has(const RankLink& link) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(links_, [&](const auto& peer) { return peer.second.get() == &link; });
}

Status PeerExchange::deliver(int rank, Bytes letter) {
  {
    const std::lock_guard lock(mutex_);
    letters_[rank].push_back(std::move(letter));
  }
  changed_.notify_all();
  return {};
}

void PeerExchange::fail(const Status& why) {
  std::map<int, std::shared_ptr<RankLink>> links;
  {
    const std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = why;
    links.swap(links_);
  }
  changed_.notify_all();
  for (const auto& [rank, link] : links) link->close();
}

Status PeerExchange::send_to(int rank, ByteView letter) {
  std::shared_ptr<RankLink> link;
  {
    const std::lock_guard lock(mutex_);
    KVLANE_TRY(failed_);
    link = links_.at(rank);  // all are there before the first pass
  }
  return link->send(letter).with_context("rank " + std::to_string(rank));
}

Result<Bytes> PeerExchange::take_from(int rank, Seconds patience) {
  std::unique_lock lock(mutex_);
  std::deque<Bytes>& letters = letters_[rank];
  const bool there =
      changed_.wait_for(lock, patience, [&] { return !letters.empty() || !failed_.ok(); });
  KVLANE_TRY(failed_);
  if (!there) {
    return timed_out("rank " + std::to_string(rank) + " sent nothing for " +
                     std::to_string(static_cast<int>(patience.count())) + " seconds");
  }
  Bytes letter = std::move(letters.front());
  letters.pop_front();
  return letter;
}

Status PeerExchange::gather(ByteView own, int rows, std::size_t row_bytes, std::byte* whole) {
  const Bytes letter = encode_values(own);
  const int first = part_.stage * part_.ranks;
  for (int rank = 0; rank < part_.ranks; ++rank) {
    if (rank != part_.rank) KVLANE_TRY(send_to(first + rank, letter));
  }
  std::size_t at = 0;
  for (int rank = 0; rank < part_.ranks; ++rank) {
    Bytes received;
    ByteView values = own;
    if (rank != part_.rank) {
      KVLANE_ASSIGN(received, take_from(first + rank, patience_));
      KVLANE_ASSIGN(values, decode_values(received));
    }
    const std::size_t bytes = values.size() / rows;
    if (bytes * rows != values.size() || bytes > row_bytes - at) {
      return corrupt("rank " + std::to_string(first + rank) + " sent values of another size");
    }
    for (int row = 0; bytes > 0 && row < rows; ++row) {
      std::memcpy(whole + row * row_bytes + at, values.data() + row * bytes, bytes);
    }
    at += bytes;
  }
  return at == row_bytes ? Status() : corrupt("shares of ranks do not add up to a row");
}

Status PeerExchange::receive(std::byte* hidden, std::size_t bytes) {
  const int rank = number_of(part_) - part_.ranks;
  // All stages before this one compute first: how long that may take, the head says.
  constexpr Seconds kForEver{1e7};
  KVLANE_ASSIGN(const Bytes letter, take_from(rank, kForEver));
  KVLANE_ASSIGN(const ByteView values, decode_values(letter));
  if (values.size() != bytes) {
    return corrupt("rank " + std::to_string(rank) + " sent hidden states of another size");
  }
  std::memcpy(hidden, values.data(), bytes);
  return {};
}

Status PeerExchange::send(ByteView hidden) {
  return send_to(number_of(part_) + part_.ranks, encode_values(hidden));
}

}  // namespace kvlane
