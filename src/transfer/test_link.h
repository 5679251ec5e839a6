// A network inside one process that misbehaves on request: the test double of transfer/tcp.h.
//
// Messages are delayed, lost and reordered as TestFaults says; what happens to a message is a pure
// function of the seed, the link, the direction and the message's index, so one seed reproduces one
// run. Two ways to drive it:
//
//   kManual  The clock is virtual and stands still until step() or one of the run functions is
//   called;
//            it then jumps from event to event. The caller's thread is the network's thread. A run
//            with minutes of time-outs takes milliseconds, and is the same every time.
//   kThread  An own thread and the real clock, for tests of code that waits (an engine, a server).
//
//   auto network = TestNetwork::create({.drive = TestNetwork::Drive::kManual, .faults = {.loss =
//   0.1}}); auto a = Endpoint::start(*network, {...}), b = Endpoint::start(*network, {...});
//   ... push, expect ...
//   network->run_until([&] { return sink->ended; }, Seconds(60));
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "transfer/link.h"

namespace kvlane {

struct TestFaults {
  std::uint64_t seed = 0;
  // A message takes this long, uniformly; messages of one direction stay in order.
  Seconds delay_min{0.001};
  Seconds delay_max{0.001};
  double loss = 0;  // probability that a message never arrives
  // Probability that a message is held back by reorder_delay more and others may overtake it.
  double reorder = 0;
  Seconds reorder_delay{0.01};
  // What one direction of a link carries; infinite when 0. A message takes its size over this, one
  // after another, and the delays besides.
  double bytes_per_second = 0;
  // A link breaks when so many messages, or bytes, have been posted on all links together: those
  // come through, the next one does not. Both ends get on_closed with kUnavailable, unless the cut
  // is silent: then everything on the link vanishes and nobody is told.
  std::uint64_t cut_after_messages = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t cut_after_bytes = std::numeric_limits<std::uint64_t>::max();
  bool silent_cut = false;
};

// Thread-safe. Hosts of addresses are ignored when connecting: the port alone names a listener.
class TestNetwork : public Network {
 public:
  enum class Drive { kManual, kThread };
  struct Options {
    Drive drive = Drive::kManual;
    TestFaults faults{};
    // Messages on their way in one direction of a link; then post() is kExhausted.
    std::size_t queue_bytes_max = std::size_t{8} << 20;
  };
  static std::unique_ptr<TestNetwork> create(Options options);

  // For messages that are posted from now on. The counters of the cut go on.
  virtual void set_faults(const TestFaults& faults) = 0;
  // Breaks all links that stand now; silently: see TestFaults.
  virtual void cut(bool silent) = 0;
  // Messages posted so far, lost ones included.
  virtual std::uint64_t messages() const = 0;

  // kManual only, from one thread and not from within an event.
  // The next event; false when there is none.
  virtual bool step() = 0;
  // Until `done`, asked before each event; false when `limit` of virtual time passed first.
  virtual bool run_until(const std::function<bool()>& done, Seconds limit) = 0;
  // All events of the next `duration`; the clock then stands at its end.
  virtual void run_for(Seconds duration) = 0;
};

}  // namespace kvlane
