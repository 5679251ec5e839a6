// Lists of a pass, and their places in one buffer.
// SPDX-License-Identifier: Apache-2.0
#include "model/device_pass.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "model/alignment.h"
#include "plan/coded_decode_units.h"

namespace kvlane {
namespace {

template <class T>
int count_of(const std::vector<T>& list) {
  return static_cast<int>(list.size());
}

}  // namespace

int padded_count(int count) {
  int power = 1;
  while (2 * power <= count) power *= 2;
  if (count <= power) return count <= 0 ? 0 : power;
  return count <= power + power / 2 ? power + power / 2 : 2 * power;
}

void DevicePass::arrange(std::span<const ForwardSpan> spans, const DecodeShape& decode,
                         const PrefillShape& prefill, const Coded* coded) {
  std::vector<int> last_rows(spans.size());
  first_rows_.resize(spans.size());
  std::vector<std::int32_t> decode_tokens;
  std::vector<PrefillSpan> prefill_spans;
  for (auto* list : {&tokens_, &positions_, &sequences_, &tables_, &take_, &sealed_tables_}) {
    list->clear();
  }
  seals_.clear();
  sealed_units_.clear();
  shape_ = {};
  for (const ForwardSpan& span : spans) {
    const int tokens = span.table->tokens() + static_cast<int>(span.tokens.size());
    shape_.table_stride = std::max(shape_.table_stride, blocks_for(tokens));
  }
  int sequence = 0;
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const ForwardSpan& span = spans[i];
      const int count = static_cast<int>(span.tokens.size());
      if ((count == 1) != decoding) continue;
      if (decoding) {
        decode_tokens.push_back(span.table->tokens() + 1);
      } else {
        prefill_spans.push_back({span.table->tokens(), count, shape_.rows});
      }
      append_rows(span, sequence++, coded != nullptr);
      if (coded != nullptr) append_seals(span);
      first_rows_[i] = std::exchange(shape_.rows, shape_.rows + count);
      last_rows[i] = shape_.rows - 1;
    }
  }
  take(spans, last_rows);
  plan_decoding(decode_tokens, decode, coded);
  sealed_blocks_ = count_of(seals_);
  prefill_units_ = plan_prefill(prefill_spans, prefill);
  shape_.decoding = count_of(decode_tokens);
  shape_.take = taken();
  shape_.chooses = logits_ < taken();
  shape_.decode_units = count_of(decode_plan_.units);
  shape_.states = decode_plan_.first_state.back();
  shape_.prefill_units = count_of(prefill_units_);
  shape_.sealed_units = count_of(sealed_units_);
  shape_.seals = sealed_blocks_;
  shape_.narrow_pieces = count_of(narrow_pieces_);
}

void DevicePass::plan_decoding(std::span<const std::int32_t> tokens, const DecodeShape& decode,
                               const Coded* coded) {
  if (coded == nullptr) {
    decode_plan_ = plan_decode(tokens, decode);
  } else if (coded->narrow != nullptr) {
    NarrowCodedPlan plan = plan_narrow_coded_decode(tokens, coded->window, decode);
    decode_plan_ = {std::move(plan.rows), std::move(plan.first_state)};
    plan_narrow(std::move(plan.sealed), decode.heads, *coded->narrow);
  } else {
    CodedDecodePlan plan = plan_coded_decode(tokens, coded->window, coded->sealed, decode);
    decode_plan_ = {std::move(plan.rows), std::move(plan.first_state)};
    sealed_units_ = std::move(plan.sealed);
  }
}

void DevicePass::plan_narrow(std::vector<NarrowSpan> spans, int heads, const NarrowLayers& layers) {
  if (!narrow_first_.empty() && spans == narrow_spans_) {
    narrow_pieces_.resize(narrow_first_.back());  // without padding
    return;
  }
  narrow_spans_ = std::move(spans);
  narrow_pieces_.clear();
  narrow_first_.clear();
  for (std::size_t layer = 0; layer < layers.machines.size(); ++layer) {
    const NarrowDecodePlan& plan =
        narrow_planner_.plan(narrow_spans_, layers.of_layer(layer),
                             {.heads = heads, .machines = layers.machines[layer]});
    const auto before = static_cast<std::int32_t>(narrow_pieces_.size());
    narrow_pieces_.insert(narrow_pieces_.end(), plan.pieces.begin(), plan.pieces.end());
    for (const std::int32_t first : plan.first) narrow_first_.push_back(before + first);
  }
}

// Rows whose logits are wanted, then those of which a token will do: so one copy fetches logits.
void DevicePass::take(std::span<const ForwardSpan> spans, const std::vector<int>& last_rows) {
  int wanted = 0;
  for (const ForwardSpan& span : spans) wanted += span.logits;
  places_.resize(wanted);
  for (const bool best : {false, true}) {
    int index = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      for (int back = spans[i].logits - 1; back >= 0; --back, ++index) {
        if (spans[i].best_will_do != best) continue;
        places_[index] = count_of(take_);
        take_.push_back(last_rows[i] - back);
      }
    }
    if (!best) logits_ = count_of(take_);
  }
}

void DevicePass::append_rows(const ForwardSpan& span, int sequence, bool coded) {
  const int position = span.table->tokens();
  const int count = static_cast<int>(span.tokens.size());
  tokens_.insert(tokens_.end(), span.tokens.begin(), span.tokens.end());
  for (int i = 0; i < count; ++i) positions_.push_back(position + i);
  sequences_.insert(sequences_.end(), count, sequence);
  const int blocks = blocks_for(position + count);
  for (int i = 0; i < shape_.table_stride; ++i) {
    tables_.push_back(i < blocks ? std::max(0, span.table->rows_id(i)) : 0);
    if (coded) sealed_tables_.push_back(i < blocks ? span.table->id(i) : 0);
  }
}

void DevicePass::append_seals(const ForwardSpan& span) {
  const int position = span.table->tokens();
  const int end = (position + static_cast<int>(span.tokens.size())) / kBlockTokens;
  for (int block = position / kBlockTokens; block < end; ++block) {
    seals_.push_back({span.table->rows_id(block), span.table->id(block)});
  }
}

void DevicePass::pad_tables(std::vector<std::int32_t>& tables, int sequences, int stride) const {
  std::vector<std::int32_t> padded(std::size_t(shape_.rows) * shape_.table_stride, 0);
  for (int i = 0; i < sequences; ++i) {
    std::copy_n(tables.begin() + std::ptrdiff_t(i) * stride, stride,
                padded.begin() + std::ptrdiff_t(i) * shape_.table_stride);
  }
  tables = std::move(padded);
}

void DevicePass::pad(int rows_max, int logits_max, int heads) {
  const int sequences = shape_.decoding, stride = shape_.table_stride;
  shape_.rows = shape_.decoding = std::min(padded_count(shape_.rows), rows_max);
  shape_.table_stride = padded_count(stride);
  shape_.take = std::min(padded_count(shape_.take), logits_max);
  shape_.decode_units = padded_count(shape_.decode_units);
  shape_.states = padded_count(shape_.states / heads) * heads;
  shape_.sealed_units = padded_count(shape_.sealed_units);
  shape_.seals = std::min(padded_count(shape_.seals), rows_max);
  shape_.narrow_pieces = padded_count(shape_.narrow_pieces);
  tokens_.resize(shape_.rows, -1);
  positions_.resize(shape_.rows, -1);
  sequences_.resize(shape_.rows, 0);
  take_.resize(shape_.take, -1);
  pad_tables(tables_, sequences, stride);
  if (!sealed_tables_.empty()) pad_tables(sealed_tables_, sequences, stride);
  // Without tokens and queries: such a unit reads and writes nothing.
  decode_plan_.units.resize(shape_.decode_units, {});
  sealed_units_.resize(shape_.sealed_units, {});
  seals_.resize(shape_.seals, {-1, -1});
  narrow_pieces_.resize(shape_.narrow_pieces, {});
  decode_plan_.first_state.resize(shape_.decoding + 1, decode_plan_.first_state.back());
}

std::size_t DevicePass::bytes() const {
  std::size_t bytes = 0;
  const auto add = [&](const auto&... lists) {
    ((bytes += device_aligned(lists.size() * sizeof(lists[0]))), ...);
  };
  add(tokens_, positions_, sequences_, tables_, take_, decode_plan_.units, decode_plan_.first_state,
      prefill_units_, sealed_tables_, sealed_units_, seals_, narrow_pieces_, narrow_first_);
  return bytes;
}

DevicePass::Inputs DevicePass::write(std::byte* host, const std::byte* device) const {
  std::size_t at = 0;
  const auto put = [&](const auto& list) {
    using T = typename std::decay_t<decltype(list)>::value_type;
    const std::size_t bytes = list.size() * sizeof(T);
    if (bytes > 0) std::memcpy(host + at, list.data(), bytes);
    const auto* const there = reinterpret_cast<const T*>(device + at);
    at += device_aligned(bytes);
    return there;
  };
  // In this order, as bytes() has it.
  return {.tokens = put(tokens_),
          .positions = put(positions_),
          .sequences = put(sequences_),
          .tables = put(tables_),
          .take = put(take_),
          .decode_units = put(decode_plan_.units),
          .first_state = put(decode_plan_.first_state),
          .prefill_units = put(prefill_units_),
          .sealed_tables = put(sealed_tables_),
          .sealed_units = put(sealed_units_),
          .seals = put(seals_),
          .narrow_pieces = put(narrow_pieces_),
          .narrow_first = put(narrow_first_)};
}

}  // namespace kvlane
