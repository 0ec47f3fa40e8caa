// SPDX-License-Identifier: Apache-2.0
#include "run/generate.h"

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "io/safetensors.h"
#include "media/video_writer.h"
#include "run/pipeline.h"
#include "sample/noise.h"

namespace magi {
namespace {

constexpr std::int64_t kVideoChannels = 48, kAudioChannels = 64;
constexpr std::int64_t kPixelsPerCell = 16;
constexpr double kTrainedSeconds = 10;

/// Times a stage and takes its peaks.
class StageClock {
 public:
  StageClock(Report& report, Pipeline& pipeline, std::string name)
      : report_(report), pipeline_(pipeline), name_(std::move(name)) {
    reset_peak_resident();
  }
  void stop() {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const std::size_t resident = peak_resident_bytes();
    report_.stages.push_back({name_, elapsed.count(), resident, pipeline_.take_scratch_peak()});
  }

 private:
  Report& report_;
  Pipeline& pipeline_;
  std::string name_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

FrameRate frame_rate(double fps) {
  const auto thousandths = static_cast<int>(std::lround(fps * 1000));
  for (int denominator : {1, 2, 1000})
    if (thousandths * denominator % 1000 == 0) return {thousandths * denominator / 1000, denominator};
  return {thousandths, 1000};
}

VideoOptions video_options(const Request& request, double fps) {
  VideoOptions video;
  const Size size = request.refine.value_or(Size{request.width, request.height});
  video.width = static_cast<int>(size.width);
  video.height = static_cast<int>(size.height);
  video.fps = frame_rate(request.refine ? 2 * fps : fps);
  if (request.output_size) {
    video.output_width = static_cast<int>(request.output_size->width);
    video.output_height = static_cast<int>(request.output_size->height);
  }
  video.metadata = {{"title", request.original_prompt.value_or(request.prompt).substr(0, 80)}, {"comment", request.to_metadata().dump()}};
  return video;
}

void save_latents(const std::filesystem::path& directory, const Latents& preview, const Tensor& refined) {
  std::filesystem::create_directories(directory);
  std::vector<std::pair<std::string, Tensor>> tensors{{"preview_latent", preview.video},
                                                      {"audio_latent", preview.audio}};
  if (refined.defined()) tensors.emplace_back("refined_latent", refined);
  write_safetensors(directory / "latents.safetensors", tensors);
}

std::string sha256_of(const Tensor& tensor) {
  Sha256 sha;
  sha.add(tensor);
  return sha.hex();
}

}  // namespace

Report generate(const CheckpointRoot& root, const Request& request, const GenerateOptions& options,
                Progress& progress) {
  if (std::abs(request.seconds - kTrainedSeconds) > 1e-9)
    log_warning("the released weights were trained on {} s clips; {} s may look and sound worse",
                kTrainedSeconds, request.seconds);
  Report report;
  Pipeline pipeline(root, options.dtype, progress);
  const auto stage = [&](const char* name, auto&& work) {
    progress.check();
    StageClock clock(report, pipeline, name);
    auto result = work();
    clock.stop();
    return result;
  };

  // Opened first: an unwritable output must not cost an hour of computing.
  std::optional<AudioOptions> audio_options;
  if (request.audio) audio_options.emplace();
  VideoWriter writer(options.output, video_options(request, root.defaults().fps), audio_options);

  NoiseGenerator noise(request.seed);
  const std::int64_t h = request.height / kPixelsPerCell, w = request.width / kPixelsPerCell;
  Latents latents;
  latents.video = noise.randn({kVideoChannels, request.latent_frames(), h, w});
  latents.audio = noise.randn({request.audio_latents(), kAudioChannels});

  const auto images = stage("images", [&] { return pipeline.encode_images(request); });
  const TextFeatures text = stage("text", [&] { return pipeline.encode_text(request); });
  latents = stage("preview", [&] {
    return pipeline.denoise(request, text, images, latents,
                            [&](const StepRecord& step, const Latents&) { report.steps.push_back(step); });
  });
  report.sha256["latents"] = sha256_of(latents.video);
  report.sha256["audio_latents"] = sha256_of(latents.audio);

  Tensor refined;
  if (request.refine) {
    const Tensor fresh =
        noise.randn({kVideoChannels, 2 * request.latent_frames() - 1, request.refine->height / kPixelsPerCell,
                     request.refine->width / kPixelsPerCell});
    refined = stage("refiner", [&] {
      return pipeline.refine(request, text, latents.video, fresh,
                             [&](const StepRecord& step) { report.refiner_steps.push_back(step); });
    });
    report.sha256["refined_latents"] = sha256_of(refined);
  }
  if (options.latents_directory) save_latents(*options.latents_directory, latents, refined);

  Sha256 frames_sha;
  stage("video", [&] {
    pipeline.decode_video(request, refined.defined() ? refined : latents.video, [&](const Tensor& frames) {
      frames_sha.add(frames);
      writer.write_frames(frames);
    });
    return 0;
  });
  report.sha256["frames"] = frames_sha.hex();
  if (request.audio) {
    const Tensor sound = stage("audio", [&] { return pipeline.decode_audio(latents.audio); });
    report.sha256["audio"] = sha256_of(sound);
    writer.write_audio(sound);
  }
  progress.check();
  writer.finish();
  return report;
}

}  // namespace magi
