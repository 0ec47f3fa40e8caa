// SPDX-License-Identifier: Apache-2.0
#include "serve/job.h"

#include <algorithm>

#include "serve/secret.h"

namespace magi {
namespace {

constexpr std::string_view kPrefix = "video_";
constexpr std::size_t kIdBytes = 16;

}  // namespace

const char* to_string(JobStatus status) {
  switch (status) {
    case JobStatus::queued:
      return "queued";
    case JobStatus::in_progress:
      return "in_progress";
    case JobStatus::completed:
      return "completed";
    case JobStatus::failed:
      return "failed";
    case JobStatus::cancelled:
      break;
  }
  return "cancelled";
}

std::string new_job_id() {
  return std::string(kPrefix) + to_hex(random_bytes(kIdBytes));
}

bool is_job_id(const std::string& text) {
  return text.size() == kPrefix.size() + 2 * kIdBytes && text.starts_with(kPrefix) &&
         std::ranges::all_of(text.substr(kPrefix.size()),
                             [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace magi
