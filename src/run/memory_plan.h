// SPDX-License-Identifier: Apache-2.0
// What each stage of a clip will hold on the device and on the host, what of its weights stays, streams or is
// read from disk, and how long a step takes: known before anything is loaded, and what the engine then does.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/placement.h"
#include "run/components.h"
#include "run/engine_options.h"
#include "run/stage_memory.h"
#include "run/step_time.h"

namespace magi {

/// What the engine may hold in all.
struct MemoryLimits {
  std::size_t device = 0;  ///< of a device that is not the host
  std::size_t host = 0;
  bool device_given = false, host_given = false;  ///< as budgets; else what is free now
};

/// Budgets less what a process takes without weights (a GPU's context and libraries; code and libraries on
/// the host), or what is free, of the host's each rank of a machine an equal share.
MemoryLimits memory_limits(const EngineOptions& options);
/// Has every allocation meet the limits that were given.
void enforce(const MemoryLimits& limits, Device device);

struct StagePlan {
  StageMemory memory;
  Placement placement;           ///< of the layers, where there are any
  std::size_t device_bytes = 0;  ///< at most, while the stage computes
  std::size_t host_bytes = 0;
  std::size_t streamed_bytes = 0;  ///< of a pass through the layers, from host memory
  std::size_t read_bytes = 0;      ///< … from disk
  int steps = 0;                   ///< of the request; 1: a single call
  StepTime step;
};

/// Where a stage's layers go within `limits`. `loading_bytes`: of the checkpoint, the most that is in host
/// memory while a layer is read. Throws Error, saying what to allow, where the stage does not fit.
StagePlan plan_stage(const StageMemory& memory, const MemoryLimits& limits, Device device,
                     std::size_t loading_bytes = 0);

struct MemoryPlan {
  Device device;
  std::string device_name;
  MemoryLimits limits;
  std::string basis;  ///< of the times
  std::vector<StagePlan> stages;
  std::vector<std::string> impossible;  ///< stages that do not fit, and why
};

MemoryPlan plan_memory(const CheckpointRoot& root, const Request& request, const EngineOptions& options);
/// A table for people.
std::string to_text(const MemoryPlan& plan);
nlohmann::json to_json(const MemoryPlan& plan);

}  // namespace magi
