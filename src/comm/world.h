// SPDX-License-Identifier: Apache-2.0
// The ranks of this run: found from the launcher's environment, connected, watched.
#pragma once

#include <memory>
#include <string>

#include "comm/group.h"
#include "comm/monitor.h"

namespace magi {

/// Who launched this process, and how its ranks meet.
struct Launch {
  enum class Kind : std::uint8_t { alone, mpi, address } kind = Kind::alone;
  int rank = 0, size = 1;
  std::string host;  ///< rank 0's
  int port = 0;

  /// RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (under torchrun the port after it); else an MPI launcher's
  /// variables, where MPI is in the build; else Slurm's, or mpirun's on one host. Throws Error when they
  /// contradict themselves.
  static Launch from_environment();
};

/// Seconds that a rank may keep others waiting in a collective: MAGI2_RANK_DEADLINE, else 45. A rank that is
/// silent for half as long is lost.
double rank_deadline_seconds();

class World {
 public:
  /// Meets the other ranks of `launch`. Throws Error when they do not come.
  static std::shared_ptr<World> join(const Launch& launch = Launch::from_environment());
  /// Ends the run everywhere unless leave() came first.
  ~World();

  int rank() const { return host_.rank(); }
  int size() const { return host_.size(); }
  bool alone() const { return size() == 1; }
  /// The number of this rank among those on its machine: which GPU it takes.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }  ///< ranks on its machine
  /// All ranks, between host buffers.
  const Group& host() const { return host_; }
  /// Whether `host()` is MPI, fit for model data and for subgroups; otherwise only control goes through it.
  bool host_carries_data() const { return host_carries_data_; }
  /// Null in a world of one.
  Monitor* monitor() const { return monitor_.get(); }

  /// What this rank is doing, for messages about lost ranks.
  void set_stage(const std::string& text) const;
  /// Throws RankLost once the run has failed.
  void check() const;
  /// Tells every rank that this one cannot go on; on rank 0 the caller prints why.
  void fail(const std::string& why) const;
  /// Every rank is through. Waits for all.
  void leave();

 private:
  World() = default;
  void meet(const Launch& launch);

  std::shared_ptr<Monitor> monitor_;
  Group host_;
  int local_rank_ = 0, local_size_ = 1;
  bool host_carries_data_ = true, is_mpi_ = false, left_ = false;
};

// ---------------------------------------------------------------- what join() is made of

/// Sockets from rank 0 to every other rank in order, or from another rank to rank 0.
struct Links {
  std::vector<Socket> beats, control;
  std::vector<RankName> names;  ///< rank 0: all; elsewhere rank 0's and the own
};
/// Rank 0 listens.
Links meet_at_first_rank(const Launch& launch, Listener* listener, Deadline deadline);

/// Exchanges through rank 0: for control, slow for anything else. Only whole-world exchanges.
std::shared_ptr<Transport> make_control_transport(int rank, int size, std::vector<Socket> links,
                                                  std::shared_ptr<Monitor> monitor, double deadline_seconds);

/// MPI's world; absent from builds without MPI.
struct MpiWorld {
  static bool available();
  /// Starts MPI; rank and size.
  static std::pair<int, int> init();
  /// Rank 0's text, before there are groups.
  static std::string broadcast(std::string text);
  static std::shared_ptr<Transport> transport(std::shared_ptr<Monitor> monitor, double deadline_seconds);
  static void finalize();
};

}  // namespace magi
