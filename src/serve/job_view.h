// SPDX-License-Identifier: Apache-2.0
// Jobs as clients see them: OpenAI's video object with this engine's additions.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "run/request.h"
#include "serve/job.h"
#include "serve/live_job.h"

namespace magi {

struct JobContext {
  std::optional<LiveState> live;    ///< of a running one
  std::int64_t queue_position = 0;  ///< from 1 while it waits
  std::int64_t keep_seconds = 0;    ///< after its end
};

nlohmann::json video_object(const Job& job, const GenerationDefaults& defaults, const JobContext& context);

/// What `progress` events carry.
nlohmann::json progress_object(JobStatus status, const JobContext& context);

/// For answers and logs: text that came from outside cannot break it.
std::string dump(const nlohmann::json& json);

}  // namespace magi
