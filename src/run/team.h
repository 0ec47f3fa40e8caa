// SPDX-License-Identifier: Apache-2.0
// The ranks of a run in the stages of a clip: what rank 0 does alone and hands to the others, and how all
// agree on how a stage ended. One rank alone passes through.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "core/progress.h"
#include "run/engine_options.h"

namespace magi {

class CheckpointRoot;

/// How a stage ended on a rank.
struct Outcome {
  bool cancelled = false;
  std::string error;  ///< empty: well
};

class Team {
 public:
  explicit Team(std::shared_ptr<World> world) : world_(std::move(world)) {}

  bool alone() const { return !world_ || world_->alone(); }
  /// Rank 0, which reads the request's files, encodes text and pictures, and writes.
  bool first() const { return !world_ || world_->rank() == 0; }
  const World& world() const { return *world_; }

  /// The same on every rank: what went wrong on the first one on which something did. Waits patiently; a rank
  /// with an error that others do not come to hear ends the run with it.
  Outcome agree(Outcome own) const;
  /// Throws on every rank when `work` throws on one.
  template <typename Work>
  auto everywhere(Work work) const {
    decltype(work()) result{};
    if (alone()) return work();
    Outcome own;
    try {
      result = work();
    } catch (const RankLost&) {
      throw;
    } catch (...) {
      own = outcome_of(std::current_exception());
    }
    raise(agree(own));
    return result;
  }
  /// The same on every rank: the text of the first one that has any, with its number before it.
  std::string first_text(const std::string& own) const;
  static Outcome outcome_of(const std::exception_ptr& error);
  static void raise(const Outcome& outcome);

  /// Every rank's tensor (host) becomes rank 0's, whatever its shape; an undefined one stays undefined.
  void share(Tensor& tensor) const;
  void share(std::vector<Tensor>& tensors) const;
  void share(std::int64_t& value) const;

  /// Throws Error on every rank where version, options, configuration or the checkpoint's files are not those
  /// of rank 0.
  void require_same(const CheckpointRoot& root, const EngineOptions& options) const;

 private:
  std::shared_ptr<World> world_;
};

/// Hands progress on, and tells the monitor of it. That rank 0's owner cancels is no rank's own affair: it
/// shows where all agree (check_owner).
class TeamProgress final : public Progress {
 public:
  TeamProgress(Progress& owner, const Team& team) : owner_(owner), team_(team) {}
  void stage(std::string_view name, std::int64_t total) override;
  void item(std::size_t number, std::size_t count) override { owner_.item(number, count); }
  void advance(std::int64_t done) override;

  /// For work that all ranks agree on: throws Cancelled where the owner wants to stop.
  void check_owner() const { owner_.check(); }
  /// Rank 0 works alone between these: it may stop at once.
  void begin_alone() { alone_ = true; }
  void end_alone() { alone_ = false; }

 private:
  Progress& owner_;
  const Team& team_;
  std::string name_;
  std::int64_t total_ = 0;
  bool alone_ = false;
};

}  // namespace magi
