// SPDX-License-Identifier: Apache-2.0
// Layers that are read from disk again in every step, by a thread, just ahead of their use, and given back
// after it.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace magi {

class ReadAhead {
 public:
  using Item = std::shared_ptr<const void>;

  /// `order`: the items, used in this order again and again. At most `room` of them exist at a time, those in
  /// use included. `load` runs on a thread of its own and may throw; `compute_threads`: OpenMP threads that
  /// it may take.
  ReadAhead(std::vector<int> order, int room, int compute_threads, std::function<Item(int)> load);
  /// Waits for the item being loaded, if any.
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits for item i; throws what loading it threw. Out of order, what was read ahead is dropped.
  Item get(int i);
  /// The same, but null instead of waiting.
  Item try_get(int i);

 private:
  struct Room {  // outlives the reader where items do
    std::mutex mutex;
    std::condition_variable changed;
    int taken = 0;
  };
  struct Ready {
    int index;
    Item item;
    std::exception_ptr error;
  };

  Item take(int i, bool wait);
  void run();
  void redirect(int i);
  Item load_counted(int i);

  const std::vector<int> order_;
  const int room_;
  const int compute_threads_;
  const std::function<Item(int)> load_;

  std::shared_ptr<Room> state_ = std::make_shared<Room>();
  // guarded by state_->mutex
  std::deque<Ready> ready_;
  std::size_t next_ = 0;  ///< position in order_ of what is loaded next
  int loading_ = -1;      ///< item
  bool wanted_ = true;    ///< of the item that is being loaded
  bool paused_ = false;   ///< after an error, until somebody asks again
  bool stopping_ = false;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace magi
