// SPDX-License-Identifier: Apache-2.0
#include "serve/job_view.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "serve/video_request.h"

namespace magi {
namespace {

using Json = nlohmann::json;

Json time_or_null(std::int64_t seconds) {
  return seconds == 0 ? Json() : Json(seconds);
}

Json text_or_null(const std::optional<std::string>& text) {
  return text ? Json(*text) : Json();
}

/// "10", "0.4"
std::string seconds_text(double seconds) {
  return fmt::format("{:g}", seconds);
}

std::string size_text(const Request& request) {
  const Size size = request.refine.value_or(Size{request.width, request.height});
  return fmt::format("{}x{}", size.width, size.height);
}

Json error_object(const Job& job) {
  if (!job.error_code) return nullptr;
  return {{"code", *job.error_code}, {"message", job.error_message.value_or("")}};
}

}  // namespace

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json progress_object(JobStatus status, const JobContext& context) {
  Json json{{"status", to_string(status)},
            {"progress", status == JobStatus::completed ? 100 : 0},
            {"stage", nullptr},
            {"step", nullptr},
            {"steps", nullptr},
            {"seconds_left", nullptr},
            {"queue_position", nullptr}};
  if (context.queue_position > 0) json["queue_position"] = context.queue_position;
  if (!context.live || status != JobStatus::in_progress) return json;
  const LiveState& live = *context.live;
  json["progress"] = live.percent;
  if (live.stage.empty()) return json;
  json["stage"] = live.stage;
  json["step"] = live.step;
  json["steps"] = live.steps;
  if (live.seconds_left) json["seconds_left"] = std::round(10 * *live.seconds_left) / 10;
  return json;
}

Json video_object(const Job& job, const GenerationDefaults& defaults, const JobContext& context) {
  const VideoPlan plan = plan_video(job.request, defaults, {}, {});
  const Request& request = plan.request;
  const Json fields = Json::parse(job.request);
  Json json = progress_object(job.status, context);
  json.update({{"id", job.id},
               {"object", "video"},
               {"model", kModelName},
               {"created_at", job.created_at},
               {"started_at", time_or_null(job.started_at)},
               {"completed_at", time_or_null(job.completed_at)},
               {"expires_at", nullptr},
               {"prompt", request.prompt},
               {"enhanced_prompt", text_or_null(job.enhanced)},
               {"seconds", seconds_text(request.seconds)},
               {"size", size_text(request)},
               {"remixed_from_video_id", nullptr},
               {"error", error_object(job)},
               {"seed", request.seed},
               {"num_inference_steps", request.steps},
               {"negative_prompt", text_or_null(request.negative_prompt)},
               {"cfg_video", request.guidance.video_scale},
               {"cfg_audio", request.guidance.audio_scale},
               {"preset", fields.value("preset", Json())},
               {"audio", request.audio},
               {"enhance", plan.enhance},
               {"priority", job.priority},
               {"input_reference", job.has_reference},
               {"bytes", job.bytes > 0 ? Json(job.bytes) : Json()}});
  if (is_over(job.status) && context.keep_seconds > 0)
    json["expires_at"] = job.completed_at + context.keep_seconds;
  return json;
}

}  // namespace magi
