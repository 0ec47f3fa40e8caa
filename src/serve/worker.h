// SPDX-License-Identifier: Apache-2.0
// The one thread that owns the engine and makes one job after the other, and a second one that encodes the
// next job's text meanwhile.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "run/engine.h"
#include "run/enhance.h"
#include "serve/events.h"
#include "serve/figures.h"
#include "serve/job_store.h"
#include "serve/live_job.h"
#include "serve/video_request.h"

namespace magi {

struct WorkerOptions {
  std::int64_t checkpoint_every = 5;  ///< steps
  double preview_share = 0.02;        ///< of the time may go into preview frames; 0: there are none
  std::optional<EnhanceOptions> enhance;
  bool paused = false;  ///< jobs are taken in and wait
};

class Worker {
 public:
  /// `changed`: called when a job's status has changed, by the worker's thread.
  Worker(Engine& engine, JobStore& store, EventHub& events, const WorkerOptions& options,
         std::function<void(const std::string& id)> changed);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Begins, with what was left undone first.
  void start();
  /// There may be something to do.
  void wake();
  /// The job was cancelled or removed in the database: if it is the one that runs, it ends within a step.
  void withdraw(const std::string& id);
  /// Ends the running job within a step, keeping how far it is, and the threads.
  void stop();

  /// Of the job that runs, if it is this one.
  std::optional<LiveState> live(const std::string& id);
  std::string preview(const std::string& id);
  WorkerFigures figures();

 private:
  class Watcher;
  struct Ahead {
    std::string id;
    Progress progress;
    std::future<std::shared_ptr<const TextFeatures>> text;
  };

  void run();
  void process(const Job& job);
  /// Makes the clip; throws Error, or Cancelled.
  void make(const Job& job, LiveJob& live);
  VideoPlan plan_of(const Job& job) const;
  /// The same with the prompt rewritten, where that is asked for and not done yet.
  VideoPlan enhanced_plan(const Job& job, Progress& progress);
  std::shared_ptr<const TextFeatures> text_for(const Job& job, const Request& request, Progress& progress);
  void start_ahead();
  std::int64_t bytes_of(const std::string& id) const;
  /// The message without paths of this machine.
  std::string for_clients(std::string message) const;
  std::shared_ptr<LiveJob> current();

  Engine& engine_;
  JobStore& store_;
  EventHub& events_;
  const WorkerOptions options_;
  const std::function<void(const std::string&)> changed_;

  std::mutex mutex_;
  std::condition_variable awake_;
  bool work_ = true, stop_ = false;
  std::shared_ptr<LiveJob> live_;
  WorkerFigures figures_;
  std::unique_ptr<Ahead> ahead_;  ///< of the worker's thread, as the next
  double preview_cost_ = 0;       ///< seconds a pixel of the last preview frame; 0: there was none
  std::thread thread_;
};

}  // namespace magi
