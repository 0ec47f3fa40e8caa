// SPDX-License-Identifier: Apache-2.0
// Each command's help, the version, init and inspect, and how a run ends that is interrupted.
#include "cli/program.h"

namespace magi {
namespace {

using Commands = ProgramTest;

TEST_F(Commands, HelpAndVersion) {
  const Outcome version = run_program(work(), {"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out.rfind("magi2 ", 0), 0U) << version.out;
  const Outcome help = run_program(work(), {"--help"});
  EXPECT_EQ(help.status, 0);
  for (const std::string command : {"generate", "init", "inspect", "quantize"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << help.out;
    const Outcome own = run_program(work(), {command, "--help"});
    EXPECT_EQ(own.status, 0) << command;
    EXPECT_NE(own.out.find("Usage: "), std::string::npos) << own.out;
    EXPECT_EQ(own.err, "");
  }
}

TEST_F(Commands, WrongCommandLinesExitWith2) {
  for (const auto& [arguments, part] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{}, "subcommand"},
           {{"paint"}, "subcommand"},
           {{"generate", "--colour", "red"}, "--colour; see magi2 generate --help"},
           {{"generate", "--steps", "many"}, "--steps"},
           {{"generate", "--threads", "0"}, "--threads"},
           {{"generate", "-p", "x", "--prompt-file", "y"}, "excludes"},
           {{"inspect"}, "path"}})
    expect_error_line(run_program(work(), arguments), 2, part);
  expect_error_line(run_program(work(), {"generate", "-p", "x"}), 1, "MAGI2_CKPT_ROOT");
  expect_refused({}, "--prompt-file");
  expect_refused({"-p", "x", "--cfg", "5"}, "--cfg-video");  // one rank: no guidance scale is meant by it
}

TEST_F(Commands, InspectTellsWhatIsThereAndWhatIsMissing) {
  const Outcome whole = run_program(work(), {"inspect", root().string()});
  EXPECT_EQ(whole.status, 0) << whole.err;
  for (const std::string part :
       {"text encoder", "preview", "turbo decoder", "audio decoder", "refiner", "Wan autoencoder"})
    EXPECT_NE(whole.out.find(part), std::string::npos) << part;
  EXPECT_EQ(whole.out.find("incomplete"), std::string::npos) << whole.out;
  std::filesystem::remove(root() / "preview/model.safetensors");
  const Outcome lacking = run_program(work(), {"inspect", root().string()});
  expect_error_line(lacking, 1, "incomplete");
  EXPECT_NE(lacking.out.find("INCOMPLETE"), std::string::npos) << lacking.out;
  expect_error_line(run_program(work(), {"inspect", "nowhere"}), 1, "nowhere");
}

TEST_F(Commands, InitRefusesWhatExists) {
  const Outcome again = run_program(work(), {"init", root().string()});
  expect_error_line(again, 1, "exists already");
  expect_error_line(run_program(work(), {"init", "/proc/none"}), 1, "/proc/none");
  EXPECT_EQ(run_program(work(), {"init", root().string(), "--if-missing"}).status, 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(Commands, QuantizeMakesARootThatCommandsTake) {
  const std::string out = (work() / "native").string();
  const Outcome made = run_program(work(), {"quantize", root().string(), out, "--text-encoder", "nvfp4"});
  EXPECT_EQ(made.status, 0) << made.err;
  for (const std::string part : {"% RMS", "each read back", "GB/s", "highest memory"})
    EXPECT_NE(made.err.find(part), std::string::npos) << made.err;
  const Outcome seen = run_program(work(), {"inspect", out, "--verify"});
  EXPECT_EQ(seen.status, 0) << seen.err;
  EXPECT_NE(seen.out.find("every checksum is right"), std::string::npos) << seen.out;
  EXPECT_EQ(seen.out.find("incomplete"), std::string::npos) << seen.out;
  const std::vector<std::string> smallest{"-W",  "64",      "-H", "64", "--seconds",
                                          "0.4", "--steps", "1",  "-p", "x"};
  std::vector<std::string> arguments{"generate", "-m", out};
  arguments.insert(arguments.end(), smallest.begin(), smallest.end());
  EXPECT_EQ(run_program(work(), arguments).status, 0);
  expect_error_line(run_program(work(), {"quantize", root().string(), out}), 1, "is there already");
  expect_error_line(run_program(work(), {"quantize", root().string()}), 2, "out");
  expect_error_line(run_program(work(), {"quantize", root().string(), out, "--experts", "int8"}), 2, "int8");
}

TEST_F(Commands, InterruptedRunsLeaveNothing) {
  const std::vector<std::string> longer{"-p",  "x",  "--seconds", "10", "--steps",
                                        "900", "-W", "160",       "-H", "96"};
  const Outcome started = generate(longer, "load text encoder");
  expect_error_line(started, 130, "interrupted");
  const Outcome denoising = generate(longer, "load preview");
  expect_error_line(denoising, 130, "interrupted");
  EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace magi
