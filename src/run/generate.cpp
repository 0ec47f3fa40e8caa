// SPDX-License-Identifier: Apache-2.0
#include "run/generate.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "io/atomic_file.h"
#include "media/image_writer.h"
#include "media/video_writer.h"
#include "media/wav_writer.h"
#include "model/latent_stats.h"
#include "run/clip_files.h"
#include "run/pipeline.h"
#include "run/saved_state.h"
#include "run/sha256.h"
#include "run/team.h"
#include "sample/noise.h"

namespace magi {
namespace {

constexpr std::int64_t kAudioChannels = 64;
constexpr int kSampleRate = 44100;
constexpr double kTrainedSeconds = 10;

/// A task on its way: what one stage leaves for the next.
struct Clip {
  explicit Clip(ClipTask t) : task(std::move(t)), noise(task.request.seed) {}

  ClipTask task;
  NoiseGenerator noise;
  std::vector<Tensor> images;
  TextFeatures text;
  SampleState start;
  Latents latents;
  Tensor refined, sound;
  Report report;
  std::int64_t sent_before = 0, received_before = 0;  ///< bytes, before this clip's preview
};

class Batch {
 public:
  Batch(const CheckpointRoot& root, Pipeline& pipeline, std::vector<ClipTask> tasks, Progress& progress)
      : root_(root),
        team_(pipeline.team()),
        team_progress_(progress, team_),
        progress_(team_.alone() ? progress : team_progress_),
        pipeline_(pipeline) {
    pipeline.report_to(progress_);
    for (ClipTask& task : tasks) clips_.emplace_back(std::move(task));
  }

  std::vector<Report> run() {
    warn_of_lengths();
    for_each_clip(By::first, [&](Clip& clip) { check(clip); });
    for_each_clip(By::all, [&](Clip& clip) { pipeline_.require_room(clip.task.request); });
    const auto always = [](const Request&) { return true; };
    const auto with_images = [](const Request& request) { return !request.images.empty(); };
    const auto with_refiner = [](const Request& request) { return request.refine.has_value(); };
    const auto with_audio = [](const Request& request) { return request.audio; };
    stage("images", By::first, with_images,
          [&](Clip& clip) { clip.images = pipeline_.encode_images(clip.task.request); });
    stage("text", By::first, always, [&](Clip& clip) {
      clip.text = clip.task.text ? *clip.task.text : pipeline_.encode_text(clip.task.request);
    });
    for_each_clip(By::all, [&](Clip& clip) { begin_noise(clip); });
    stage("preview", By::all, always, [&](Clip& clip) { denoise(clip); });
    stage("refiner", By::all, with_refiner, [&](Clip& clip) { refine(clip); });
    for_each_clip(By::all, [&](Clip& clip) { keep_latents(clip); });
    stage("audio", By::first, with_audio, [&](Clip& clip) { decode_audio(clip); });
    // Last, so that a single encoder is open at a time, and the sound is there for it.
    stage("video", By::all, always, [&](Clip& clip) { decode_video(clip); });
    if (!team_.alone()) for_each_clip(By::all, [&](Clip& clip) { record_ranks(clip); });
    std::vector<Report> reports;
    for (Clip& clip : clips_) reports.push_back(std::move(clip.report));
    return reports;
  }

 private:
  /// Whose work a stage is: the first rank's, or that of all ranks together.
  enum class By { first, all };

  /// What `work` throws fails that clip alone, on every rank.
  template <typename Work>
  void for_each_clip(By by, Work work) {
    for (std::size_t i = 0; i < clips_.size(); ++i) {
      Clip& clip = clips_[i];
      if (!clip.report.error.empty()) continue;
      if (team_.alone()) progress_.check();
      if (clips_.size() > 1) progress_.item(i + 1, clips_.size());
      const Outcome outcome = team_.agree(attempt(by, [&] { work(clip); }));
      if (outcome.cancelled) throw Cancelled();
      if (!outcome.error.empty()) drop(clip, outcome.error);
    }
  }

  template <typename Work>
  Outcome attempt(By by, Work work) {
    if (by == By::first && !team_.first()) return {};
    if (by == By::first) team_progress_.begin_alone();
    Outcome outcome;
    try {
      work();
    } catch (const RankLost&) {  // there is nobody left to agree with
      throw;
    } catch (...) {
      outcome = Team::outcome_of(std::current_exception());
    }
    team_progress_.end_alone();
    return outcome;
  }

  /// The same for the clips that the stage applies to, timed, with its peaks.
  template <typename Applies, typename Work>
  void stage(const char* name, By by, Applies applies, Work work) {
    for_each_clip(by, [&](Clip& clip) {
      if (!applies(clip.task.request)) return;
      reset_peak_resident();
      const auto start = std::chrono::steady_clock::now();
      work(clip);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      const std::size_t resident = peak_resident_bytes();
      clip.report.stages.push_back(
          {name, elapsed.count(), resident, pipeline_.take_scratch_peak(), pipeline_.take_device_peak()});
    });
  }

  void drop(Clip& clip, std::string why) {
    if (!clip.task.label.empty()) log_warning("{}: {}", clip.task.label, why);
    Clip failed({});
    failed.report.error = std::move(why);
    clip = std::move(failed);
  }

  void warn_of_lengths() const {
    if (!team_.first()) return;
    for (const Clip& clip : clips_) {
      const double seconds = clip.task.request.seconds;
      if (!clip.task.error.empty() || std::abs(seconds - kTrainedSeconds) < 1e-9) continue;
      log_warning("the released weights were trained on {} s clips; {} s may look and sound worse",
                  kTrainedSeconds, seconds);
      return;  // one line is enough for a batch
    }
  }

  /// What can be known before an hour of computing.
  void check(Clip& clip) {
    require(clip.task.error.empty(), "{}", clip.task.error);
    require(clip.task.output.has_filename(), "\"{}\": the output needs the name of a file",
            clip.task.output.string());
    require_mp4(clip.task.output);
    const AtomicFile writable(clip.task.output);
    identify_images(clip.task.request);
    require_parts(root_, clip.task.request);
    if (clip.task.latents_directory) const AtomicFile latents(latents_file(*clip.task.latents_directory));
  }

  void begin_noise(Clip& clip) {
    const Request& request = clip.task.request;
    Latents& noise = clip.start.latents;
    noise.video = clip.noise.randn({kLatentChannels, request.latent_frames(),
                                    request.height / kPixelsPerLatent, request.width / kPixelsPerLatent});
    noise.audio = clip.noise.randn({request.audio_latents(), kAudioChannels});
    if (clip.task.resume && team_.first()) take_up(*clip.task.resume, request, clip.start);
  }

  /// What the first rank has made is on every rank.
  void share(Clip& clip) {
    const RankRecord before = pipeline_.rank_record();
    clip.sent_before = before.bytes_sent;
    clip.received_before = before.bytes_received;
    for (Tensor* t :
         {&clip.text.prompt, &clip.text.negative, &clip.start.latents.video, &clip.start.latents.audio})
      team_.share(*t);
    team_.share(clip.text.figure_tokens);
    team_.share(clip.images);
    for (UniPCState* solver : {&clip.start.video, &clip.start.audio}) {
      team_.share(solver->step);
      team_.share(solver->last_order);
      for (Tensor* t : {&solver->last_sample, &solver->x0, &solver->previous_x0}) team_.share(*t);
    }
  }

  void denoise(Clip& clip) {
    if (!team_.alone()) share(clip);
    const SampleState start = std::move(clip.start);
    clip.latents = start.step() == clip.task.request.steps ? start.latents : denoise_from(start, clip);
    clip.images.clear();
    clip.report.sha256["latents"] = sha256_of(clip.latents.video);
    clip.report.sha256["audio_latents"] = sha256_of(clip.latents.audio);
  }

  void record_ranks(Clip& clip) {
    RankRecord own = pipeline_.rank_record();
    own.bytes_sent -= clip.sent_before;
    own.bytes_received -= clip.received_before;
    for (const std::string& text : team_.world().host().gather_texts(own.to_json().dump())) {
      clip.report.ranks.push_back(RankRecord::from_json(nlohmann::json::parse(text)));
      clip.report.bytes_exchanged += clip.report.ranks.back().bytes_sent;
    }
  }

  Latents denoise_from(const SampleState& start, Clip& clip) {
    const ClipTask& task = clip.task;
    std::int64_t kept = start.step();
    SampleState last = start;
    const auto keep = [&] {
      if (!task.resume || last.step() == kept) return;
      keep_state(*task.resume, task.request, last);
      kept = last.step();
    };
    const auto on_step = [&](const StepRecord& step, const SampleState& state) {
      clip.report.steps.push_back(step);
      last = state;
      if (task.resume && (state.step() % task.resume->every == 0 || state.step() == task.request.steps))
        keep();
      if (task.watcher && task.watcher->wants_frame(step))
        task.watcher->frame(step, pipeline_.preview_frame(task.request, state.video.x0));
      if (!team_.alone()) team_progress_.check_owner();
    };
    try {
      return pipeline_.denoise(task.request, clip.text, clip.images, start, on_step);
    } catch (const Cancelled&) {
      keep();
      throw;
    } catch (const RankLost&) {
      keep();
      throw;
    }
  }

  void refine(Clip& clip) {
    const Request& request = clip.task.request;
    const Tensor noise = clip.noise.randn({kLatentChannels, 2 * request.latent_frames() - 1,
                                           request.refine->height / kPixelsPerLatent,
                                           request.refine->width / kPixelsPerLatent});
    const auto record = [&](const StepRecord& step) {
      clip.report.refiner_steps.push_back(step);
      if (!team_.alone()) team_progress_.check_owner();
    };
    clip.refined = pipeline_.refine(request, clip.text, clip.latents.video, noise, record);
    clip.report.sha256["refined_latents"] = sha256_of(clip.refined);
  }

  void keep_latents(Clip& clip) {
    clip.text = {};
    if (clip.task.latents_directory) save_latents(*clip.task.latents_directory, clip.latents, clip.refined);
  }

  void decode_audio(Clip& clip) {
    clip.sound = pipeline_.decode_audio(clip.latents.audio);
    clip.report.sha256["audio"] = sha256_of(clip.sound);
    if (clip.task.sound) write_wav(*clip.task.sound, clip.sound, kSampleRate);
  }

  /// All ranks decode, the first one writes.
  void decode_video(Clip& clip) {
    const Request& request = clip.task.request;
    std::optional<VideoWriter> writer;
    const auto open = [&] {
      if (team_.first())
        writer.emplace(clip.task.output, video_options(request, root_.defaults().fps),
                       request.audio ? std::optional<AudioOptions>(std::in_place) : std::nullopt);
      return true;
    };
    team_.everywhere(open);  // else the others would decode for nobody
    const Tensor& latent = clip.refined.defined() ? clip.refined : clip.latents.video;
    if (team_.first()) {
      team_progress_.begin_alone();  // the decoder lets the others finish when this one stops
      write_clip(clip, latent, *writer);
    } else {
      pipeline_.decode_video(request, latent, {});
    }
    clip.latents = {};
    clip.refined = clip.sound = {};
  }

  void write_clip(Clip& clip, const Tensor& latent, VideoWriter& writer) {
    if (clip.sound.defined()) writer.write_audio(clip.sound);
    const std::int64_t middle = 2 * (latent.dim(-3) - 1);
    Sha256 frames_sha;
    std::int64_t done = 0;
    pipeline_.decode_video(clip.task.request, latent, [&](const Tensor& frames) {
      frames_sha.add(frames);
      writer.write_frames(frames);
      if (clip.task.thumbnail && done <= middle && middle < done + frames.dim(0))
        write_jpeg(*clip.task.thumbnail,
                   frames.rows(middle - done, 1).reshape({frames.dim(1), frames.dim(2), 3}));
      done += frames.dim(0);
    });
    clip.report.sha256["frames"] = frames_sha.hex();
    progress_.check();
    writer.finish();
  }

  const CheckpointRoot& root_;
  const Team& team_;
  TeamProgress team_progress_;
  Progress& progress_;
  Pipeline& pipeline_;
  std::vector<Clip> clips_;
};

/// What the other ranks need of the tasks: requests, and which are wrong already.
std::string job_text(const std::vector<ClipTask>& tasks) {
  nlohmann::json job = nlohmann::json::array();
  for (const ClipTask& task : tasks) {
    nlohmann::json request = task.request.to_metadata();
    for (const ImageInput& image : task.request.images)
      request["image"][fmt::format("<Figure {}>", image.figure)] = image.path;
    job.push_back({{"request", task.error.empty() ? request : nlohmann::json()}, {"error", task.error}});
  }
  return job.dump();
}

std::vector<ClipTask> tasks_of_job(const std::string& text, const GenerationDefaults& defaults) {
  std::vector<ClipTask> tasks;
  for (const nlohmann::json& entry : nlohmann::json::parse(text)) {
    ClipTask& task = tasks.emplace_back();
    task.error = entry.at("error");
    if (task.error.empty())
      task.request = Request::from_json(entry.at("request"), defaults, "rank 0's request");
  }
  return tasks;
}

constexpr const char* kDismissed = "";

}  // namespace

std::vector<Report> generate(const CheckpointRoot& root, std::vector<ClipTask> tasks, Progress& progress,
                             const EngineOptions& options) {
  Pipeline pipeline(root, progress, options);
  pipeline.team().require_same(root, options);
  std::vector<Report> reports = generate(root, pipeline, std::move(tasks), progress);
  dismiss(pipeline);
  return reports;
}

std::vector<Report> generate(const CheckpointRoot& root, Pipeline& pipeline, std::vector<ClipTask> tasks,
                             Progress& progress) {
  if (!pipeline.team().alone()) pipeline.team().world().host().broadcast(job_text(tasks), 0);
  return Batch(root, pipeline, std::move(tasks), progress).run();
}

void follow(const CheckpointRoot& root, Pipeline& pipeline, const std::function<void()>& before_each) {
  const World& world = pipeline.team().world();
  Progress progress;
  for (;;) {
    world.set_stage("waiting for a request");
    const std::string job = world.host().broadcast(std::string(), 0, kPatient);
    if (job == kDismissed) return;
    if (before_each) before_each();
    try {
      Batch(root, pipeline, tasks_of_job(job, root.defaults()), progress).run();
    } catch (const Cancelled&) {  // rank 0 knows
    }
  }
}

void follow(const CheckpointRoot& root, const EngineOptions& options) {
  Progress progress;
  Pipeline pipeline(root, progress, options);
  pipeline.team().require_same(root, options);
  follow(root, pipeline);
}

void dismiss(const Pipeline& pipeline) {
  if (!pipeline.team().alone()) pipeline.team().world().host().broadcast(std::string(kDismissed), 0);
}

}  // namespace magi
