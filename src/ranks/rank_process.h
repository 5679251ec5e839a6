// One rank: it joins the head of its worker, computes its part of every pass, and keeps its part of
// the KV cache (spec/ranks.md).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "model/model.h"
#include "quant/kv_format.h"
#include "store/store.h"
#include "transfer/endpoint.h"
#include "transfer/link.h"

namespace kvlane {

struct RankProcessOptions {
  Address head;
  TransferId key;
  Address bind{"127.0.0.1", 0};  // for links of other ranks
  std::string advertised_host;   // what they are told; the bound host when empty
  Seconds patience{120};         // without a word of a peer that has to say something
  // The format that the head names, in all layers: make_rank_format() of this part's KV heads. Null
  // for "bf16".
  std::function<Result<std::shared_ptr<const KvFormat>>(const std::string& format)> make_format;
  // This rank's own store, for passes of so many rows; called once, when the head has one. Empty:
  // this rank has none.
  std::function<Result<std::shared_ptr<Store>>(int rows_max)> open_store;
};

// Serves until the head is gone: ok when it left in order, else why. The model is the rank's part.
// Blocks; call it once, on the thread that computes.
Status run_rank(Network& network, const Model& model, const RankProcessOptions& options);

}  // namespace kvlane
