// SPDX-License-Identifier: Apache-2.0
// How long a step of a request's preview would take over many GPUs, whether it would fit, and which degrees
// to use: counted, not run (bench/rank_model.h; docs/ranks.md compares it with runs).
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/rank_model.h"
#include "run/components.h"
#include "run/engine_options.h"
#include "run/request.h"

namespace magi {

struct GpuChoice {
  RankPrediction prediction;
  double scratch_bytes = 0;  ///< of the busiest GPU: what it holds beside weights
  double bytes = 0;          ///< of a GPU: weights and scratch
  bool fits = false;
  bool is_default = false;  ///< what the program takes without --sp, --cfg and --ep
};

struct GpuCount {
  int gpus = 0;
  std::string network;
  std::vector<GpuChoice> choices;  ///< all; the quickest first, those that do not fit last
  /// The quickest that fits; null where none does.
  const GpuChoice* recommended() const {
    return !choices.empty() && choices.front().fits ? &choices.front() : nullptr;
  }
};

struct GpuPlan {
  std::vector<std::int64_t> branch_rows;
  double expert_bits = 16;
  std::size_t bytes_a_gpu = 0;
  double alone_seconds = 0;  ///< of one GPU that holds everything, fit or not
  std::vector<GpuCount> counts;
};

inline constexpr int kMostGpus = 4096;
/// Scratch of the GPU's operations over the CPU's, whose dry run needs no build with CUDA: the most that was
/// measured (2.8 GB at 272p; at 540p 1.00 to 1.05 times the CPU's, on one GPU and on two).
inline constexpr double kGpuScratch = 1.35;
inline constexpr std::size_t kH200Bytes = std::size_t{139} << 30;

/// Every count with every network. Throws Error for other counts than 1 to kMostGpus, unknown networks and
/// arithmetic other than bf16.
GpuPlan plan_gpus(const CheckpointRoot& root, const Request& request, const EngineOptions& options,
                  const std::vector<int>& gpus, const std::vector<std::string>& networks,
                  std::size_t bytes_a_gpu);

/// For people: the best few choices of each count.
std::string to_text(const GpuPlan& plan);
nlohmann::json to_json(const GpuPlan& plan);

}  // namespace magi
