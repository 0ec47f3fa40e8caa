// SPDX-License-Identifier: Apache-2.0
// One model on one problem, ready to run steps.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "bench/bench.h"
#include "bench/ranks.h"
#include "model/placement.h"
#include "ops/transfer.h"

namespace magi {

struct Workload {
  nlohmann::json sizes;
  /// Runs steps from the same start each time, tells the seconds of each, returns the result of the last.
  using OnStep = std::function<void(double seconds)>;
  std::function<std::vector<Tensor>(std::int64_t steps, const OnStep&)> run;
  RankShare share = {};                                     ///< of this rank
  std::function<TransferTimes()> take_transfer_times = {};  ///< empty where nothing is streamed
  Placement placement = {};                                 ///< of the layers
  std::optional<std::size_t> scratch_bytes = {};            ///< where a dry run told
};

/// Loads or makes the weights. `ops` and `progress` must outlive the workload.
Workload make_workload(Ops& ops, const BenchOptions& options, const Parallel& parallel, Progress& progress);

}  // namespace magi
