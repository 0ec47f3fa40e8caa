// SPDX-License-Identifier: Apache-2.0
// One model on one problem, ready to run steps.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/bench.h"
#include "bench/ranks.h"

namespace magi {

struct Workload {
  nlohmann::json sizes;
  /// Runs steps from the same start each time, tells the seconds of each, returns the result of the last.
  using OnStep = std::function<void(double seconds)>;
  std::function<std::vector<Tensor>(std::int64_t steps, const OnStep&)> run;
  RankShare share = {};  ///< of this rank
};

/// Loads or makes the weights. `ops` and `progress` must outlive the workload.
Workload make_workload(Ops& ops, const BenchOptions& options, const Parallel& parallel, Progress& progress);

}  // namespace magi
