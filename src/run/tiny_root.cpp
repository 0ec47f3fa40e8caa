// SPDX-License-Identifier: Apache-2.0
#include "run/tiny_root.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/log.h"
#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/torch_writer.h"
#include "media/image_writer.h"
#include "run/tiny_weights.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

void write_json(const fs::path& path, const nlohmann::json& value) {
  const std::string text = value.dump(1) + "\n";
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

/// A sun over the sea: something to start a clip from.
Tensor example_picture() {
  constexpr std::int64_t kWidth = 320, kHeight = 192, kHorizon = 120;
  Tensor picture = Tensor::empty(DType::u8, {kHeight, kWidth, 3});
  std::uint8_t* pixel = picture.data<std::uint8_t>();
  for (std::int64_t y = 0; y < kHeight; ++y)
    for (std::int64_t x = 0; x < kWidth; ++x, pixel += 3) {
      const std::int64_t dx = x - kWidth / 2, dy = y - kHorizon + 20;
      const bool sun = y < kHorizon && dx * dx + dy * dy < 40 * 40;
      const bool sea = y >= kHorizon;
      pixel[0] = static_cast<std::uint8_t>(sun ? 255 : sea ? 20 : 120 + y);
      pixel[1] = static_cast<std::uint8_t>(sun ? 220 : sea ? 60 + (y - kHorizon) / 2 : 90 + y / 2);
      pixel[2] = static_cast<std::uint8_t>(sun ? 120 : sea ? 110 : 200 - y);
    }
  return picture;
}

/// `check` is called between files, and may throw.
void write_parts(const fs::path& root, std::uint64_t seed, const std::function<void()>& check) {
  NoiseGenerator noise(seed);
  for (const char* part : {"preview", "refiner", "text_encoder", "turbo_vae", "stable-audio-open-1.0", "vae"})
    fs::create_directories(root / part);
  write_json(root / "config.json", tiny_config());
  check();
  write_safetensors(root / "preview/model.safetensors", tiny_preview(noise));
  check();
  write_safetensors(root / "refiner/model.safetensors", tiny_refiner(noise));
  check();
  write_json(root / "text_encoder/config.json", tiny_text_encoder_config());
  write_json(root / "text_encoder/tokenizer.json", tiny_tokenizer());
  write_safetensors(root / "text_encoder/model.safetensors", tiny_text_encoder(noise));
  check();
  write_json(root / "turbo_vae/TurboV3-Wan22-TinyShallow_7_7.json", tiny_turbo_config());
  write_torch_checkpoint(root / "turbo_vae/checkpoint.ckpt", tiny_turbo_decoder(noise), "ema_state_dict");
  write_json(root / "stable-audio-open-1.0/model_config.json", tiny_audio_config());
  write_safetensors(root / "stable-audio-open-1.0/model.safetensors", tiny_audio_decoder(noise));
  write_png(root / "example.png", example_picture());
  write_torch_checkpoint(root / "vae/Wan2.2_VAE.pth", tiny_wan_vae(noise));
  check();
}

constexpr std::string_view kPartial = ".partial-";

/// What a killed program left beside `target`.
void warn_of_leftovers(const fs::path& target) {
  const std::string name = target.filename().string().append(kPartial);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(target.parent_path(), error))
    if (entry.path().filename().string().starts_with(name))
      log_warning("{}: left by an init that was killed; remove it", entry.path().string());
}

}  // namespace

void write_tiny_root(const fs::path& directory, std::uint64_t seed, const std::function<void()>& check) {
  std::error_code error;
  require(
      !fs::exists(directory, error) || (fs::is_directory(directory, error) && fs::is_empty(directory, error)),
      "{}: exists already; choose another directory or remove it", directory.string());
  fs::path target = fs::absolute(directory).lexically_normal();
  if (!target.has_filename()) target = target.parent_path();
  warn_of_leftovers(target);
  const fs::path partial = target.string().append(kPartial) + std::to_string(getpid());
  try {
    fs::create_directories(partial);
    write_parts(partial, seed, check);
    fs::remove(target, error);  // an empty directory of that name makes way
    fs::rename(partial, target);
  } catch (const fs::filesystem_error& e) {
    fs::remove_all(partial, error);
    fail("{}: cannot be written: {}", directory.string(), e.code().message());
  } catch (...) {
    fs::remove_all(partial, error);
    throw;
  }
}

}  // namespace magi
