// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace magi {

/// What the worker has measured since it started.
struct WorkerFigures {
  std::uint64_t completed = 0, failed = 0, cancelled = 0;
  std::uint64_t steps = 0;
  double step_seconds = 0;  ///< of all steps
  double job_seconds = 0;   ///< of completed jobs
  std::uint64_t previews = 0, ahead = 0;
  double preview_seconds = 0;
};

}  // namespace magi
