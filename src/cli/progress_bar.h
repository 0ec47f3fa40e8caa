// SPDX-License-Identifier: Apache-2.0
// Progress for people: one line that redraws itself on a terminal, plain lines elsewhere.
#pragma once

#include <chrono>
#include <string>

#include "core/progress.h"

namespace magi {

class ProgressBar final : public Progress {
 public:
  ProgressBar();
  ~ProgressBar() override;
  void stage(std::string_view name, std::int64_t total) override;
  void item(std::size_t number, std::size_t count) override;
  void advance(std::int64_t done) override;
  /// Ends the current stage's line.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void draw(bool last);

  bool terminal_;
  std::string item_;  // "2/5 ", in front of the stage's name
  std::string name_;
  std::int64_t total_ = 0, done_ = 0;
  Clock::time_point start_, drawn_;
};

/// Ctrl-C and SIGTERM cancel `progress` while this lives; a second one ends the program at once.
class InterruptGuard {
 public:
  explicit InterruptGuard(Progress& progress);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
};

}  // namespace magi
