// SPDX-License-Identifier: Apache-2.0
// Notices a rank that died, stopped, hangs or starves, and ends the run on every rank: each rank tells rank 0
// every second that it lives, what it is doing and how long it has waited for others, over a connection and a
// thread of their own.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/socket.h"
#include "core/error.h"

namespace magi {

/// A rank was lost, or failed: the run cannot go on. `told`: it has been printed, here or on another rank.
class RankLost : public Error {
 public:
  RankLost(const std::string& what, bool told) : Error(what), told_(told) {}
  bool told() const { return told_; }

 private:
  bool told_;
};

/// Who a rank is, as it introduces itself.
struct RankName {
  int rank = 0;
  std::string host;
  std::string process_space;  ///< equal where process numbers mean the same
  int process = 0;

  static RankName own(int rank);
  std::string to_text() const;
  static RankName from_text(const std::string& text);
  /// "rank 2 (node1, process 1234)"
  std::string describe() const;
};

class Monitor {
 public:
  /// `links`: at rank 0 one to each other rank, in order; elsewhere one to rank 0. `names`: at rank 0 all
  /// ranks', elsewhere rank 0's and the own. A rank that is silent for `silence_seconds` is lost; so is one
  /// for which all others do nothing but wait during twice as long.
  Monitor(int rank, std::vector<RankName> names, std::vector<Socket> links, double silence_seconds);
  ~Monitor();
  /// Tells the others that this rank leaves in peace, unless the run failed. The destructor does, if nobody
  /// did.
  void leave();

  /// What this rank is doing, for messages: a stage ("denoise, step 3 of 20"), and within it a collective.
  void set_stage(const std::string& text);
  void set_collective(const std::string& text);
  /// Throws RankLost once a rank is lost or has failed.
  void check() const;
  /// This rank has waited so long for others, in collectives with a deadline. Any thread.
  void add_waiting(double seconds) { waited_.fetch_add(seconds); }
  /// This rank cannot go on: ends the run on every rank. Returns when rank 0 knows, or after two seconds.
  /// `printed`: on rank 0, by the caller.
  void fail(const std::string& why, bool printed = false);
  /// Why this rank stands still, if it does: said instead of whom it waits for.
  void set_excuse(const std::string& why);
  /// Another rank has not done its part of `collective` in time; throws RankLost.
  [[noreturn]] void late(int rank, const std::string& collective, double seconds);
  /// Asked every second, from the monitor's thread: what is wrong, or nothing. Replaces the one before; when
  /// it returns, the one before is not running any more.
  void watch(std::function<std::string()> what_is_wrong);
  /// Whether rank 0 has printed why the run ended.
  bool told() const { return told_.load(); }

 private:
  void run();
  void send_beats();
  void look_around();
  void listen();
  void tell_own_failure();
  void handle(std::size_t link, const std::string& frame);
  void lost(std::size_t link, const std::string& how);
  void look_for_starved_rank();
  void end_if_here(const RankName& name) const;
  void decide(const std::string& verdict, bool told);
  std::string last_step(int rank) const;
  std::string own_step() const;

  const int rank_;
  const std::vector<RankName> names_;
  const double silence_;
  std::vector<Socket> links_;
  mutable std::mutex mutex_;
  std::string stage_, collective_, verdict_, excuse_;
  std::vector<std::string> steps_;  ///< of the links' ranks, as last heard
  std::vector<Deadline> silent_at_;
  std::vector<char> left_;
  std::string pending_failure_;
  bool pending_printed_ = false;
  std::atomic<double> waited_{0};
  struct Waiting {
    Deadline at;
    std::vector<double> seconds;  ///< since the start, by rank
  };
  std::vector<double> heard_waiting_;  ///< rank 0: by rank
  std::deque<Waiting> waiting_;        ///< rank 0: of the last while
  std::atomic<bool> failed_{false}, told_{false}, stopping_{false};
  std::mutex watch_mutex_;
  std::function<std::string()> what_is_wrong_;
  std::thread thread_;
};

}  // namespace magi
