// SPDX-License-Identifier: Apache-2.0
#include "serve/worker.h"

#include <chrono>
#include <new>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "media/image_resize.h"
#include "media/image_writer.h"
#include "serve/job_view.h"
#include "serve/secret.h"
#include "text/json_text.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kMaxAttempts = 10;  // starts without getting any further: the job itself is the reason
constexpr int kPreviewQuality = 80;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

/// Counts steps and makes preview frames, as many as their share of the time allows.
class Worker::Watcher final : public ClipWatcher {
 public:
  Watcher(Worker& worker, LiveJob& live, const Request& request)
      : worker_(worker),
        live_(live),
        steps_(request.steps),
        pixels_(static_cast<double>(request.width * request.height)) {}

  bool wants_frame(const StepRecord& step) override {
    {
      const std::lock_guard lock(worker_.mutex_);
      ++worker_.figures_.steps;
      worker_.figures_.step_seconds += step.seconds;
    }
    // Saved just now: a kill from here on costs no more than the steps that follow.
    if ((step.step + 1) % worker_.options_.checkpoint_every == 0) worker_.store_.got_further(live_.id());
    computing_ += step.seconds;
    const double share = worker_.options_.preview_share;
    // The worker's first frame loads the decoder, which is needed in the end anyhow, and tells what one
    // costs.
    const double cost = worker_.preview_cost_ * pixels_;
    const bool wanted = share > 0 && (cost == 0 || spent_ + cost <= share * computing_);
    started_ = Clock::now();
    return wanted;
  }

  void frame(const StepRecord& step, const Tensor& rgb) override {
    const std::vector<std::uint8_t> jpeg = encode_jpeg(rgb, kPreviewQuality);
    const std::string image =
        "data:image/jpeg;base64," + to_base64({reinterpret_cast<const char*>(jpeg.data()), jpeg.size()});
    const std::string json = dump({{"step", step.step + 1}, {"steps", steps_}, {"image", image}});
    live_.set_preview(json);
    worker_.events_.publish(live_.id(), EventKind::preview, json);
    const double cost = seconds_since(started_);
    spent_ += cost;
    worker_.preview_cost_ = cost / pixels_;
    const std::lock_guard lock(worker_.mutex_);
    ++worker_.figures_.previews;
    worker_.figures_.preview_seconds += cost;
  }

 private:
  Worker& worker_;
  LiveJob& live_;
  std::int64_t steps_;
  double pixels_;
  double computing_ = 0, spent_ = 0;
  Clock::time_point started_;
};

Worker::Worker(Engine& engine, JobStore& store, EventHub& events, const WorkerOptions& options,
               std::function<void(const std::string& id)> changed)
    : engine_(engine), store_(store), events_(events), options_(options), changed_(std::move(changed)) {}

Worker::~Worker() {
  stop();
}

void Worker::start() {
  if (options_.paused) return;
  thread_ = std::thread([this] { run(); });
}

void Worker::wake() {
  {
    const std::lock_guard lock(mutex_);
    work_ = true;
  }
  awake_.notify_all();
}

std::shared_ptr<LiveJob> Worker::current() {
  const std::lock_guard lock(mutex_);
  return live_;
}

void Worker::withdraw(const std::string& id) {
  if (const auto live = current(); live && live->id() == id) live->cancel();
}

void Worker::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (live_) live_->cancel();
  }
  awake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::optional<LiveState> Worker::live(const std::string& id) {
  const auto live = current();
  return live && live->id() == id ? std::optional(live->state()) : std::nullopt;
}

std::string Worker::preview(const std::string& id) {
  const auto live = current();
  return live && live->id() == id ? live->preview() : "";
}

WorkerFigures Worker::figures() {
  const std::lock_guard lock(mutex_);
  return figures_;
}

void Worker::run() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      awake_.wait(lock, [this] { return work_ || stop_; });
      if (stop_) break;
      work_ = false;
    }
    try {
      while (const std::optional<Job> job = store_.take_next()) {
        process(*job);
        const std::lock_guard lock(mutex_);
        if (stop_) break;
      }
    } catch (const std::exception& error) {
      log_warning("worker: {}", error.what());  // the database: tried again with the next job
      std::unique_lock lock(mutex_);
      awake_.wait_for(lock, std::chrono::seconds(5), [this] { return stop_; });
      work_ = true;
    }
  }
  if (ahead_) ahead_->progress.cancel();
  ahead_.reset();  // waits
}

void Worker::process(const Job& job) {
  const auto start = Clock::now();
  bool refines = false;
  try {
    refines = plan_video(job.request, engine_.root().defaults(), {}, {}).request.refine.has_value();
  } catch (const Error&) {  // told below
  }
  const auto live = std::make_shared<LiveJob>(job.id, refines, [this, &job](const LiveState& state) {
    if (state.stage == "decode audio" || (state.stage == "decode video" && state.step == 0)) start_ahead();
    if (!events_.heard(job.id)) return;
    events_.publish(job.id, EventKind::progress,
                    dump(progress_object(JobStatus::in_progress, {state, 0, 0})));
  });
  {
    const std::lock_guard lock(mutex_);
    live_ = live;
    if (stop_) live->cancel();
  }
  // Cancelled between its being taken and its being known here?
  const std::optional<Job> now = store_.find(job.id);
  if (!now || is_over(now->status)) live->cancel();
  changed_(job.id);

  std::string error;
  bool stopped = false;
  try {
    require(job.attempts <= kMaxAttempts, "the server stopped {} times while it began with this",
            kMaxAttempts);
    if (!fs::exists(store_.file(job.id, JobFile::video))) make(job, *live);
  } catch (const Cancelled&) {
    stopped = true;
  } catch (
      const RankLost& e) {  // no rank goes on: the job stays for the next start, and so do those that wait
    log_warning("{}: {}", job.id, e.what());
    stopped = true;
    const std::lock_guard lock(mutex_);
    stop_ = true;
  } catch (const std::bad_alloc&) {
    error = "out of memory; fewer seconds or a smaller size need less";
  } catch (const std::exception& e) {
    error = e.what();
  }
  const bool completed = !stopped && error.empty() && store_.complete(job.id, bytes_of(job.id));
  const bool failed = !error.empty() && store_.fail(job.id, "generation_failed", for_clients(error));
  if (failed) log_warning("{}: {}", job.id, error);
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    live_ = nullptr;
    stopping = stop_;
    figures_.completed += completed;
    figures_.failed += failed;
    figures_.cancelled += stopped && !stopping;
    if (completed) figures_.job_seconds += seconds_since(start);
  }
  store_.tidy(job.id);
  changed_(job.id);
}

void Worker::make(const Job& job, LiveJob& live) {
  const VideoPlan plan = enhanced_plan(job, live);
  ClipTask task;
  task.request = plan.request;
  task.output = store_.file(job.id, JobFile::video);
  task.thumbnail = store_.file(job.id, JobFile::thumbnail);
  if (plan.request.audio) task.sound = store_.file(job.id, JobFile::sound);
  task.resume = Resume{store_.file(job.id, JobFile::state), options_.checkpoint_every};
  task.text = text_for(job, plan.request, live);
  Watcher watcher(*this, live, plan.request);
  task.watcher = &watcher;
  const Report report = engine_.make(std::move(task), live);
  require(report.error.empty(), "{}", report.error);
}

VideoPlan Worker::plan_of(const Job& job) const {
  std::optional<fs::path> reference;
  if (job.has_reference) reference = store_.file(job.id, JobFile::reference);
  return plan_video(job.request, engine_.root().defaults(), reference, job.enhanced);
}

VideoPlan Worker::enhanced_plan(const Job& job, Progress& progress) {
  VideoPlan plan = plan_of(job);
  if (!plan.enhance || job.enhanced) return plan;
  require(options_.enhance.has_value(), "this server has no language model to enhance prompts with");
  progress.stage("enhance", 1);
  enhance_request(plan.request, *options_.enhance, progress);
  store_.set_enhanced(job.id, plan.request.prompt);
  return plan;
}

std::shared_ptr<const TextFeatures> Worker::text_for(const Job& job, const Request& request,
                                                     Progress& progress) {
  if (ahead_ && ahead_->id == job.id) {
    const std::unique_ptr<Ahead> ahead = std::move(ahead_);
    try {
      auto text = ahead->text.get();
      const std::lock_guard lock(mutex_);
      ++figures_.ahead;
      return text;
    } catch (const Error&) {  // it is told when it happens again
    }
  }
  return engine_.encode_text(request, progress);
}

/// While frames are decoded: the next job's text, if the encoder is there or fits. Once encoded it is kept
/// for its job.
void Worker::start_ahead() try {
  if (ahead_) {
    const std::optional<Job> job = store_.find(ahead_->id);
    if (job && job->status == JobStatus::queued) return;
    ahead_->progress.cancel();
    ahead_.reset();
  }
  const std::optional<Job> next = store_.peek_next();
  if (!next) return;
  const VideoPlan plan = plan_of(*next);
  if ((plan.enhance && !next->enhanced) || !engine_.can_encode_ahead(plan.request.dtype)) return;
  ahead_ = std::make_unique<Ahead>();
  ahead_->id = next->id;
  ahead_->text = std::async(std::launch::async, [this, request = plan.request, progress = &ahead_->progress] {
    return engine_.encode_text(request, *progress);
  });
} catch (const std::exception& error) {  // no reason for the running job to fail
  log_warning("encoding ahead: {}", error.what());
}

std::int64_t Worker::bytes_of(const std::string& id) const {
  std::int64_t bytes = 0;
  for (const JobFile which : {JobFile::video, JobFile::thumbnail, JobFile::sound, JobFile::reference}) {
    std::error_code missing;
    const auto size = fs::file_size(store_.file(id, which), missing);
    if (!missing) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

std::string Worker::for_clients(std::string message) const {
  replace_all(message, store_.files().string() + "/", "");
  replace_all(message, engine_.root().path().string(), "(model)");
  return message;
}

}  // namespace magi
