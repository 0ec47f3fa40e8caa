// SPDX-License-Identifier: Apache-2.0
#include "media/wav_writer.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"

namespace magi {

void write_wav(const std::filesystem::path& path, const Tensor& audio, int sample_rate) {
  require(audio.rank() == 2 && audio.dtype() == DType::f32 && audio.dim(1) >= 1 && audio.dim(1) <= 255,
          "{}: expected audio f32 [samples,channels], got {} {}", path.string(), name_of(audio.dtype()),
          to_string(audio.shape()));
  require(sample_rate > 0, "{}: sample rate {} is not positive", path.string(), sample_rate);
  const auto samples = audio.values<float>();
  const std::size_t data_bytes = samples.size() * 2, frame_bytes = static_cast<std::size_t>(audio.dim(1)) * 2;
  require(data_bytes < 0xffffff00u, "{}: {} samples are too many for a WAV file", path.string(),
          samples.size());

  std::vector<std::uint8_t> file;
  file.reserve(44 + data_bytes);
  const auto append = [&](std::string_view text) { file.insert(file.end(), text.begin(), text.end()); };
  const auto number = [&](std::size_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  };
  append("RIFF");
  number(36 + data_bytes, 4);
  append("WAVEfmt ");
  number(16, 4);
  number(1, 2);  // PCM
  number(frame_bytes / 2, 2);
  number(static_cast<std::size_t>(sample_rate), 4);
  number(static_cast<std::size_t>(sample_rate) * frame_bytes, 4);
  number(frame_bytes, 2);
  number(16, 2);
  append("data");
  number(data_bytes, 4);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    require(std::isfinite(samples[i]), "{}: audio sample {} is not finite", path.string(), i);
    const long value = std::lrint(std::clamp(samples[i], -1.0f, 1.0f) * 32767.0f);
    number(static_cast<std::size_t>(value) & 0xffff, 2);
  }
  AtomicFile output(path);
  output.write(file.data(), file.size());
  output.commit();
}

}  // namespace magi
