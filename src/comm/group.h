// SPDX-License-Identifier: Apache-2.0
// Ranks are a value: code takes a Group and calls its collectives. In a group of one rank they copy, or do
// nothing. All ranks of a group call the same collectives in the same order.
//
// Every collective is one exchange of parts between pairs of ranks, which is all that a transport (MPI
// between host buffers, NCCL between GPUs, sockets for control) has to do. Nothing is ever summed on the way:
// a sum is gathered and added in rank order, so that the number of ranks cannot change a bit.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace magi {

/// Contiguous data for, or from, one rank of a group. Empty ones are not sent.
struct Part {
  int rank = 0;
  Tensor data;
};

/// What went through a kind of collective since the run began.
struct Traffic {
  std::int64_t calls = 0, bytes_sent = 0, bytes_received = 0;
  double seconds = 0;          ///< under way, where the transport can tell
  double exposed_seconds = 0;  ///< of them, not hidden behind other work
};

inline constexpr double kPatient = std::numeric_limits<double>::infinity();

/// An exchange under way. Parts stay alive until it is over.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Afterwards what was received may be read and what was sent may be overwritten: at once where the parts
  /// are on the host; by later work of the stream where they are on a device (the host does not wait). Throws
  /// Error when it takes longer than `deadline_seconds` on the host (0: the transport's) or a rank is lost.
  virtual void wait(double deadline_seconds = 0) = 0;
};

/// Memory of which every rank of a run has a piece of the same size, and into which the computing devices of
/// all ranks write.
class Window {
 public:
  virtual ~Window() = default;
  /// Where the piece of rank `rank` of the run lies for this rank's device. 256-byte aligned.
  virtual std::byte* on(int rank) const = 0;
  /// Of a piece.
  virtual std::size_t bytes() const = 0;
  virtual Device device() const = 0;
  /// Gives the memory back; all ranks together. A window that is not closed lasts as long as the process.
  virtual void close() = 0;
};

/// How the parts of all ranks of a run travel.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Parts between two ranks arrive in the order in which they are listed, and are of equal size on both
  /// sides. No part is for the own rank. `what` names the collective in messages.
  virtual std::unique_ptr<Exchange> start(std::vector<Part> send, std::vector<Part> receive,
                                          const std::string& what) = 0;
  /// Copies between parts of the own rank, ordered like the exchanges.
  virtual void copy(Tensor to, const Tensor& from);
  /// A window of at least `bytes` a rank that nobody else has; all ranks of the run ask together, with equal
  /// bytes, and let go together. One that was let go is lent again, or closed where a larger one is asked
  /// for. Null on all ranks where some cannot write to another's memory, or there is no room for it.
  std::shared_ptr<Window> open_window(std::size_t bytes);
  /// Gives back the memory of windows that were let go; all ranks together.
  void close_idle_windows();
  /// Counts what was written into windows.
  virtual void count_written(const std::string& what, std::int64_t sent, std::int64_t received);
  /// By "collective of group"; complete once all exchanges are over.
  virtual std::map<std::string, Traffic> traffic() { return traffic_; }
  /// Forgets the traffic so far.
  virtual void reset_traffic() { traffic_.clear(); }

 protected:
  virtual std::shared_ptr<Window> make_window(std::size_t bytes);
  void close_windows();
  void count(const std::string& what, const std::vector<Part>& send, const std::vector<Part>& receive);
  std::map<std::string, Traffic> traffic_;

 private:
  std::vector<std::shared_ptr<Window>> windows_;
};

class Group {
 public:
  /// One rank.
  Group();
  /// All ranks of the transport.
  Group(std::shared_ptr<Transport> transport, std::string name);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }
  bool alone() const { return members_.size() == 1; }
  const std::string& name() const { return name_; }
  /// The whole run's number of one of this group's ranks.
  int world_rank(int rank) const { return members_.at(static_cast<std::size_t>(rank)); }

  /// Some of this group's ranks, the calling one among them, in the order given; nothing is sent. Every
  /// member makes the same list.
  Group subgroup(const std::vector<int>& ranks, std::string name) const;

  /// Any parts from any rank to any; those for the own rank are copied, first to first. The base of the
  /// others.
  [[nodiscard]] std::unique_ptr<Exchange> start_exchange(std::vector<Part> send, std::vector<Part> receive,
                                                         std::string_view what = "exchange") const;
  void exchange(std::vector<Part> send, std::vector<Part> receive, std::string_view what = "exchange") const;

  /// The group is all ranks of the run. See Transport::open_window; null where there is only one rank. What
  /// others did with the memory before is over for work that comes after.
  std::shared_ptr<Window> open_window(std::size_t bytes) const;
  /// Where `rank` of the group has its piece.
  std::byte* on(const Window& window, int rank) const;
  /// All members come to this point. After the wait, what they had written into the window before is there,
  /// and what this rank had read from it may be written over. `sent` and `received` bytes are counted.
  [[nodiscard]] std::unique_ptr<Exchange> start_arrival(const std::shared_ptr<Window>& window,
                                                        std::int64_t sent, std::int64_t received,
                                                        std::string_view what) const;

  /// Block r of `send` goes to rank r; block r of `receive` comes from rank r. Blocks are equal: numel /
  /// size().
  void all_to_all(const Tensor& send, Tensor receive) const;
  /// Uneven: send[r] goes to rank r, receive[r] comes from it. Both sides know the sizes; a tensor may be
  /// empty.
  [[nodiscard]] std::unique_ptr<Exchange> start_all_to_all(const std::vector<Tensor>& send,
                                                           const std::vector<Tensor>& receive) const;
  void all_to_all(const std::vector<Tensor>& send, const std::vector<Tensor>& receive) const {
    start_all_to_all(send, receive)->wait();
  }
  /// receive [size()·rows, …] ← every rank's send [rows, …], in rank order.
  void all_gather(const Tensor& send, Tensor receive) const;
  /// Uneven: receive[r] ← rank r's send.
  void all_gather(const Tensor& send, const std::vector<Tensor>& receive) const;
  /// Every rank's tensor becomes that of rank `root`.
  void broadcast(Tensor tensor, int root) const;

  // -- host groups alone: control between stages

  /// Every rank's text, in rank order.
  std::vector<std::string> gather_texts(const std::string& text, double deadline_seconds = 0) const;
  std::string broadcast(std::string text, int root, double deadline_seconds = 0) const;
  void barrier() const { all_signal(0); }
  /// A barrier without a deadline, before which one rank may work alone for as long as it likes. A rank that
  /// dies or stops ends it all the same.
  void wait_for_all() const { all_signal(kPatient); }

  Transport& transport() const { return *transport_; }

 private:
  void all_signal(double deadline_seconds) const;

  std::shared_ptr<Transport> transport_;
  std::string name_;
  std::vector<int> members_;  ///< the transport's ranks
  int rank_ = 0;
};

/// The part of `total` things that rank `rank` of `size` holds when they are split contiguously: the first
/// ranks take one more.
struct Share {
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
};
Share share_of(std::int64_t total, int size, int rank);

}  // namespace magi
