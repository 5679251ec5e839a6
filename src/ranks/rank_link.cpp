// Letters in pieces.
// SPDX-License-Identifier: Apache-2.0
#include "ranks/rank_link.h"

#include <algorithm>
#include <utility>

#include "transfer/message.h"

namespace kvlane {
namespace {

constexpr std::size_t kPieceHeadBytes = 16;
constexpr std::size_t kPieceBytes = kRankBodyBytesMax - kPieceHeadBytes;
constexpr std::uint64_t kLetterBytesMax = std::uint64_t{1} << 31;
// Far more than a network that keeps order ever holds back.
constexpr std::size_t kEarlyMax = 64;
constexpr Seconds kStuckMax{60};
// Ranks say who they are as soon as they are connected.
constexpr Seconds kSilentMax{10};

}  // namespace

std::shared_ptr<RankLink> RankLink::accept(Network& network, const TransferId& key,
                                           std::shared_ptr<Link> link, OnLetter on_letter,
                                           OnEnd on_end) {
  std::shared_ptr<RankLink> made(new RankLink(key, std::move(on_letter), std::move(on_end)));
  made->link_ = std::move(link);
  network.call_after(kSilentMax, [weak = std::weak_ptr(made)] {
    const auto self = weak.lock();
    if (self != nullptr && !self->heard_) {
      self->end(timed_out("nobody has said who they are on this link"), true);
    }
  });
  return made;
}

Result<std::shared_ptr<RankLink>> RankLink::connect(Network& network, const Address& peer,
                                                    const TransferId& key, OnLetter on_letter,
                                                    OnEnd on_end) {
  std::shared_ptr<RankLink> made(new RankLink(key, std::move(on_letter), std::move(on_end)));
  // Events may come before this returns: they wait for the link to be in its place.
  const std::lock_guard lock(made->mutex_);
  KVLANE_ASSIGN(made->link_, network.connect(peer, made));
  return made;
}

Status RankLink::send(ByteView letter) {
  if (letter.size() > kLetterBytesMax) {
    return invalid_argument("what ranks send each other for one pass has at most " +
                            std::to_string(kLetterBytesMax) +
                            " bytes; compute fewer tokens in a step");
  }
  const std::lock_guard sending(sending_);
  for (std::size_t at = 0; at < letter.size(); at += kPieceBytes) {
    const ByteView part = letter.subspan(at, std::min(kPieceBytes, letter.size() - at));
    ByteWriter piece;
    piece.write(sent_++);
    piece.write(std::uint64_t{letter.size()});
    piece.write_bytes(part);
    KVLANE_TRY(post(std::make_shared<const Bytes>(encode_rank(key_, piece.bytes()))));
  }
  return {};
}

// Waits for room in the link's queue.
Status RankLink::post(std::shared_ptr<const Bytes> message) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!changed_.wait_for(lock, kStuckMax, [&] { return !full_ || link_ == nullptr; })) {
      lock.unlock();
      end(timed_out("the peer takes nothing any more"), false);
      lock.lock();
    }
    if (link_ == nullptr) return ended_;
    Status posted = link_->post(message);
    if (posted.code() != Code::kExhausted) return posted;
    full_ = true;
  }
}

void RankLink::close() {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    link = std::exchange(link_, nullptr);
    if (link != nullptr) ended_ = aborted("the link was closed");
  }
  changed_.notify_all();
  if (link != nullptr) link->close();
}

std::string RankLink::peer() const {
  const std::lock_guard lock(mutex_);
  return link_ == nullptr ? "" : link_->peer();
}

void RankLink::on_writable() {
  {
    const std::lock_guard lock(mutex_);
    full_ = false;
  }
  changed_.notify_all();
}

void RankLink::on_closed(Status why) { end(why, false); }

void RankLink::end(const Status& why, bool tells) {
  std::shared_ptr<Link> link;
  {
    const std::lock_guard lock(mutex_);
    link = std::exchange(link_, nullptr);
    if (link == nullptr) return;
    ended_ = why;
  }
  changed_.notify_all();
  if (tells) (void)link->post(std::make_shared<const Bytes>(encode_error({}, why)));
  link->close();
  if (on_end_) on_end_(*this, why);
}

void RankLink::on_message(ByteView message) {
  bool told = false;
  if (Status taken = take(message, told); !taken.ok()) end(taken, !told);
}

// `told`: the error is the peer's.
Status RankLink::take(ByteView message, bool& told) {
  KVLANE_ASSIGN(const Message parsed, parse_message(message));
  if (parsed.header.type == MessageType::kError) {
    told = true;
    Status reported;
    KVLANE_TRY(decode_error(parsed.body, &reported));
    return reported;
  }
  if (parsed.header.type != MessageType::kRank || parsed.header.transfer != key_) {
    return invalid_argument("the peer does not belong to this group of ranks");
  }
  ByteReader reader(parsed.body);
  const auto sequence = reader.read<std::uint64_t>();
  if (reader.failed() || sequence < next_ || early_.size() > kEarlyMax) {
    return corrupt("a piece of a letter between ranks has no place");
  }
  if (sequence > next_) {
    early_.emplace(sequence, Bytes(parsed.body.begin(), parsed.body.end()));
    return {};
  }
  KVLANE_TRY(add(parsed.body));
  for (auto next = early_.find(next_); next != early_.end(); next = early_.find(next_)) {
    const Bytes piece = std::move(early_.extract(next).mapped());
    KVLANE_TRY(add(piece));
  }
  return {};
}

// The piece whose turn it is.
Status RankLink::add(ByteView piece) {
  ++next_;
  ByteReader reader(piece);
  reader.read<std::uint64_t>();
  const auto letter_bytes = reader.read<std::uint64_t>();
  if (letter_.empty()) letter_bytes_ = letter_bytes;
  const ByteView part = reader.read_bytes(reader.remaining());
  const std::uint64_t left = letter_bytes_ - letter_.size();
  if (letter_bytes_ == 0 || letter_bytes_ > kLetterBytesMax || letter_bytes != letter_bytes_ ||
      part.size() != std::min<std::uint64_t>(left, kPieceBytes)) {
    return corrupt("a piece of a letter between ranks is malformed");
  }
  letter_.insert(letter_.end(), part.begin(), part.end());
  if (letter_.size() < letter_bytes_) return {};
  heard_ = true;
  return on_letter_(*this, std::exchange(letter_, {}));
}

}  // namespace kvlane
