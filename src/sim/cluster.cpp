// The life of requests.
// SPDX-License-Identifier: Apache-2.0
#include "sim/cluster.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "format/shape.h"
#include "plan/routing.h"
#include "sim/network.h"

namespace kvlane {
namespace {

// KV of a step leaves in so many parts at most: more would not show, and each is an event.
constexpr int kPushParts = 8;

// A replica, and what its steps are for.
struct Worker {
  Replica replica;
  int port = 0;
  bool prefill = false;          // its sequences go on elsewhere
  bool computes = false;         // its first stage
  std::vector<SimTime> free_at;  // [stage]: when it is through with what it was given
  double busy = 0;               // seconds in which that computed
  std::int64_t steps = 0;
  std::int64_t arriving = 0;  // prompt tokens on their way here, and requests they are of
  int arriving_requests = 0;
  std::deque<int> wanting;  // requests whose KV waits for blocks, in order
};

// Where a request is, and when it came there. -1: not yet.
struct Life {
  Worker* prefill = nullptr;
  Worker* decode = nullptr;
  SimTime arrival = 0;
  SimTime started = -1;   // its first step
  SimTime answered = -1;  // its first token
  SimTime left = -1;      // the last of its KV is encoded
  SimTime granted = -1;   // it has blocks in the decode worker
  SimTime crossed = -1;   // the last of its KV is there,
  SimTime adopted = -1;   // and decoded
  SimTime resumed = -1;   // its first step there
  int flow = -1;
  double held = 0;     // bytes that wait for blocks
  int leaving = 0;     // parts of KV that are computed, or will be, and have not left
  bool last = false;   // these are the last ones
  double values = 0;   // of the part that left last
  StepTime prefilled;  // sums over its steps
  StepTime decoded;
};

StepTime& operator+=(StepTime& sum, const StepTime& time) {
  sum.products += time.products;
  sum.attention += time.attention;
  sum.open += time.open;
  sum.seal += time.seal;
  sum.exchange += time.exchange;
  sum.overhead += time.overhead;
  return sum;
}

class Simulation {
 public:
  Simulation(const ClusterSetting& setting, std::span<const SimRequest> requests,
             const std::function<void(std::size_t)>& progress)
      : setting_(setting), requests_(requests), progress_(progress), lives_(requests.size()) {}

  Status prepare();
  Result<SimOutcome> run();

 private:
  Status add_workers(const ReplicaGroup& group, bool prefill, std::vector<Worker>& workers);
  bool fits(const SimRequest& request) const;
  // Whether it is decoded elsewhere than computed.
  bool travels(const SimRequest& request) const;
  void arrive(int request);
  static Worker& pick(std::vector<Worker>& workers, std::size_t& turn);

  void wake(Worker& worker);
  void begin(Worker& worker, const std::shared_ptr<const SimStep>& step);
  void end(Worker& worker, const SimStep& step);

  int push_parts() const {
    return setting_.push_whole ? 1 : std::min(kPushParts, setting_.model.layers);
  }
  // A share of a step's KV; and of a request's, behind its codec.
  void push(const SimStep& step, double share);
  void send(int request, double tokens);
  void leave(int request, double values);
  void grant(Worker& worker);
  void watch_network();
  void carry();
  void adopt(int request);

  void finish(int request);
  TimeAccount account(const Life& life) const;
  GroupUse use_of(const std::vector<Worker>& workers) const;

  const ClusterSetting& setting_;
  std::span<const SimRequest> requests_;
  const std::function<void(std::size_t)>& progress_;
  std::vector<Life> lives_;
  EventQueue events_;
  Network network_;
  std::vector<int> flow_requests_;  // [flow]
  std::uint64_t network_changes_ = 0;
  bool watched_ = false;  // what this moment changes will be looked at
  std::vector<Worker> prefill_;
  std::vector<Worker> decode_;
  std::size_t prefill_turn_ = 0;
  std::size_t decode_turn_ = 0;
  std::size_t finished_ = 0;
  SimTime last_answer_ = 0;
  SimOutcome outcome_;
};

Status Simulation::add_workers(const ReplicaGroup& group, bool prefill,
                               std::vector<Worker>& workers) {
  if (group.count == 0) return {};
  const StepCost cost(group.gpu, setting_.model, group.parallel, setting_.kv, setting_.overheads);
  ReplicaLimits limits = group.limits;
  const double tokens = cost.tokens_in_memory(setting_.memory_share);
  limits.blocks = static_cast<int>(std::min(tokens / kBlockTokens, 1e9));
  const LayerWork& layer = setting_.model.layer;
  if (layer.heads % group.parallel.tensor != 0) {
    return invalid_argument("tp=" + std::to_string(group.parallel.tensor) + " does not divide " +
                            std::to_string(layer.heads) + " query heads");
  }
  if (group.parallel.pipeline > setting_.model.layers) {
    return invalid_argument("pp=" + std::to_string(group.parallel.pipeline) + " is more than " +
                            std::to_string(setting_.model.layers) + " layers");
  }
  if (limits.blocks < 1) {
    return invalid_argument("the weights, " +
                            std::to_string(static_cast<int>(setting_.model.weight_bytes() / 1e9)) +
                            " GB, leave no room for KV on " +
                            std::to_string(group.parallel.gpus()) + " x " + group.gpu.name);
  }
  for (int i = 0; i < group.count; ++i) {
    Worker worker{.replica = Replica(cost, group.parallel, limits), .wanting = {}};
    worker.port = network_.add_port(group.network_rate);
    worker.prefill = prefill;
    worker.free_at.resize(group.parallel.pipeline);
    workers.push_back(std::move(worker));
  }
  return {};
}

Status Simulation::prepare() {
  if (setting_.decode.count < 1) return invalid_argument("there is no replica that decodes");
  KVLANE_TRY(add_workers(setting_.prefill, true, prefill_));
  return add_workers(setting_.decode, false, decode_);
}

Result<SimOutcome> Simulation::run() {
  outcome_.records.resize(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    lives_[i].arrival = to_sim_time(requests_[i].arrival);
    events_.at(lives_[i].arrival, [this, i] { arrive(static_cast<int>(i)); });
  }
  while (events_.step()) {
    if (to_seconds(events_.now()) >= kSimSecondsMax) {
      return invalid_argument("the requests come, or are answered, over more than thirty years");
    }
  }
  if (finished_ != requests_.size()) {
    return internal_error("the simulation ended before " +
                          std::to_string(requests_.size() - finished_) + " requests did");
  }
  for (const std::vector<Worker>* const workers : {&prefill_, &decode_}) {
    for (const Worker& worker : *workers) {
      const Replica& replica = worker.replica;
      if (replica.blocks_free() == replica.limits().blocks && replica.queued_tokens() == 0)
        continue;
      return internal_error("the simulation lost blocks or tokens");
    }
  }
  outcome_.seconds = to_seconds(last_answer_);
  outcome_.prefill = use_of(prefill_);
  outcome_.decode = use_of(decode_);
  for (const Worker& worker : prefill_) outcome_.wire_bytes += network_.sent(worker.port);
  return std::move(outcome_);
}

GroupUse Simulation::use_of(const std::vector<Worker>& workers) const {
  GroupUse use;
  if (outcome_.seconds == 0) return use;
  for (const Worker& worker : workers) {
    const int blocks = worker.replica.limits().blocks;
    use.busy += worker.busy / outcome_.seconds / double(workers.size());
    use.busy_most = std::max(use.busy_most, worker.busy / outcome_.seconds);
    use.network += network_.busy(worker.port) / outcome_.seconds / double(workers.size());
    use.blocks_peak = std::max(use.blocks_peak, double(worker.replica.blocks_peak()) / blocks);
    use.tokens_in_memory = std::int64_t{blocks} * kBlockTokens;
    use.steps += worker.steps;
    use.found += worker.replica.found();
    use.stopped += worker.replica.stopped();
  }
  return use;
}

Worker& Simulation::pick(std::vector<Worker>& workers, std::size_t& turn) {
  std::vector<WorkerLoad> loads;
  for (const Worker& worker : workers) {
    loads.push_back({.queued_tokens = worker.replica.queued_tokens() + worker.arriving,
                     .requests = worker.replica.sequences() + worker.arriving_requests});
  }
  return workers[*pick_worker(loads, {}, turn++)];
}

bool Simulation::fits(const SimRequest& request) const {
  const auto room = [](const std::vector<Worker>& workers, int tokens) {
    return workers.empty() || blocks_for(tokens) <= workers.front().replica.limits().blocks;
  };
  const bool decodes = prefill_.empty() || travels(request);
  return room(prefill_, request.prompt_tokens) &&
         (!decodes || room(decode_, request.prompt_tokens + request.answer_tokens));
}

bool Simulation::travels(const SimRequest& request) const {
  return !prefill_.empty() && request.answer_tokens > 1;
}

void Simulation::arrive(int request) {
  const SimRequest& wish = requests_[request];
  if (!fits(wish)) {
    outcome_.records[request].fits = false;
    return finish(request);
  }
  Life& life = lives_[request];
  life.decode = &pick(decode_, decode_turn_);
  life.prefill = prefill_.empty() ? life.decode : &pick(prefill_, prefill_turn_);
  if (travels(wish)) {
    life.decode->arriving += wish.prompt_tokens;
    ++life.decode->arriving_requests;
  }
  life.prefill->replica.add({.request = request,
                             .known = wish.prompt_tokens,
                             .tokens_to_go = prefill_.empty() ? wish.answer_tokens : 1,
                             .names = wish.names});
  wake(*life.prefill);
}

void Simulation::wake(Worker& worker) {
  if (worker.computes) return;
  const auto step = std::make_shared<const SimStep>(worker.replica.begin());
  if (!step->parts.empty()) begin(worker, step);
}

void Simulation::begin(Worker& worker, const std::shared_ptr<const SimStep>& step) {
  worker.computes = true;
  worker.busy += to_seconds(step->stage);
  ++worker.steps;
  // Stages take steps in order: a short one behind a long one waits for it.
  SimTime end_time = events_.now();
  for (SimTime& free_at : worker.free_at) {
    end_time = std::max(end_time, free_at) + step->stage;
    free_at = end_time;
  }
  const SimTime whole = end_time - events_.now();
  const int parts = push_parts();
  for (const SimStep::Part& part : step->parts) {
    Life& life = lives_[part.request];
    SimTime& first = life.adopted < 0 ? life.started : life.resumed;
    const bool starts = first < 0;
    if (starts) first = events_.now();
    (life.answered < 0 ? life.prefilled : life.decoded) += step->time;
    if (!setting_.push_whole || part.answers) life.leaving += parts;
    life.last = life.last || part.answers;
    if (worker.prefill && starts && part.context > 0 && !setting_.push_whole) {
      // What was found leaves behind the first stage: others may still have it in later ones.
      ++life.leaving;
      events_.after(step->stage, [this, part] { send(part.request, part.context); });
    }
  }
  // Events of one time happen in the order in which they are added here: what a step computed is
  // there before it ends, and it ends before the next one begins.
  if (worker.prefill) {
    for (int i = 1; i <= parts; ++i) {
      events_.after(i == parts ? whole : whole / parts * i,
                    [=, this] { push(*step, 1.0 / parts); });
    }
  }
  events_.after(whole, [=, this, &worker] { end(worker, *step); });
  events_.after(step->stage, [this, &worker] {
    worker.computes = false;
    wake(worker);
  });
}

void Simulation::end(Worker& worker, const SimStep& step) {
  const StepOutcome outcome = worker.replica.end(step);
  for (const int request : outcome.answered) {
    if (lives_[request].answered < 0) lives_[request].answered = events_.now();
  }
  for (const int request : outcome.ended) {
    if (!worker.prefill || !travels(requests_[request])) finish(request);
  }
  grant(worker);
  wake(worker);
}

void Simulation::push(const SimStep& step, double share) {
  for (const SimStep::Part& part : step.parts) {
    if (setting_.push_whole && !part.answers) continue;
    send(part.request,
         setting_.push_whole ? requests_[part.request].prompt_tokens : share * part.tokens);
  }
}

void Simulation::send(int request, double tokens) {
  if (!travels(requests_[request])) return;
  const double values = tokens * setting_.model.layers * setting_.model.kv_values();
  const double encode = lives_[request].prefill->replica.cost().encode(values);
  if (encode == 0) return leave(request, values);
  events_.after(to_sim_time(encode), [this, request, values] { leave(request, values); });
}

void Simulation::leave(int request, double values) {
  Life& life = lives_[request];
  const double bytes = values / setting_.model.kv_values() * setting_.kv.wire_bytes;
  life.values = values;
  if (--life.leaving == 0 && life.last) life.left = events_.now();
  if (life.granted >= 0) {
    network_.add_bytes(events_.now(), life.flow, bytes);
    return watch_network();
  }
  if (life.held == 0) life.decode->wanting.push_back(request);
  life.held += bytes;
  grant(*life.decode);
}

void Simulation::grant(Worker& worker) {
  while (!worker.wanting.empty()) {
    const int request = worker.wanting.front();
    Life& life = lives_[request];
    // With room for the first token of the answer, which came with the prompt.
    if (!worker.replica.reserve(requests_[request].prompt_tokens + 1)) return;
    worker.wanting.pop_front();
    life.granted = events_.now();
    life.flow = network_.open({life.prefill->port, worker.port, setting_.flow_rate_max});
    flow_requests_.resize(std::max<std::size_t>(flow_requests_.size(), life.flow + 1));
    flow_requests_[life.flow] = request;
    network_.add_bytes(events_.now(), life.flow, life.held);
    watch_network();
  }
}

// Rates change: what was expected before is void. Once for all that happens in this moment.
void Simulation::watch_network() {
  if (watched_) return;
  watched_ = true;
  events_.after(0, [this] {
    watched_ = false;
    const std::uint64_t change = ++network_changes_;
    const std::optional<SimTime> time = network_.next_dry();
    if (!time) return;
    events_.at(*time, [this, change] {
      if (change == network_changes_) carry();
    });
  });
}

void Simulation::carry() {
  for (const int flow : network_.advance(events_.now())) {
    const int request = flow_requests_[flow];
    Life& life = lives_[request];
    if (life.left < 0) continue;  // more will come
    life.crossed = events_.now();
    network_.close(flow);
    // What came before was decoded while this part was on its way.
    const double decode = life.decode->replica.cost().decode(life.values);
    events_.after(to_sim_time(decode), [this, request] { adopt(request); });
  }
  watch_network();
}

void Simulation::adopt(int request) {
  Life& life = lives_[request];
  const SimRequest& wish = requests_[request];
  life.adopted = events_.now();
  life.decode->arriving -= wish.prompt_tokens;
  --life.decode->arriving_requests;
  life.decode->replica.adopt({.request = request,
                              .known = wish.prompt_tokens + 1,
                              .computed = wish.prompt_tokens,
                              .tokens_to_go = wish.answer_tokens - 1});
  wake(*life.decode);
}

TimeAccount Simulation::account(const Life& life) const {
  TimeAccount account;
  const auto between = [](SimTime start, SimTime end) { return to_seconds(end - start); };
  account.queue = between(life.arrival, life.started);
  account.prefill = between(life.started, life.answered);
  SimTime decoding = life.answered;
  if (life.adopted >= 0) {
    const SimTime ready = std::max(life.left, life.granted);
    account.encode = between(life.answered, life.left);
    account.wait_for_memory = between(life.left, ready);
    account.transfer = between(ready, life.crossed);
    account.decode_codec = between(life.crossed, life.adopted);
    account.queue += between(life.adopted, life.resumed);
    decoding = life.resumed;
  }
  account.decode = between(decoding, events_.now());
  // Steps that overlap in a pipeline have longer sums than the time they took together.
  const auto part_of = [](double whole, const StepTime& sum) {
    return sum.total() == 0 ? 0 : std::min(1.0, whole / sum.total());
  };
  const double prefill = part_of(account.prefill, life.prefilled);
  account.prefill_attention = prefill * life.prefilled.attention;
  account.prefill_quantise = prefill * life.prefilled.seal;
  account.prefill_dequantise = prefill * life.prefilled.open;
  const double decode = part_of(account.decode, life.decoded);
  account.decode_attention = decode * life.decoded.attention;
  account.decode_dequantise = decode * life.decoded.open;
  return account;
}

void Simulation::finish(int request) {
  SimRecord& record = outcome_.records[request];
  const Life& life = lives_[request];
  if (record.fits) {
    last_answer_ = events_.now();
    record.first_token = to_seconds(life.answered - life.arrival);
    record.completion = to_seconds(events_.now() - life.arrival);
    record.account = account(life);
  }
  ++finished_;
  if (progress_) progress_(finished_);
}

}  // namespace

Result<SimOutcome> simulate(const ClusterSetting& setting, std::span<const SimRequest> requests,
                            const std::function<void(std::size_t)>& progress) {
  Simulation simulation(setting, requests, progress);
  KVLANE_TRY(simulation.prepare());
  return simulation.run();
}

}  // namespace kvlane
