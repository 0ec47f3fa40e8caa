// SPDX-License-Identifier: Apache-2.0
// A thread for what takes long, so that the threads that answer stay free for everybody else.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "serve/http.h"

namespace magi {

class Errands {
 public:
  using Work = std::function<HttpResponse()>;

  Errands();
  /// Ends what is being done, and leaves the rest undone.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  /// A late answer: what `work` gives or throws, one after the other; not begun where the client goes
  /// before. Where it gives a late answer itself and the client went meanwhile, that one is told. Throws
  /// ApiError 503 when many wait.
  HttpResponse run(Work work);

 private:
  class Answer;
  void post(std::function<void()> errand);
  void loop();

  std::mutex mutex_;
  std::condition_variable awake_;
  std::deque<std::function<void()>> waiting_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace magi
