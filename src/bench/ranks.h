// SPDX-License-Identifier: Apache-2.0
// What a step over ranks exchanged, and how well they shared it.
#pragma once

#include <nlohmann/json.hpp>

#include "comm/world.h"
#include "model/parallel.h"

namespace magi {

struct RankShare {
  RowRange rows;
  Share expert_heads;
};

/// Of one rank, over the steps that count: { "rank", "place", "rows", "expert_heads", "seconds" of each step,
/// and by collective "calls", "bytes_sent", "bytes_received", "seconds" and "exposed_seconds" a step }. At
/// rank 0 the list of all ranks, elsewhere an empty one.
nlohmann::json gather_rank_reports(const World& world, const Group& data, const RankShare& share,
                                   const std::vector<double>& seconds, std::int64_t counted_steps);

/// The slowest rank of each step.
std::vector<double> slowest(const nlohmann::json& ranks);

/// A table for people: each collective of the busiest rank, how much of it was hidden, the balance between
/// ranks. `mean`: of a step; `alone`: of one rank's step, 0 where it is not known.
std::string ranks_table(const nlohmann::json& ranks, double mean, double alone);

}  // namespace magi
