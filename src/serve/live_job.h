// SPDX-License-Identifier: Apache-2.0
// How far the running job is: written by the thread that computes, read by those that answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/progress.h"

namespace magi {

struct LiveState {
  std::string stage;  ///< empty before the first
  std::int64_t step = 0, steps = 0;
  int percent = 0;
  std::optional<double> seconds_left;

  bool operator==(const LiveState&) const = default;
};

/// The progress of one job.
class LiveJob final : public Progress {
 public:
  /// `refines`: whether there is a refiner stage. `changed`: called by the computing thread after a change
  /// worth telling, twice a second at most.
  LiveJob(std::string id, bool refines, std::function<void(const LiveState&)> changed);

  const std::string& id() const { return id_; }
  LiveState state() const;
  /// The last finished frame of preview, as an event's JSON; empty: none yet.
  std::string preview() const;
  void set_preview(std::string json);

  void stage(std::string_view name, std::int64_t total) override;
  void advance(std::int64_t done) override;

 private:
  using Clock = std::chrono::steady_clock;
  void update(std::int64_t done, bool new_stage);

  const std::string id_;
  const bool refines_;
  const std::function<void(const LiveState&)> changed_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point stage_start_, told_;
  std::int64_t stage_first_ = 0;  ///< where the stage began: a run that was taken up does not begin at 0
  bool counting_ = false;
  mutable std::mutex mutex_;
  LiveState state_;
  std::string preview_;
};

}  // namespace magi
