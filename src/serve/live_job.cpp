// SPDX-License-Identifier: Apache-2.0
#include "serve/live_job.h"

#include <algorithm>
#include <array>

namespace magi {
namespace {

constexpr std::chrono::milliseconds kTell{500};

/// Percent of a whole job at which a stage begins and ends: rough shares of a full-size clip's time.
struct Share {
  std::string_view stage;
  double begin, end, begin_refined, end_refined;
};
constexpr std::array kShares{Share{"enhance", 0, 1, 0, 1},          Share{"load text encoder", 0, 2, 0, 2},
                             Share{"encode text", 2, 3, 2, 3},      Share{"encode images", 0, 1, 0, 1},
                             Share{"load preview", 3, 5, 3, 5},     Share{"denoise", 5, 94, 5, 70},
                             Share{"load refiner", 94, 94, 70, 71}, Share{"refine", 94, 94, 71, 92},
                             Share{"decode audio", 94, 95, 92, 93}, Share{"decode video", 95, 100, 93, 100}};

}  // namespace

LiveJob::LiveJob(std::string id, bool refines, std::function<void(const LiveState&)> changed)
    : id_(std::move(id)), refines_(refines), changed_(std::move(changed)) {}

LiveState LiveJob::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::string LiveJob::preview() const {
  const std::lock_guard lock(mutex_);
  return preview_;
}

void LiveJob::set_preview(std::string json) {
  const std::lock_guard lock(mutex_);
  preview_ = std::move(json);
}

void LiveJob::stage(std::string_view name, std::int64_t total) {
  stage_start_ = Clock::now();
  counting_ = false;
  {
    const std::lock_guard lock(mutex_);
    state_.stage = name;
    state_.steps = total;
  }
  update(0, true);
}

void LiveJob::advance(std::int64_t done) {
  update(done, false);
}

void LiveJob::update(std::int64_t done, bool new_stage) {
  const auto now = Clock::now();
  LiveState told;
  {
    const std::lock_guard lock(mutex_);
    state_.step = done;
    if (!counting_ && !new_stage) {  // the first report of a stage says where it began
      counting_ = true;
      stage_first_ = state_.stage == "denoise" ? done : 0;
    }
    const double fraction =
        state_.steps > 0 ? static_cast<double>(done) / static_cast<double>(state_.steps) : 0;
    for (const Share& share : kShares) {
      if (share.stage != state_.stage) continue;
      const double begin = refines_ ? share.begin_refined : share.begin;
      const double end = refines_ ? share.end_refined : share.end;
      const double percent = begin + fraction * (end - begin);
      state_.percent = std::max(state_.percent, std::min(99, static_cast<int>(percent)));
      const double elapsed = std::chrono::duration<double>(now - stage_start_).count();
      if (end - begin > 10 && done > stage_first_) {  // the long stages tell how fast this one is
        const double moved = static_cast<double>(done - stage_first_) / static_cast<double>(state_.steps);
        state_.seconds_left = elapsed / (moved * (end - begin)) * (100 - percent);
      }
    }
    told = state_;
  }
  if (!new_stage && now - told_ < kTell && done < told.steps) return;
  told_ = now;
  changed_(told);
}

}  // namespace magi
