// The test double: one queue of timed events, and wires between pairs of link ends.
// SPDX-License-Identifier: Apache-2.0
#include "transfer/test_link.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvlane {
namespace {

using UniqueLock = std::unique_lock<std::mutex>;
using Task = std::function<void()>;

// What the two ends of a link share. Guarded by Events::mutex.
struct Wire {
  struct End {
    std::shared_ptr<LinkEvents> events;  // null once this end is closed
    bool open = true;
    bool refused = false;          // a post() was, on_writable is owed
    std::size_t queued_bytes = 0;  // posted here, still on the way
    std::uint32_t posted = 0;      // messages, for the random numbers
    std::uint64_t arrived_bytes = 0;
    LinkSpeedMeter meter;
    TimePoint free_at{};     // when the last message posted here has been put on the wire
    TimePoint not_before{};  // when the last message posted here in order arrives
    std::string peer;
  };
  std::uint32_t number = 0;
  bool dead = false;  // cut
  bool silent = false;
  std::array<End, 2> ends;
};

// The queue of events, the clock and all that links need; outlives the network with its links.
struct Events {
  TestNetwork::Options options;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
  TimePoint virtual_now{};
  std::multimap<TimePoint, Task> queue;
  std::map<std::uint16_t, Network::Acceptor> listeners;
  std::vector<std::weak_ptr<Wire>> wires;
  std::uint32_t wires_made = 0;
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  TimePoint now() const {
    return options.drive == TestNetwork::Drive::kManual ? virtual_now : SteadyClock::now();
  }
  void at(TimePoint when, Task task) {
    if (stopped) return;
    queue.emplace(when, std::move(task));
    changed.notify_all();
  }
};

// Takes the listener of one end and tells it the end of the link, when what is on its way has come.
void schedule_closed(const std::shared_ptr<Events>& events, const std::shared_ptr<Wire>& wire,
                     int side, Status why) {
  const TimePoint when = std::max(events->now(), wire->ends[1 - side].not_before);
  events->at(when, [events, wire, side, why = std::move(why)] {
    std::shared_ptr<LinkEvents> listener;
    {
      const UniqueLock lock(events->mutex);
      listener = std::exchange(wire->ends[side].events, nullptr);
      wire->ends[side].open = false;
    }
    if (listener) listener->on_closed(why);
  });
}

void cut_wire(const std::shared_ptr<Events>& events, const std::shared_ptr<Wire>& wire,
              bool silent) {
  if (wire->dead) return;
  wire->dead = true;
  wire->silent = silent;
  if (silent) return;
  for (int side = 0; side < 2; ++side) {
    schedule_closed(events, wire, side,
                    unavailable("the link to " + wire->ends[side].peer + " broke"));
  }
}

// One end as the user holds it.
class TestLink : public Link {
 public:
  TestLink(std::shared_ptr<Events> events, std::shared_ptr<Wire> wire, int side)
      : events_(std::move(events)), wire_(std::move(wire)), side_(side) {}
  ~TestLink() override { TestLink::close(); }

  Status post(std::shared_ptr<const Bytes> message) override;
  bool is_over() const override {
    const UniqueLock lock(events_->mutex);
    return !takes_messages();
  }
  void close() override;
  std::string peer() const override { return wire_->ends[side_].peer; }
  std::optional<LinkSpeed> speed() const override {
    const UniqueLock lock(events_->mutex);
    return wire_->ends[side_].meter.speed();
  }

 private:
  // Locked.
  bool takes_messages() const {
    return wire_->ends[side_].open && !events_->stopped && !(wire_->dead && !wire_->silent);
  }
  TimePoint arrival(const TestFaults& faults, std::uint32_t index, std::size_t bytes, bool* lost);

  const std::shared_ptr<Events> events_;
  const std::shared_ptr<Wire> wire_;
  const int side_;
};

// When the message with this index arrives, and whether it does.
TimePoint TestLink::arrival(const TestFaults& faults, std::uint32_t index, std::size_t bytes,
                            bool* lost) {
  Wire::End& here = wire_->ends[side_];
  const PhiloxCounter dice =
      philox4x32(faults.seed, {wire_->number, static_cast<std::uint32_t>(side_), index, 0});
  const auto happens = [&](std::uint32_t word, double probability) {
    return static_cast<double>(word) * 0x1p-32 < probability;
  };
  *lost = happens(dice[0], faults.loss);
  const double spread = uniform_unit(dice[2], dice[3]);
  const Seconds delay = faults.delay_min + (faults.delay_max - faults.delay_min) * spread;
  here.free_at = std::max(here.free_at, events_->now());
  if (faults.bytes_per_second > 0) {
    here.free_at += ticks(Seconds(static_cast<double>(bytes) / faults.bytes_per_second));
  }
  const TimePoint in_order = std::max(here.not_before, here.free_at + ticks(delay));
  if (happens(dice[1], faults.reorder)) return in_order + ticks(faults.reorder_delay);
  return here.not_before = in_order;
}

Status TestLink::post(std::shared_ptr<const Bytes> message) {
  const UniqueLock lock(events_->mutex);
  Wire::End& here = wire_->ends[side_];
  const TestFaults& faults = events_->options.faults;
  if (!takes_messages()) {
    return unavailable("the link to " + here.peer + " is closed");
  }
  if (here.queued_bytes >= events_->options.queue_bytes_max) {
    here.refused = true;
    return exhausted("the link to " + here.peer + " has " + std::to_string(here.queued_bytes) +
                     " bytes queued");
  }
  const std::size_t size = message->size();
  if (events_->messages >= faults.cut_after_messages ||
      events_->bytes + size > faults.cut_after_bytes) {
    cut_wire(events_, wire_, faults.silent_cut);
  }
  ++events_->messages;
  events_->bytes += size;
  if (wire_->dead) return {};  // on its way into nothing

  bool lost = false;
  const TimePoint when = arrival(faults, here.posted++, size, &lost);
  here.queued_bytes += size;
  if (faults.bytes_per_second > 0) here.meter.waiting(events_->now(), {here.arrived_bytes, {}});
  events_->at(when, [events = events_, wire = wire_, side = side_, lost, message] {
    std::shared_ptr<LinkEvents> receiver;
    std::shared_ptr<LinkEvents> waiting;
    {
      const UniqueLock inner(events->mutex);
      Wire::End& sender = wire->ends[side];
      sender.queued_bytes -= message->size();
      sender.arrived_bytes += message->size();
      const LinkProgress progress{sender.arrived_bytes, {}};
      sender.queued_bytes > 0 && sender.meter.measuring()
          ? sender.meter.waiting(events->now(), progress)
          : sender.meter.idle(events->now(), progress);
      const bool vanished = lost || (wire->dead && wire->silent);
      if (!vanished && wire->ends[1 - side].open) receiver = wire->ends[1 - side].events;
      if (sender.refused && sender.queued_bytes <= events->options.queue_bytes_max / 2) {
        sender.refused = false;
        waiting = sender.events;
      }
    }
    if (receiver) receiver->on_message(*message);
    if (waiting) waiting->on_writable();
  });
  return {};
}

void TestLink::close() {
  const UniqueLock lock(events_->mutex);
  Wire::End& here = wire_->ends[side_];
  if (!std::exchange(here.open, false)) return;
  // The caller may hold locks: the listener is let go of by an event.
  events_->at(events_->now(), [events = events_, wire = wire_, side = side_] {
    std::shared_ptr<LinkEvents> listener;
    const UniqueLock inner(events->mutex);
    listener.swap(wire->ends[side].events);
  });
  if (!wire_->dead) {
    schedule_closed(events_, wire_, 1 - side_,
                    aborted(wire_->ends[1 - side_].peer + " closed the link"));
  }
}

class TestNetworkImpl : public TestNetwork {
 public:
  explicit TestNetworkImpl(Options options) : events_(std::make_shared<Events>()) {
    events_->options = options;
    if (options.drive == Drive::kThread) thread_ = std::thread([this] { run_thread(); });
  }
  ~TestNetworkImpl() override;

  Result<Address> listen(const Address& address, Acceptor acceptor) override;
  Result<std::shared_ptr<Link>> connect(const Address& peer,
                                        std::shared_ptr<LinkEvents> events) override;
  TimePoint now() const override {
    const UniqueLock lock(events_->mutex);
    return events_->now();
  }
  void call_after(Seconds delay, std::function<void()> task) override {
    const UniqueLock lock(events_->mutex);
    events_->at(events_->now() + ticks(delay), std::move(task));
  }

  void set_faults(const TestFaults& faults) override {
    const UniqueLock lock(events_->mutex);
    events_->options.faults = faults;
  }
  void cut(bool silent) override;
  std::uint64_t messages() const override {
    const UniqueLock lock(events_->mutex);
    return events_->messages;
  }

  bool step() override { return step_before(TimePoint::max()); }
  bool run_until(const std::function<bool()>& done, Seconds limit) override;
  void run_for(Seconds duration) override;

 private:
  bool step_before(TimePoint end);
  void run_thread();
  void accept(const std::shared_ptr<Wire>& wire, std::uint16_t port);

  const std::shared_ptr<Events> events_;
  std::thread thread_;
};

TestNetworkImpl::~TestNetworkImpl() {
  std::multimap<TimePoint, Task> dropped;
  std::map<std::uint16_t, Acceptor> listeners;
  std::vector<std::weak_ptr<Wire>> wires;
  {
    const UniqueLock lock(events_->mutex);
    events_->stopped = true;
    dropped.swap(events_->queue);
    listeners.swap(events_->listeners);
    wires.swap(events_->wires);
    events_->changed.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  for (const std::weak_ptr<Wire>& weak : wires) {
    const std::shared_ptr<Wire> wire = weak.lock();
    if (!wire) continue;
    for (Wire::End& end : wire->ends) {
      std::shared_ptr<LinkEvents> listener;  // destroyed outside the lock: it may close its link
      const UniqueLock lock(events_->mutex);
      listener.swap(end.events);
      end.open = false;
    }
  }
}

Result<Address> TestNetworkImpl::listen(const Address& address, Acceptor acceptor) {
  constexpr std::uint16_t kFirstPort = 1024;
  const UniqueLock lock(events_->mutex);
  Address bound = address;
  if (bound.port == 0) {
    bound.port = kFirstPort;
    while (events_->listeners.contains(bound.port)) ++bound.port;
  }
  if (!events_->listeners.emplace(bound.port, std::move(acceptor)).second) {
    return unavailable("port " + std::to_string(bound.port) + " is in use");
  }
  return bound;
}

Result<std::shared_ptr<Link>> TestNetworkImpl::connect(const Address& peer,
                                                       std::shared_ptr<LinkEvents> events) {
  const UniqueLock lock(events_->mutex);
  const auto wire = std::make_shared<Wire>();
  wire->number = events_->wires_made++;
  wire->ends[0].events = std::move(events);
  wire->ends[0].peer = to_string(peer);
  wire->ends[1].peer = "test:" + std::to_string(wire->number);
  std::erase_if(events_->wires, [](const auto& weak) { return weak.expired(); });
  events_->wires.push_back(wire);
  const TimePoint when = events_->now() + ticks(events_->options.faults.delay_min);
  for (Wire::End& end : wire->ends) end.not_before = when;
  events_->at(when, [this, wire, port = peer.port] { accept(wire, port); });
  return std::shared_ptr<Link>(std::make_shared<TestLink>(events_, wire, 0));
}

void TestNetworkImpl::accept(const std::shared_ptr<Wire>& wire, std::uint16_t port) {
  Acceptor acceptor;
  {
    const UniqueLock lock(events_->mutex);
    if (wire->dead && wire->silent) return;
    const auto found = events_->listeners.find(port);
    if (found == events_->listeners.end()) {
      wire->dead = true;
      schedule_closed(events_, wire, 0, unavailable("nobody listens at " + wire->ends[0].peer));
      return;
    }
    acceptor = found->second;
  }
  const auto link = std::make_shared<TestLink>(events_, wire, 1);
  std::shared_ptr<LinkEvents> listener = acceptor(link);
  if (!listener) return;  // the link's end closes it
  const UniqueLock lock(events_->mutex);
  if (wire->ends[1].open) wire->ends[1].events.swap(listener);
}

void TestNetworkImpl::cut(bool silent) {
  const UniqueLock lock(events_->mutex);
  for (const std::weak_ptr<Wire>& weak : events_->wires) {
    if (const std::shared_ptr<Wire> wire = weak.lock()) cut_wire(events_, wire, silent);
  }
}

// The next event if it is due before `end`.
bool TestNetworkImpl::step_before(TimePoint end) {
  Task task;
  {
    const UniqueLock lock(events_->mutex);
    const auto next = events_->queue.begin();
    if (next == events_->queue.end() || next->first > end) return false;
    events_->virtual_now = std::max(events_->virtual_now, next->first);
    task = std::move(next->second);
    events_->queue.erase(next);
  }
  task();
  return true;
}

bool TestNetworkImpl::run_until(const std::function<bool()>& done, Seconds limit) {
  const TimePoint end = now() + ticks(limit);
  while (!done()) {
    if (!step_before(end)) return false;
  }
  return true;
}

void TestNetworkImpl::run_for(Seconds duration) {
  const TimePoint end = now() + ticks(duration);
  while (step_before(end)) {
  }
  const UniqueLock lock(events_->mutex);
  events_->virtual_now = end;
}

void TestNetworkImpl::run_thread() {
  UniqueLock lock(events_->mutex);
  while (!events_->stopped) {
    const auto next = events_->queue.begin();
    if (next == events_->queue.end()) {
      events_->changed.wait(lock);
    } else if (next->first > SteadyClock::now()) {
      events_->changed.wait_until(lock, next->first);
    } else {
      Task task = std::move(next->second);
      events_->queue.erase(next);
      lock.unlock();
      task();
      task = nullptr;  // what it holds may close a link
      lock.lock();
    }
  }
}

}  // namespace

std::unique_ptr<TestNetwork> TestNetwork::create(Options options) {
  return std::make_unique<TestNetworkImpl>(options);
}

}  // namespace kvlane
