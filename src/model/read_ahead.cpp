// SPDX-License-Identifier: Apache-2.0
#include "model/read_ahead.h"

#include <omp.h>

#include <algorithm>

#include "core/error.h"

namespace magi {

ReadAhead::ReadAhead(std::vector<int> order, int room, int compute_threads, std::function<Item(int)> load)
    : order_(std::move(order)), room_(room), compute_threads_(compute_threads), load_(std::move(load)) {
  require(!order_.empty() && room_ > 1,
          "nothing to read ahead, or no room for one item beside the one in use");
  thread_ = std::thread([this] { run(); });
}

ReadAhead::~ReadAhead() {
  {
    const std::scoped_lock lock(state_->mutex);
    stopping_ = true;
  }
  state_->changed.notify_all();
  thread_.join();
}

ReadAhead::Item ReadAhead::get(int i) {
  return take(i, true);
}

ReadAhead::Item ReadAhead::try_get(int i) {
  return take(i, false);
}

/// Drops what does not lead to item i, and has the thread continue there.
void ReadAhead::redirect(int i) {
  const auto place = std::find(order_.begin(), order_.end(), i);
  require(place != order_.end(), "layer {} is not among those that are read from disk", i);
  wanted_ = loading_ == i;
  next_ = static_cast<std::size_t>(place - order_.begin());
  if (wanted_) next_ = (next_ + 1) % order_.size();
  paused_ = false;
}

ReadAhead::Item ReadAhead::take(int i, bool wait) {
  std::deque<Ready> dropped;  // given back without the lock, which giving back takes
  std::unique_lock lock(state_->mutex);
  while (true) {
    if (!ready_.empty() && ready_.front().index == i) {
      Ready ready = std::move(ready_.front());
      ready_.pop_front();
      if (!ready.error) return ready.item;
      if (!wait) {
        ready_.push_front(std::move(ready));
        return nullptr;
      }
      next_ = static_cast<std::size_t>(std::find(order_.begin(), order_.end(), i) - order_.begin());
      std::rethrow_exception(ready.error);
    }
    const bool coming =
        ready_.empty() && ((loading_ == i && wanted_) || (loading_ < 0 && !paused_ && order_[next_] == i));
    if (!wait) return nullptr;
    if (!coming) {
      dropped.swap(ready_);
      redirect(i);
      lock.unlock();
      dropped.clear();
      state_->changed.notify_all();
      lock.lock();
      continue;
    }
    state_->changed.wait(lock);
  }
}

ReadAhead::Item ReadAhead::load_counted(int i) {
  Item item = load_(i);
  // Its room is free once the last user is gone.
  const void* loaded = item.get();
  return {loaded, [item = std::move(item), state = state_](const void*) mutable {
            item.reset();
            {
              const std::scoped_lock lock(state->mutex);
              --state->taken;
            }
            state->changed.notify_all();
          }};
}

void ReadAhead::run() {
  omp_set_num_threads(std::max(1, compute_threads_));
  std::unique_lock lock(state_->mutex);
  while (true) {
    state_->changed.wait(lock, [&] { return stopping_ || (!paused_ && state_->taken < room_); });
    if (stopping_) return;
    const int index = order_[next_];
    next_ = (next_ + 1) % order_.size();
    loading_ = index;
    wanted_ = true;
    ++state_->taken;
    lock.unlock();
    Ready ready{index, nullptr, nullptr};
    try {
      ready.item = load_counted(index);
    } catch (...) {
      ready.error = std::current_exception();
    }
    lock.lock();
    if (ready.error) --state_->taken;
    loading_ = -1;
    if (wanted_) {
      paused_ = ready.error != nullptr;
      ready_.push_back(std::move(ready));
    } else {
      lock.unlock();
      ready = {};
      lock.lock();
    }
    state_->changed.notify_all();
  }
}

}  // namespace magi
