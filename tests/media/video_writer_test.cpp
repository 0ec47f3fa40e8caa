// SPDX-License-Identifier: Apache-2.0
#include "media/video_writer.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>

#include "media/wav_writer.h"
#include "support/clip_reader.h"
#include "support/expect_error.h"
#include "support/file_size_limit.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

/// A moving pattern; `seed` makes it another one.
Tensor pattern(std::int64_t frames, std::int64_t height, std::int64_t width, int seed = 0) {
  Tensor clip = Tensor::empty(DType::u8, {frames, height, width, 3});
  std::uint8_t* p = clip.data<std::uint8_t>();
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t y = 0; y < height; ++y) {
      for (std::int64_t x = 0; x < width; ++x) {
        *p++ = static_cast<std::uint8_t>(128 + 100 * std::sin(0.1 * static_cast<double>(x + 2 * t + seed)));
        *p++ = static_cast<std::uint8_t>(128 + 100 * std::sin(0.07 * static_cast<double>(y - t)));
        *p++ = static_cast<std::uint8_t>((x + y + 3 * t) / 2 % 256);
      }
    }
  }
  return clip;
}

Tensor tone(std::int64_t samples, int rate = 44100) {
  Tensor audio = Tensor::empty(DType::f32, {samples, 2});
  for (std::int64_t i = 0; i < samples; ++i) {
    const double t = static_cast<double>(i) / rate;
    audio.data<float>()[2 * i] = static_cast<float>(0.5 * std::sin(2 * M_PI * 440 * t));
    audio.data<float>()[2 * i + 1] = static_cast<float>(0.3 * std::sin(2 * M_PI * 660 * t));
  }
  return audio;
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t entries(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

VideoOptions options(int width, int height) {
  VideoOptions o;
  o.width = width;
  o.height = height;
  return o;
}

TEST(VideoWriter, WritesWhatAPlayerExpects) {
  const TempDir dir;
  const std::string comment =
      "{\"prompt\":\"\u96ea, \\\"snow\\\"\",\"seed\":7,\"filler\":\"" + std::string(50'000, 'x') + "\"}";
  VideoOptions o = options(96, 64);
  o.fps = {25, 2};
  o.metadata = {{"title", "\u00e9t\u00e9"}, {"comment", comment}};
  VideoWriter writer(dir / "clip.mp4", o, AudioOptions{});
  const Tensor frames = pattern(25, 64, 96);
  writer.write_frames(frames);
  writer.write_audio(tone(88200));
  EXPECT_FALSE(std::filesystem::exists(dir / "clip.mp4"));
  writer.finish();
  EXPECT_EQ(entries(dir.path()), 1u);

  const ClipInfo info = probe_clip(dir / "clip.mp4");
  EXPECT_EQ(info.video_codec, "h264");
  EXPECT_EQ(info.pixel_format, "yuv420p");
  EXPECT_EQ(info.width, 96);
  EXPECT_EQ(info.height, 64);
  EXPECT_EQ(info.frames, 25);
  EXPECT_EQ(info.fps.numerator, 25);
  EXPECT_EQ(info.fps.denominator, 2);
  EXPECT_DOUBLE_EQ(info.video_seconds, 2);
  EXPECT_EQ(info.audio_codec, "aac");
  EXPECT_EQ(info.sample_rate, 44100);
  EXPECT_EQ(info.channels, 2);
  EXPECT_NEAR(info.audio_seconds, 2, 1e-3);
  EXPECT_EQ(info.metadata, o.metadata);

  const std::string file = bytes_of(dir / "clip.mp4");
  EXPECT_LT(file.find("moov"), file.find("mdat"));  // a browser may start before it has everything
  for (const char* version : {"x264", "Lavc", "Lavf"})
    EXPECT_EQ(file.find(version), std::string::npos) << version;

  const Tensor back = decode_frames(dir / "clip.mp4");
  const double error = relative_l2(back, frames);
  std::printf("frames come back within %.3g (relative L2)\n", error);
  EXPECT_LT(error, 0.05);
  EXPECT_EQ(decode_frames(dir / "clip.mp4", 3).dim(0), 3);

  const Tensor sound = decode_audio(dir / "clip.mp4");
  ASSERT_GE(sound.dim(0), 88200);
  EXPECT_LT(sound.dim(0), 88200 + 1024);
  const double sound_error = relative_l2(sound.rows(2048, 80000), tone(88200).rows(2048, 80000));
  std::printf("sound comes back within %.3g (relative L2), in step with the original\n", sound_error);
  EXPECT_LT(sound_error, 0.02);
}

TEST(VideoWriter, ColoursSurvive) {
  const TempDir dir;
  const int colours[][3] = {{255, 0, 0},     {0, 255, 0}, {0, 0, 255},
                            {255, 255, 255}, {0, 0, 0},   {200, 120, 40}};
  Tensor frames = Tensor::empty(DType::u8, {6, 32, 32, 3});
  for (std::int64_t i = 0; i < frames.numel(); ++i) {
    frames.data<std::uint8_t>()[i] = static_cast<std::uint8_t>(colours[i / (32 * 32 * 3)][i % 3]);
  }
  VideoOptions o = options(32, 32);
  o.crf = 1;
  VideoWriter writer(dir / "c.mp4", o);
  writer.write_frames(frames);
  writer.finish();
  EXPECT_EQ(probe_clip(dir / "c.mp4").audio_codec, "");
  const double error = max_abs_diff(decode_frames(dir / "c.mp4"), frames);
  std::printf("plain colours come back within %g levels\n", error);
  EXPECT_LE(error, 4);
  expect_error([&] { decode_audio(dir / "c.mp4"); }, "no sound");
}

/// The bytes of a clip of 30 frames and 1.2 s of sound, given in the stated pieces.
std::string write_pieces(const std::filesystem::path& path, std::int64_t frames_at_once,
                         std::int64_t samples_at_once, bool sound_first, int seed = 0) {
  const Tensor frames = pattern(30, 48, 64, seed), audio = tone(52'920);
  VideoWriter writer(path, options(64, 48), AudioOptions{});
  const auto sound = [&] {
    for (std::int64_t i = 0; i < audio.dim(0); i += samples_at_once) {
      writer.write_audio(audio.rows(i, std::min(samples_at_once, audio.dim(0) - i)));
    }
  };
  if (sound_first) sound();
  for (std::int64_t i = 0; i < 30; i += frames_at_once) {
    writer.write_frames(frames.rows(i, std::min(frames_at_once, 30 - i)));
  }
  if (!sound_first) sound();
  writer.finish();
  return bytes_of(path);
}

TEST(VideoWriter, EqualFramesGiveEqualFiles) {
  const TempDir dir;
  const std::string once = write_pieces(dir / "a.mp4", 30, 52'920, false);
  EXPECT_TRUE(write_pieces(dir / "another name.mp4", 30, 52'920, false) == once);
  EXPECT_TRUE(write_pieces(dir / "b.mp4", 7, 1'000, true) == once);
  EXPECT_TRUE(write_pieces(dir / "c.mp4", 1, 52'920, true) == once);
  EXPECT_FALSE(write_pieces(dir / "d.mp4", 30, 52'920, false, 9) == once);
}

TEST(VideoWriter, ResizesFinishedFrames) {
  const TempDir dir;
  VideoOptions o = options(64, 48);
  o.output_width = 160;
  o.output_height = 90;
  VideoWriter writer(dir / "clip.mp4", o);
  writer.write_frames(pattern(3, 48, 64));
  writer.finish();
  EXPECT_EQ(decode_frames(dir / "clip.mp4").shape(), (Shape{3, 90, 160, 3}));
}

TEST(VideoWriter, OddInputBecomesEvenOutput) {
  const TempDir dir;
  expect_error([&] { VideoWriter(dir / "clip.mp4", options(33, 21)); }, "even sides");
  VideoOptions o = options(33, 21);
  o.output_width = 32;
  o.output_height = 20;
  VideoWriter writer(dir / "clip.mp4", o);
  writer.write_frames(pattern(2, 21, 33));
  writer.finish();
  EXPECT_EQ(probe_clip(dir / "clip.mp4").frames, 2);
}

TEST(VideoWriter, NothingStaysWithoutFinish) {
  const TempDir dir;
  std::ofstream(dir / "clip.mp4") << "the clip of yesterday";
  {
    VideoWriter writer(dir / "clip.mp4", options(32, 32), AudioOptions{});
    writer.write_frames(pattern(40, 32, 32));
    EXPECT_LE(entries(dir.path()), 2u);  // without a name where the file system can do that
  }
  EXPECT_EQ(entries(dir.path()), 1u);
  EXPECT_EQ(bytes_of(dir / "clip.mp4"), "the clip of yesterday");
}

TEST(VideoWriter, TwoWritersOfOneNameDoNotMix) {
  const TempDir dir;
  VideoWriter first(dir / "clip.mp4", options(32, 32)), second(dir / "clip.mp4", options(64, 64));
  first.write_frames(pattern(60, 32, 32));
  second.write_frames(pattern(60, 64, 64));
  first.finish();
  EXPECT_EQ(decode_frames(dir / "clip.mp4").dim(2), 32);
  second.finish();
  EXPECT_EQ(decode_frames(dir / "clip.mp4").dim(2), 64);
  EXPECT_EQ(entries(dir.path()), 1u);
}

TEST(VideoWriter, AKilledProcessLeavesNoFileUnderTheName) {
  const TempDir dir;
  EXPECT_EXIT(
      {
        VideoWriter writer(dir / "clip.mp4", options(32, 32));
        writer.write_frames(pattern(40, 32, 32));
        ::raise(SIGKILL);
      },
      testing::KilledBySignal(SIGKILL), "");
  EXPECT_FALSE(std::filesystem::exists(dir / "clip.mp4"));
}

TEST(VideoWriter, BadPathsAreNamedAtOnce) {
  const TempDir dir;
  const auto open = [](const std::filesystem::path& path) { VideoWriter(path, options(32, 32)); };
  expect_error([&] { open(dir / "none/clip.mp4"); }, "none/clip.mp4: cannot write: No such file");
  expect_error([&] { open(dir.path()); }, dir.path().string() + ": cannot write: Is a directory");
  expect_error([&] { open("/proc/clip.mp4"); }, "/proc/clip.mp4: cannot write");
  expect_error([&] { open("/dev/null/clip.mp4"); }, "/dev/null/clip.mp4: cannot write: Not a directory");
  expect_error([&] { open(dir / (std::string(300, 'n') + ".mp4")); }, "cannot write: File name too long");
}

TEST(VideoWriter, BadOptionsAndInputAreRefused) {
  const TempDir dir;
  const auto path = dir / "clip.mp4";
  expect_error([&] { VideoWriter(path, options(0, 32)); }, "0x32");
  expect_error([&] { VideoWriter(path, options(-2, 32)); }, "-2x32");
  expect_error([&] { VideoWriter(path, options(16386, 32)); }, "16386x32");
  VideoOptions o = options(32, 32);
  o.fps = {0, 1};
  expect_error([&] { VideoWriter(path, o); }, "0/1");
  o = options(32, 32);
  o.crf = std::nan("");
  expect_error([&] { VideoWriter(path, o); }, "crf");
  o = options(32, 32);
  o.metadata = {{"seed", "7"}};
  expect_error([&] { VideoWriter(path, o); }, "'seed'");
  expect_error([&] { VideoWriter(path, options(32, 32), AudioOptions{44100, 7, 192'000}); }, "7 channels");
  expect_error([&] { VideoWriter(path, options(32, 32), AudioOptions{12345, 2, 192'000}); }, "encoder aac");

  VideoWriter writer(path, options(32, 32), AudioOptions{});
  expect_error([&] { writer.write_frames(pattern(2, 32, 34)); }, "u8 [T,32,32,3]");
  expect_error([&] { writer.write_audio(Tensor::zeros(DType::f32, {4, 1})); }, "f32 [samples,2]");
  expect_error([&] { writer.finish(); }, "no frames");
  Tensor audio = tone(5000);
  audio.data<float>()[2 * 3000] = std::numeric_limits<float>::quiet_NaN();
  expect_error([&] { writer.write_audio(audio); }, "sample 3000 is not finite");
  expect_error([&] { writer.write_frames(pattern(2, 32, 32)); }, "failed before");
  EXPECT_FALSE(std::filesystem::exists(path));
  VideoWriter silent(path, options(32, 32));
  expect_error([&] { silent.write_audio(tone(5)); }, "without audio");
}

/// Frames that compress badly, until the disk is full.
void fill(const std::filesystem::path& path) {
  Tensor frames = Tensor::empty(DType::u8, {40, 128, 128, 3});
  std::uint32_t state = 1;
  for (std::uint8_t& value : frames.values<std::uint8_t>()) {
    value = static_cast<std::uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  }
  VideoWriter writer(path, options(128, 128), AudioOptions{});
  writer.write_frames(frames);
  writer.write_audio(tone(44100));
  writer.finish();
}

TEST(VideoWriter, AFullDiskIsAnErrorThatNamesThePath) {
  const TempDir dir;
  const auto mount_point = dir / "small";
  std::filesystem::create_directory(mount_point);
  if (::mount("none", mount_point.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "a small file system needs the right to mount";
  }
  expect_error([&] { fill(mount_point / "clip.mp4"); },
               "small/clip.mp4: cannot write: No space left on device");
  EXPECT_EQ(entries(mount_point), 0u);
  ::umount(mount_point.c_str());
}

TEST(VideoWriter, AFileSizeLimitIsAnErrorToo) {
  const TempDir dir;
  const FileSizeLimit limit(100'000);
  expect_error([&] { fill(dir / "clip.mp4"); }, "clip.mp4: cannot write: File too large");
  EXPECT_EQ(entries(dir.path()), 0u);
}

TEST(WavWriter, WritesSixteenBitPcm) {
  const TempDir dir;
  const std::vector<float> values{0, 1, -1, 0.5f, 2, -2};
  write_wav(dir / "a.wav", Tensor::of<float>(values, {3, 2}), 44100);
  const std::string file = bytes_of(dir / "a.wav");
  ASSERT_EQ(file.size(), 44u + 12);
  EXPECT_EQ(file.substr(0, 4) + file.substr(8, 8), "RIFFWAVEfmt ");
  const auto sample = [&](int i) {
    return static_cast<std::int16_t>(static_cast<std::uint8_t>(file[44 + 2 * i]) |
                                     static_cast<std::uint8_t>(file[45 + 2 * i]) << 8);
  };
  EXPECT_EQ(sample(1), 32767);
  EXPECT_EQ(sample(2), -32767);
  EXPECT_EQ(sample(3), 16384);
  EXPECT_EQ(sample(4), 32767);
  expect_error([&] { write_wav(dir / "no/a.wav", Tensor::zeros(DType::f32, {3, 2}), 44100); }, "no/a.wav");
  const std::vector<float> bad{0, INFINITY};
  expect_error(
      [&] {
        write_wav(dir / "b.wav", Tensor::of<float>(bad, {1, 2}), 44100);
      },
      "sample 1 is not finite");
  EXPECT_EQ(entries(dir.path()), 1u);
}

}  // namespace
}  // namespace magi
