// Greedy choice for kernels: the most likely token of each row of logits, and its log-probability.
// As sample_token() with temperature 0 and token_logprobs() have it: equal logits rank by lower id,
// NaN is as if it were not there, and token 0 where nothing else is.
//
// Vocabularies are long and rows may be few, so blocks of threads take runs of 8192 tokens and
// leave a part each, which a warp a row puts together. A logit is read once: it stays in a register
// until the best of its run is known, from which exponentials count. No sum depends on time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/device_float.h"
#include "ops/greedy_batch.h"

namespace kvlane {

// That read a part: 8 accesses of 16 bytes each.
inline constexpr int kGreedyThreads = 256;

inline constexpr int kGreedyWarps = kGreedyThreads / gpu::kWarpThreads;

struct GreedyShared {
  float best[kGreedyWarps];
  std::int32_t token[kGreedyWarps];
  float sum[kGreedyWarps];
};

namespace greedy {

using namespace gpu;

inline constexpr int kAccesses = kGreedyTokens / (4 * kGreedyThreads);

struct Best {
  float logit;
  std::int32_t token;
};

KVLANE_DEVICE Best none() { return {minus_infinity(), GreedyPart::kNone}; }
KVLANE_DEVICE bool finite(float x) { return x - x == 0; }

// Of which NaN is the smaller one.
KVLANE_DEVICE float larger(float a, float b) { return std::fmax(a, b); }
KVLANE_DEVICE std::int32_t lower(std::int32_t a, std::int32_t b) { return a < b ? a : b; }

// Takes in another one, of a higher id than all before it.
KVLANE_DEVICE void consider_next(Best next, Best& best) {
  if (next.logit > best.logit || (next.logit == best.logit && best.token == GreedyPart::kNone)) {
    best = next;
  }
}

// Of all lanes, in each of them: the largest logit first, then the lowest id that has it.
template <class Thread>
KVLANE_DEVICE Best best_of_lanes(Thread& t, Best own) {
  float logit = own.logit;
  KVLANE_UNROLL
  for (int by = 1; by < kWarpThreads; by *= 2) {
    logit = larger(logit, float_of(t.shuffle(bits_of(logit), t.lane() ^ by)));
  }
  std::int32_t token = own.logit == logit ? own.token : GreedyPart::kNone;
  KVLANE_UNROLL
  for (int by = 1; by < kWarpThreads; by *= 2) {
    const std::uint32_t other = t.shuffle(static_cast<std::uint32_t>(token), t.lane() ^ by);
    token = lower(token, static_cast<std::int32_t>(other));
  }
  return {logit, token};
}

// How likely a token is beside the best one, whose logit is finite.
KVLANE_DEVICE float relative(float logit, float best) {
  constexpr float kLog2E = 1.44269504F;
  return power_of_two((logit - best) * kLog2E);
}

// The first token of one of the thread's accesses.
template <class Thread>
KVLANE_DEVICE int first_token(const Thread& t, int part, int access) {
  return part * kGreedyTokens + 4 * (access * kGreedyThreads + t.index());
}

// The thread's logits; NaN behind the last one. A vocabulary that is no multiple of four has rows
// that begin anywhere.
template <class Thread>
KVLANE_DEVICE void load_logits(const Thread& t, const float* row, int part, int vocab,
                               Floats4 (&x)[kAccesses]) {
  const float nan = float_of(0x7FFFFFFF);
  if (vocab % 4 == 0) {
    KVLANE_UNROLL
    for (int i = 0; i < kAccesses; ++i) {
      const int at = first_token(t, part, i);
      x[i] = at < vocab ? load_floats_once(row + at) : Floats4{{nan, nan, nan, nan}};
    }
    return;
  }
  KVLANE_UNROLL
  for (int i = 0; i < 4 * kAccesses; ++i) {
    const int at = first_token(t, part, i / 4) + i % 4;
    x[i / 4].x[i % 4] = at < vocab ? row[at] : nan;
  }
}

// Of what the thread has read.
template <class Thread>
KVLANE_DEVICE Best best_of_thread(const Thread& t, int part, const Floats4 (&x)[kAccesses]) {
  Best best = none();
  KVLANE_UNROLL
  for (int i = 0; i < 4 * kAccesses; ++i) best.logit = larger(best.logit, x[i / 4].x[i % 4]);
  // Backwards, so that the first one stays.
  KVLANE_UNROLL
  for (int i = 4 * kAccesses - 1; i >= 0; --i) {
    if (x[i / 4].x[i % 4] == best.logit) best.token = first_token(t, part, i / 4) + i % 4;
  }
  return best;
}

// Of the block, in each of its threads. The part of `shared` that it uses is used for nothing else.
template <class Thread>
KVLANE_DEVICE Best best_of_block(Thread& t, Best own, GreedyShared& shared) {
  const Best of_warp = best_of_lanes(t, own);
  if (t.lane() == 0) {
    shared.best[t.warp()] = of_warp.logit;
    shared.token[t.warp()] = of_warp.token;
  }
  t.sync_block();
  Best best = none();
  KVLANE_UNROLL
  for (int warp = 0; warp < kGreedyWarps; ++warp) {
    best.logit = larger(best.logit, shared.best[warp]);
  }
  KVLANE_UNROLL
  for (int warp = 0; warp < kGreedyWarps; ++warp) {
    if (shared.best[warp] == best.logit) best.token = lower(best.token, shared.token[warp]);
  }
  return best;
}

// The same, but in the first thread alone.
template <class Thread>
KVLANE_DEVICE float sum_of_block(Thread& t, float own, GreedyShared& shared) {
  float sum = sum_of_lanes(t, own);
  if (t.lane() == 0) shared.sum[t.warp()] = sum;
  t.sync_block();
  if (t.index() != 0) return 0;
  sum = 0;
  KVLANE_UNROLL
  for (int warp = 0; warp < kGreedyWarps; ++warp) sum += shared.sum[warp];
  return sum;
}

}  // namespace greedy

// By all threads of a block of kGreedyThreads: part `part` of row `row`.
template <class Thread>
KVLANE_DEVICE void scan_logits(Thread& t, const GreedyRows& rows, int row, int part,
                               GreedyShared& shared) {
  using namespace greedy;
  Floats4 x[kAccesses];
  load_logits(t, rows.logits + std::size_t(row) * rows.vocab, part, rows.vocab, x);
  const Best best = best_of_block(t, best_of_thread(t, part, x), shared);
  float sum = 0;
  if (rows.logprobs != nullptr) {
    if (finite(best.logit)) {
      KVLANE_UNROLL
      for (int i = 0; i < 4 * kAccesses; ++i) {
        const float logit = x[i / 4].x[i % 4];
        if (logit <= best.logit) sum += relative(logit, best.logit);  // not NaN
      }
    }
    sum = sum_of_block(t, sum, shared);
  }
  if (t.index() != 0) return;
  rows.parts[std::size_t(row) * greedy_parts(rows.vocab) + part] = {best.logit, best.token, sum};
}

// By all lanes of a warp: row `row`.
template <class Thread>
KVLANE_DEVICE void choose_token(Thread& t, const GreedyRows& rows, int row) {
  using namespace greedy;
  const int count = greedy_parts(rows.vocab);
  const GreedyPart* const parts = rows.parts + std::size_t(row) * count;
  Best best = none();
  for (int i = t.lane(); i < count; i += kWarpThreads) {
    consider_next({parts[i].best, parts[i].token}, best);
  }
  best = best_of_lanes(t, best);
  if (t.lane() == 0) rows.tokens[row] = best.token == GreedyPart::kNone ? 0 : best.token;
  if (rows.logprobs == nullptr) return;
  float sum = 0;
  if (finite(best.logit)) {
    for (int i = t.lane(); i < count; i += kWarpThreads) {
      sum += parts[i].sum * relative(parts[i].best, best.logit);
    }
  }
  sum = sum_of_lanes(t, sum);
  if (t.lane() != 0) return;
  // Of an infinite logit: 0 where it can come, else -infinity.
  rows.logprobs[row] = finite(best.logit) ? 0 - std::log(sum) : best.logit > 0 ? 0 : best.logit;
}

}  // namespace kvlane
