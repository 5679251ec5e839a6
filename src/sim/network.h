// A network that transfers share: ports with a rate in each direction, and fairness between flows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "sim/event_queue.h"

namespace kvlane {

// A flow leaves through one port and arrives through another.
struct FlowRoute {
  int from = 0;
  int to = 0;
  double rate_max = std::numeric_limits<double>::infinity();  // bytes a second of this flow alone
};

// Max-min fair rates (Bertsekas and Gallager, Data Networks, 6.5.2): all flows grow alike until a
// port is full or a flow is as fast as it may be; these stay, the others go on. ports: bytes a
// second of each, in either direction; a flow takes of both of its ports, more than 0 of each.
// Returns the rate of each flow.
std::vector<double> fair_rates(std::span<const double> ports, std::span<const FlowRoute> flows);

// Flows over time. A flow carries bytes as they are given to it and may wait for more in between.
// The core of the network never is what limits. Not thread-safe.
class Network {
 public:
  // Returns the port's number. rate: bytes a second, more than 0.
  int add_port(double rate);
  // A flow without bytes. Returns its number; numbers are used again after close().
  int open(const FlowRoute& route);
  // The flow must have run dry.
  void close(int flow);
  // `bytes` more, from this moment on; time never goes back.
  void add_bytes(SimTime now, int flow, double bytes);

  // When the first of the flows that have bytes will have none, if nothing changes.
  std::optional<SimTime> next_dry();
  // Carries bytes until `now` and returns the flows that ran dry by then, in order of numbers.
  std::vector<int> advance(SimTime now);

  // Bytes that left through the port, and seconds for which some flow through it had bytes.
  double sent(int port) const { return ports_[port].sent; }
  double busy(int port) const { return ports_[port].busy; }

 private:
  struct Port {
    double rate;
    double sent = 0;
    double busy = 0;
  };
  struct Flow {
    FlowRoute route;
    double bytes = 0;  // to be carried
    double rate = 0;   // 0 while there are none
    bool waited_for =
        false;  // it was given bytes, and advance() has not told yet that they are through
    bool open = false;
  };
  void carry(SimTime now);
  void share();
  void share_if_changed();

  std::vector<Port> ports_;
  std::vector<Flow> flows_;
  std::vector<int> closed_;
  SimTime now_ = 0;
  bool changed_ = false;  // who has bytes; rates are found once for all changes of a moment
};

}  // namespace kvlane
