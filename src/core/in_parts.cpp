// SPDX-License-Identifier: Apache-2.0
#include "core/in_parts.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace magi {
namespace {

struct Job {
  Job(std::int64_t parts, const std::function<void(std::int64_t)>& f, int helpers)
      : count(parts), part(f), places(helpers) {}

  const std::int64_t count;
  const std::function<void(std::int64_t)>& part;  // there until all parts are done, and not called later
  std::atomic<int> places;                        // for helpers
  std::atomic<std::int64_t> next{0}, done{0};

  void work() noexcept {  // a part that threw here would leave the helpers with a function that is gone
    for (std::int64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      part(i);
      if (done.fetch_add(1) + 1 == count) done.notify_one();
    }
  }
  void wait() {
    for (std::int64_t n = done.load(); n < count; n = done.load()) done.wait(n);
  }
};

class Helpers {
 public:
  /// Never destroyed: at the end of the process, or of one that was forked from it and has no helpers, nobody
  /// has to wait for them.
  static Helpers& all() {
    static Helpers& helpers = *new Helpers;
    return helpers;
  }

  /// False where another has them.
  bool run(std::int64_t count, const std::function<void(std::int64_t)>& part, int helpers) {
    const std::unique_lock one_at_a_time(in_use_, std::try_to_lock);
    if (!one_at_a_time) return false;
    const auto job = std::make_shared<Job>(count, part, helpers);
    {
      const std::lock_guard lock(mutex_);
      for (; threads_ < helpers; ++threads_) std::thread([this] { help(); }).detach();
      job_ = job;
      ++jobs_;
    }
    wake_.notify_all();
    job->work();
    job->wait();
    return true;
  }

 private:
  [[noreturn]] void help() {
    std::int64_t seen = 0;
    for (std::unique_lock lock(mutex_);;) {
      wake_.wait(lock, [&] { return jobs_ != seen; });
      seen = jobs_;
      const std::shared_ptr<Job> job = job_;
      lock.unlock();
      if (job->places.fetch_sub(1) > 0) job->work();
      lock.lock();
    }
  }

  std::mutex in_use_, mutex_;
  std::condition_variable wake_;
  std::shared_ptr<Job> job_;
  std::int64_t jobs_ = 0;
  int threads_ = 0;
};

}  // namespace

void in_parts(std::int64_t count, const std::function<void(std::int64_t)>& part) {
  const auto helpers = static_cast<int>(std::min<std::int64_t>(count, omp_get_max_threads())) - 1;
  if (helpers > 0 && Helpers::all().run(count, part, helpers)) return;
  for (std::int64_t i = 0; i < count; ++i) part(i);
}

void in_ranges(std::int64_t count, std::int64_t step,
               const std::function<void(std::int64_t first, std::int64_t end)>& range) {
  constexpr std::int64_t length = 32768;
  if (count == 0) return;  // whatever the step is
  const std::int64_t size = std::max<std::int64_t>(length / step, 1) * step;
  in_parts((count + size - 1) / size,
           [&](std::int64_t i) { range(i * size, std::min((i + 1) * size, count)); });
}

}  // namespace magi
