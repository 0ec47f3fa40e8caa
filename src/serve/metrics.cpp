// SPDX-License-Identifier: Apache-2.0
#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "run/report.h"

namespace magi {
namespace {

void family(std::string& out, const char* name, const char* type, const char* help) {
  fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

template <typename T>
void single(std::string& out, const char* name, const char* type, const char* help, T value) {
  family(out, name, type, help);
  fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
}

}  // namespace

void Metrics::request(const std::string& route, int status, double seconds) {
  const std::lock_guard lock(mutex_);
  ++statuses_[{route, status}];
  Route& r = routes_[route];
  ++r.buckets[static_cast<std::size_t>(std::ranges::lower_bound(kBounds, seconds) - kBounds.begin())];
  r.seconds += seconds;
}

std::string Metrics::text(const JobStore::Counts& jobs, const WorkerFigures& worker, std::size_t listeners) {
  std::string out;
  const auto add = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  };
  family(out, "magi2_jobs", "gauge", "Jobs in the database by status");
  const std::pair<const char*, std::int64_t> by_status[] = {{"queued", jobs.queued},
                                                            {"in_progress", jobs.running},
                                                            {"completed", jobs.completed},
                                                            {"failed", jobs.failed},
                                                            {"cancelled", jobs.cancelled}};
  for (const auto& [status, count] : by_status) add("magi2_jobs{{status=\"{}\"}} {}\n", status, count);
  single(out, "magi2_files_bytes", "gauge", "Files of completed jobs", jobs.bytes);
  family(out, "magi2_jobs_ended_total", "counter", "Jobs that ended since the start");
  add("magi2_jobs_ended_total{{status=\"completed\"}} {}\n", worker.completed);
  add("magi2_jobs_ended_total{{status=\"failed\"}} {}\n", worker.failed);
  add("magi2_jobs_ended_total{{status=\"cancelled\"}} {}\n", worker.cancelled);
  single(out, "magi2_job_seconds_total", "counter", "Time of the completed jobs", worker.job_seconds);
  single(out, "magi2_steps_total", "counter", "Denoising steps", worker.steps);
  single(out, "magi2_step_seconds_total", "counter", "Time of the denoising steps", worker.step_seconds);
  single(out, "magi2_preview_frames_total", "counter", "Frames decoded from running latents",
         worker.previews);
  single(out, "magi2_preview_seconds_total", "counter", "Time of those frames", worker.preview_seconds);
  single(out, "magi2_texts_ahead_total", "counter", "Texts encoded while the job before was decoded",
         worker.ahead);
  single(out, "magi2_event_streams", "gauge", "Open event streams", listeners);
  single(out, "magi2_resident_peak_bytes", "gauge", "Highest resident memory of the running stage",
         peak_resident_bytes());

  const std::lock_guard lock(mutex_);
  family(out, "magi2_http_requests_total", "counter", "Answers by route and status");
  for (const auto& [key, count] : statuses_)
    add("magi2_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first, key.second, count);
  family(out, "magi2_http_seconds", "histogram", "From a request's headers to its answer");
  for (const auto& [route, r] : routes_) {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < kBounds.size(); ++i)
      add("magi2_http_seconds_bucket{{route=\"{}\",le=\"{}\"}} {}\n", route, kBounds[i],
          count += r.buckets[i]);
    count += r.buckets[kBounds.size()];
    add("magi2_http_seconds_bucket{{route=\"{}\",le=\"+Inf\"}} {}\n", route, count);
    add("magi2_http_seconds_sum{{route=\"{}\"}} {}\n", route, r.seconds);
    add("magi2_http_seconds_count{{route=\"{}\"}} {}\n", route, count);
  }
  return out;
}

}  // namespace magi
