// SPDX-License-Identifier: Apache-2.0
// A job as the database holds it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace magi {

enum class JobStatus : std::uint8_t { queued, in_progress, completed, failed, cancelled };

/// "queued", "in_progress", …
const char* to_string(JobStatus status);
/// Whether nothing more will happen to it.
inline bool is_over(JobStatus status) {
  return status != JobStatus::queued && status != JobStatus::in_progress;
}

/// Times in seconds since 1970; 0: not yet.
struct Job {
  std::string id;     ///< "video_" and 32 hexadecimal digits, generated here
  std::string owner;  ///< Keys' name of the key that made it; empty: made without keys
  JobStatus status = JobStatus::queued;
  std::int64_t priority = 0;
  std::int64_t created_at = 0, started_at = 0, completed_at = 0;
  std::string request;                    ///< JSON: what VideoRequest keeps
  bool has_reference = false;             ///< a picture lies beside
  std::optional<std::string> enhanced;    ///< the prompt that a language model wrote
  std::optional<std::string> error_code;  ///< of a failed one
  std::optional<std::string> error_message;
  std::int64_t attempts = 0;   ///< starts since it last got any further
  std::int64_t bytes = 0;      ///< of the files of a completed one
  std::uint64_t revision = 0;  ///< of the store when this was read: the same one, the same jobs; 0: unknown
};

/// A new, unguessable id.
std::string new_job_id();
/// Whether `text` could be one: nothing else is ever looked up or made part of a file's name.
bool is_job_id(const std::string& text);

}  // namespace magi
