// SPDX-License-Identifier: Apache-2.0
// Whatever is wrong with requests, pictures and outputs ends in one clear line and leaves no file.
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/file_size_limit.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using BadInput = ProgramTest;

const std::string kImages = MAGI2_SOURCE_DIR "/tests/media/data/";

TEST_F(BadInput, Prompts) {
  expect_refused({}, "prompt");
  expect_refused({"-p", ""}, "prompt is empty");
  expect_refused({"-p", " \n\t"}, "prompt is empty");
  expect_refused({"-p", "caf\xe9 \xff"}, "UTF-8");
  expect_refused({"-p", "x", "--negative-prompt", "\xc3("}, "UTF-8");
  expect_refused({"--prompt-file", "nowhere.txt"}, "nowhere.txt");
  expect_refused({"--prompt-file", "."}, "cannot be read: Is a directory");
  expect_refused({"--prompt-file", "/dev/zero"}, "holds more than");
}

TEST_F(BadInput, Numbers) {
  for (const std::string option : {"-W", "-H"})
    for (const std::string value : {"0", "-16", "17", "100000", "9223372036854775807"})
      expect_refused({"-p", "x", option, value}, option == "-W" ? "width" : "height");
  for (const std::string value : {"-1", "0", "1e300"})
    expect_refused({"-p", "x", "--seconds", value}, "seconds");
  for (const std::string value : {"0", "-5", "1000000"})
    expect_refused({"-p", "x", "--steps", value}, "steps");
  expect_refused({"-p", "x", "--seed", "-1"}, "seed");
  expect_refused({"-p", "x", "-n", "0"}, "count");
  for (const std::string value : {"64", "64x", "64x65", "0x64", "-64x64", "64x64x64", "99999999999x64"})
    expect_refused({"-p", "x", "--refine", value}, "refine");
  expect_refused({"-p", "x", "--output-width", "64"}, "go together");
  expect_refused({"-p", "x", "--output-width", "63", "--output-height", "64"}, "even");
  expect_refused({"-p", "x", "--preset", "8k"}, "preset");
  expect_refused({"-p", "x", "--dtype", "f64"}, "dtype");
  expect_refused({"-p", "x", "--vae", "mp3"}, "vae");
}

TEST_F(BadInput, NumbersThatNobodyMeans) {
  for (const std::string option : {"--seconds", "--cfg-video", "--cfg-audio"})
    for (const std::string value : {"nan", "inf", "-inf", "1e400"})
      expect_error_line(generate({"-p", "x", option, value}), 2,
                        option + ": expected a number, found " + value);
  for (const std::string option : {"--seed", "--steps", "--count"})
    expect_error_line(generate({"-p", "x", option, "99999999999999999999"}), 2,
                      option + ": 99999999999999999999 is out of range");
  expect_error_line(run_program(work(), {"init", "tiny", "--seed", "-1"}), 2,
                    "--seed: expected at least 0, found -1");
  expect_error_line(run_program(work(), {"serve", "--keep-days", "nan"}), 2,
                    "--keep-days: expected a number");
}

TEST_F(BadInput, Outputs) {
  fs::create_directories(work() / "directory");
  expect_refused({"-p", "x", "-o", "directory"}, "directory: ");
  expect_refused({"-p", "x", "-o", "nowhere/clip.mp4"}, "nowhere/clip.mp4: ");
  expect_refused({"-p", "x", "-o", "/proc/clip.mp4"}, "/proc/clip.mp4: ");
  expect_refused({"-p", "x", "-o", ""}, "the output needs the name of a file");
  expect_refused({"-p", "x", "-o", "directory/"}, "the output needs the name of a file");
  expect_refused({"-p", "x", "-o", "clip.WebM"}, "clip.WebM: a clip is an MP4 file; name it clip.mp4");
  write("file", "");
  expect_refused({"-p", "x", "--save-latents", "file"}, "file: ");
  EXPECT_EQ(generate({"-p", "x", "--save-latents", "file"}).err.find("denoise"), std::string::npos);
}

TEST_F(BadInput, OutputsThatWouldReplaceWhatIsNoFileOrIsRead) {
  ASSERT_EQ(::mkfifo((work() / "pipe.mp4").c_str(), 0600), 0);
  fs::create_symlink("pipe.mp4", work() / "link.mp4");
  expect_refused({"-p", "x", "-o", "pipe.mp4"}, "pipe.mp4: cannot write: not a regular file");
  expect_refused({"-p", "x", "-o", "link.mp4"}, "link.mp4: cannot write: not a regular file");
  expect_refused({"-p", "x", "--stats", "pipe.mp4"}, "not a regular file");
  EXPECT_TRUE(fs::is_fifo(work() / "pipe.mp4"));
  write("prompt.txt", "x");
  fs::copy(root() / "example.png", work() / "in.png");
  expect_refused({"--prompt-file", "prompt.txt", "-o", "./prompt.txt"}, "would replace the prompt's file");
  expect_refused({"-p", "x", "-i", "in.png", "-o", "in.png"}, "would replace a reference image");
  expect_refused({"-p", "x", "-o", "one", "--stats", "one"}, "would replace the clip");
  expect_refused({"-p", "x", "--stats", "one", "--profile", "one"}, "would replace --stats");
}

TEST_F(BadInput, ALinkStaysAndItsFileIsWritten) {
  write("linked.mp4", "old");
  fs::create_symlink("linked.mp4", work() / "link.mp4");
  const Outcome outcome = generate({"-p", "x", "-o", "link.mp4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(fs::is_symlink(work() / "link.mp4"));
  EXPECT_GT(fs::file_size(work() / "linked.mp4"), 1000u);
}

TEST_F(BadInput, ClosedAndFullStandardStreams) {
  const auto shell = [&](const std::string& command) {
    return std::system(("cd '" + work().string() + "' && '" MAGI2_PROGRAM "' " + command).c_str());
  };
  const std::string root_option = "-m '" + root().string() + "'";
  EXPECT_EQ(shell("generate " + root_option + " -p x -W 32 -H 32 --seconds 0.04 --steps 1 <&- >&- 2>&-"), 0);
  std::ifstream clip(work() / "clip.mp4", std::ios::binary);
  std::string head(8, '\0');
  clip.read(head.data(), 8);
  EXPECT_EQ(head.substr(4), "ftyp");  // neither warnings nor progress went into it
  EXPECT_EQ(
      shell("generate " + root_option + " -p x -W 32 -H 32 --seconds 0.04 --steps 1 2>/dev/full >/dev/null"),
      0);
  EXPECT_EQ(WEXITSTATUS(shell("generate -p x 2>/dev/full")), 1);
  EXPECT_NE(shell("plan " + root_option + " --json >/dev/full 2>/dev/null"), 0);
}

TEST_F(BadInput, FullDisk) {
  const FileSizeLimit limit(1200);
  expect_refused({"-p", "x"}, "clip.mp4: ");
}

TEST_F(BadInput, Pictures) {
  expect_refused({"-p", "x", "-i", "nowhere.png"}, "nowhere.png: ");
  expect_refused({"-p", "x", "-i", ""}, "path is empty");
  expect_refused({"-p", "x", "-i", "."}, ".: ");
  expect_error_line(generate({"-p", "x", "-i", "{\"<Figure 1>\": "}), 2, "--image: not valid JSON");
  expect_refused({"-p", "x", "-i", kImages + "bomb.png"}, "bomb.png: ");
  expect_refused({"-p", "x", "-i", kImages + "picture.gif"}, "picture.gif: ");
  write("text.png", "no picture");
  expect_refused({"-p", "x", "-i", "text.png"}, "text.png: ");
  fs::copy(root() / "example.png", work() / "cut.png");
  fs::resize_file(work() / "cut.png", fs::file_size(work() / "cut.png") / 2);
  expect_refused({"-p", "x", "-i", "cut.png"}, "cut.png: ");
  fs::copy(root() / "example.png", work() / "sparse.png");
  fs::resize_file(work() / "sparse.png", std::uintmax_t{1} << 40);  // would take an hour to read
  expect_refused({"-p", "x", "-i", "sparse.png"}, "too many for a picture");
}

TEST_F(BadInput, Threads) {
  for (const std::string value : {"0", "-1", "1025", "100000", "x"})
    expect_error_line(generate({"-p", "x", "--threads", value}), 2, "--threads");
  EXPECT_TRUE(files().empty());
}

TEST_F(BadInput, AnAnimationGivesItsFirstFrameAndAWarning) {
  const Outcome outcome = generate({"-p", "x", "-i", kImages + "animated.webp", "-o", "clip.mp4"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("animated.webp"), std::string::npos) << outcome.err;
  EXPECT_TRUE(fs::exists(work() / "clip.mp4"));
}

TEST_F(BadInput, BatchFiles) {
  const auto refused = [&](const std::string& content, const std::string& part) {
    write("batch.json", content);
    expect_refused({"--samples", "batch.json"}, part);
  };
  expect_refused({"--samples", "nowhere.json"}, "nowhere.json");
  refused("", "batch.json: not valid JSON");
  refused("[{\"prompt\": \"a\"},\n{\"prompt\": \"b\"\n", "line 3");
  refused("[\n{\"prompt\": \"a\",}]", "line 2");
  refused("{\"prompt\": \"a\"}", "a list of objects");
  refused("[]", "a list of objects");
  refused("[{\"prompt\": \"\xff\"}]", "line 1");
  refused("[{\"prompt\": \"a\", \"output\": \"same.mp4\"},\n{\"prompt\": \"b\", \"output\": \"./same.mp4\"}]",
          "batch.json:2: [1]: also the output of batch.json:1: [0]");
}

TEST_F(BadInput, OneBadEntryDoesNotStopTheOthers) {
  fs::create_directories(work() / "sub");
  fs::copy(root() / "example.png", work() / "sub/picture.png");
  write("sub/prompt.txt", "from a file\n");
  write("sub/batch.json", R"([
{"prompt": "good", "output": "first.mp4"},
{"prompt": "", "output": "empty.mp4"},
{"prompt": "no picture",
 "image": "nowhere.png"},
{"prompt": "no place", "output": "nowhere/clip.mp4"},
5,
{"prompt": "unknown", "colour": "red"},
{"prompt_file": "prompt.txt", "image": "picture.png", "seconds": 0.1}
])");
  const Outcome outcome = generate({"--samples", "sub/batch.json", "-o", "own.mp4", "--stats", "stats.json"});
  expect_error_line(outcome, 1, "5 of 7 clips");
  for (const std::string where :
       {":3: [1]: ", ":4: [2]: sub/nowhere.png", ":6: [3]: ", ":7: [4]: ", ":8: [5]: "})
    EXPECT_NE(outcome.err.find("sub/batch.json" + where), std::string::npos) << where << "\n" << outcome.err;
  EXPECT_EQ(files(), (std::vector<std::string>{"own-6.mp4", "stats.json", "sub", "sub/batch.json",
                                               "sub/first.mp4", "sub/picture.png", "sub/prompt.txt"}));
}

}  // namespace
}  // namespace magi
