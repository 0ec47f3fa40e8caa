// SPDX-License-Identifier: Apache-2.0
// Exchanges between host buffers through MPI: nonblocking messages, polled, so that a lost rank or a deadline
// ends them.
#include <mpi.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "comm/world.h"
#include "core/memory_ledger.h"

namespace magi {
namespace {

constexpr std::size_t kMessageBytes = std::size_t{1} << 30;  // MPI counts in int
constexpr double kLongestPoll = 0.1;                         // longer, and this process did not run
/// Messages between two ranks do not overtake each other, so exchanges in one order need no tags. But ranks
/// that came apart (one has failed) must not take each other's messages for something else.
int tag_of(const std::string& what) {
  return static_cast<int>(std::hash<std::string>{}(what) % 30000) + 1;
}

void check_mpi(int status, const char* what) {
  require(status == MPI_SUCCESS, "MPI: {} failed with code {}", what, status);
}

class MpiExchange final : public Exchange {
 public:
  MpiExchange(std::shared_ptr<Monitor> monitor, double deadline, std::vector<Part> send,
              std::vector<Part> receive, std::string what, Traffic& traffic)
      : monitor_(std::move(monitor)),
        deadline_(deadline),
        send_(std::move(send)),
        receive_(std::move(receive)),
        what_(std::move(what)),
        traffic_(traffic),
        begin_(std::chrono::steady_clock::now()) {
    const int tag = tag_of(what_);
    for (Part& p : receive_)
      post(p, [&](void* data, int bytes, MPI_Request* request) {
        check_mpi(MPI_Irecv(data, bytes, MPI_BYTE, p.rank, tag, MPI_COMM_WORLD, request), "receiving");
      });
    for (Part& p : send_)
      post(p, [&](void* data, int bytes, MPI_Request* request) {
        check_mpi(MPI_Isend(data, bytes, MPI_BYTE, p.rank, tag, MPI_COMM_WORLD, request), "sending");
      });
  }

  // Left without a wait only when the run has failed: MPI may still write into the parts, so they stay.
  ~MpiExchange() override {
    if (requests_.empty()) return;
    new std::vector<Part>(std::move(send_));
    new std::vector<Part>(std::move(receive_));
  }

  void wait(double deadline_seconds) override {
    if (requests_.empty()) return;
    const auto start = std::chrono::steady_clock::now();
    const double seconds = deadline_seconds > 0 ? deadline_seconds : deadline_;
    const Deadline end = deadline_in(seconds);
    monitor_->set_collective(what_);
    double waited = 0;
    Deadline last = start;
    for (std::int64_t polls = 0;; ++polls) {
      int done = 0;
      check_mpi(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
                "waiting");
      if (done) break;
      const Deadline now = std::chrono::steady_clock::now();
      waited += std::min(std::chrono::duration<double>(now - last).count(), kLongestPoll);
      last = now;
      if (polls % 64 == 63) {
        if (seconds < kPatient) monitor_->add_waiting(std::exchange(waited, 0));
        monitor_->check();
        if (now > end) monitor_->late(missing(), what_, seconds);
      }
      if (polls > 256)  // ranks may share a core
        std::this_thread::sleep_for(std::chrono::microseconds(polls > 4096 ? 500 : 20));
      else
        std::this_thread::yield();
    }
    if (seconds < kPatient) monitor_->add_waiting(waited);
    requests_.clear();
    send_.clear();
    receive_.clear();
    monitor_->set_collective("");
    const auto now = std::chrono::steady_clock::now();
    traffic_.seconds += std::chrono::duration<double>(now - begin_).count();
    traffic_.exposed_seconds += std::chrono::duration<double>(now - start).count();
  }

 private:
  template <typename Post>
  void post(Part& part, Post start) {
    for (std::size_t at = 0; at < part.data.bytes(); at += kMessageBytes) {
      const std::size_t bytes = std::min(kMessageBytes, part.data.bytes() - at);
      requests_.push_back(MPI_REQUEST_NULL);
      peers_.push_back(part.rank);
      start(static_cast<char*>(part.data.raw()) + at, static_cast<int>(bytes), &requests_.back());
    }
  }

  /// A rank whose message has not come (or was not taken).
  int missing() const {
    for (std::size_t i = 0; i < requests_.size(); ++i)
      if (requests_[i] != MPI_REQUEST_NULL) {
        int done = 0;
        MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
        if (!done) return peers_[i];
      }
    return peers_.front();
  }

  std::shared_ptr<Monitor> monitor_;
  double deadline_;
  std::vector<Part> send_, receive_;
  std::string what_;
  Traffic& traffic_;
  Deadline begin_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
};

constexpr std::size_t kAlignment = 256;  // of a window's pieces; MPI's begin anywhere

/// Shared memory of the processes of one machine.
class MpiWindow final : public Window {
 public:
  MpiWindow(MPI_Comm machine, std::size_t bytes) : bytes_(bytes), entry_(Device{}, bytes) {
    void* own = nullptr;
    check_mpi(MPI_Win_allocate_shared(static_cast<MPI_Aint>(bytes + kAlignment), 1, MPI_INFO_NULL, machine,
                                      &own, &window_),
              "sharing memory");
    int ranks = 0;
    MPI_Comm_size(machine, &ranks);
    for (int r = 0; r < ranks; ++r) {
      MPI_Aint size = 0;
      int unit = 0;
      void* piece = nullptr;
      check_mpi(MPI_Win_shared_query(window_, r, &size, &unit, static_cast<void*>(&piece)), "sharing memory");
      // Mappings begin at pages, so that this is the same place for every process.
      auto space = static_cast<std::size_t>(size);
      pieces_.push_back(static_cast<std::byte*>(std::align(kAlignment, bytes, piece, space)));
    }
  }
  std::byte* on(int rank) const override { return pieces_.at(static_cast<std::size_t>(rank)); }
  std::size_t bytes() const override { return bytes_; }
  Device device() const override { return {}; }
  void close() override {
    MPI_Win_free(&window_);
    entry_ = {};
  }

 private:
  std::size_t bytes_;
  LedgerEntry entry_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> pieces_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<Monitor> monitor, double deadline)
      : monitor_(std::move(monitor)), deadline_(deadline) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Exchange> start(std::vector<Part> send, std::vector<Part> receive,
                                  const std::string& what) override {
    monitor_->check();
    count(what, send, receive);
    return std::make_unique<MpiExchange>(monitor_, deadline_, std::move(send), std::move(receive), what,
                                         traffic_[what]);
  }

 private:
  std::shared_ptr<Window> make_window(std::size_t bytes) override {
    int here = 0;
    MPI_Comm_size(machine_, &here);
    if (here < size_) return nullptr;
    monitor_->check();
    // Containers often have little of it, and MPI, which leaves some of it free, would end the run.
    std::error_code unknown;
    const std::uintmax_t room = std::filesystem::space("/dev/shm", unknown).available;
    const MemoryLedger& ledger = MemoryLedger::of({});
    int fits = (room - room / 10) / static_cast<std::uintmax_t>(here) >= bytes + kAlignment &&
               bytes <= ledger.limit_bytes() - std::min(ledger.limit_bytes(), ledger.used_bytes());
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &fits, 1, MPI_INT, MPI_MIN, machine_), "agreeing on a window");
    return fits ? std::make_shared<MpiWindow>(machine_, bytes) : nullptr;
  }

  std::shared_ptr<Monitor> monitor_;
  double deadline_;
  int rank_ = 0, size_ = 1;
  MPI_Comm machine_ = MPI_COMM_NULL;  ///< the ranks of this machine
};

}  // namespace

bool MpiWorld::available() {
  return true;
}

std::pair<int, int> MpiWorld::init() {
  int provided = 0, rank = 0, size = 1;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "the start");
  require(provided >= MPI_THREAD_SERIALIZED, "MPI: this one cannot be called from several threads");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return {rank, size};
}

std::string MpiWorld::broadcast(std::string text) {
  int length = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD), "the first broadcast");
  text.resize(static_cast<std::size_t>(length));
  check_mpi(MPI_Bcast(text.data(), length, MPI_BYTE, 0, MPI_COMM_WORLD), "the first broadcast");
  return text;
}

std::shared_ptr<Transport> MpiWorld::transport(std::shared_ptr<Monitor> monitor, double deadline_seconds) {
  return std::make_shared<MpiTransport>(std::move(monitor), deadline_seconds);
}

void MpiWorld::finalize() {
  MPI_Finalize();
}

}  // namespace magi
