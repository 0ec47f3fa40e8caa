// SPDX-License-Identifier: Apache-2.0
#include "run/clip_files.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "media/image_reader.h"
#include "run/sha256.h"

namespace magi {
namespace {

constexpr std::size_t kTitleBytes = 80;

FrameRate frame_rate(double fps) {
  const auto thousandths = static_cast<int>(std::lround(fps * 1000));
  for (int denominator : {1, 2, 1000})
    if (thousandths * denominator % 1000 == 0) return {thousandths * denominator / 1000, denominator};
  return {thousandths, 1000};
}

/// The beginning of the prompt, cut between two code points.
std::string title_of(const std::string& prompt) {
  std::size_t end = std::min(prompt.size(), kTitleBytes);
  while (end < prompt.size() && end > 0 && (prompt[end] & 0xC0) == 0x80) --end;
  return prompt.substr(0, end);
}

std::string sha256_of_image(const std::filesystem::path& file) {
  const auto mapped = open_image(file);
  const auto bytes = mapped->bytes();
  return sha256_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

void require_mp4(const std::filesystem::path& output) {
  std::string extension = output.extension().string();
  std::ranges::transform(extension, extension.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* other :
       {".webm", ".mkv", ".avi", ".gif", ".wav", ".mp3", ".png", ".jpg", ".jpeg", ".webp"})
    require(extension != other, "{}: a clip is an MP4 file; name it {}", output.string(),
            std::filesystem::path(output).replace_extension(".mp4").filename().string());
}

void identify_images(Request& request) {
  std::vector<std::string> found;
  for (const ImageInput& image : request.images) found.push_back(sha256_of_image(image.path));
  for (std::size_t i = 0; i < request.image_sha256.size(); ++i)
    require(request.image_sha256[i] == found[i],
            "{}: another picture than the request's image_sha256 says: {}, not {}", request.images[i].path,
            found[i], request.image_sha256[i]);
  request.image_sha256 = std::move(found);
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
  video.metadata = {{"title", title_of(request.original_prompt.value_or(request.prompt))},
                    {"comment", request.to_metadata().dump()}};
  return video;
}

std::filesystem::path latents_file(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  require(!error, "{}: cannot be made: {}", directory.string(), error.message());
  return directory / "latents.safetensors";
}

void save_latents(const std::filesystem::path& directory, const Latents& preview, const Tensor& refined) {
  std::vector<std::pair<std::string, Tensor>> tensors{{"preview_latent", preview.video},
                                                      {"audio_latent", preview.audio}};
  if (refined.defined()) tensors.emplace_back("refined_latent", refined);
  write_safetensors(latents_file(directory), tensors);
}

}  // namespace magi
