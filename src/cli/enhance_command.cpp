// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/enhance_arguments.h"
#include "cli/progress_bar.h"
#include "io/atomic_file.h"
#include "run/batch.h"
#include "run/enhance.h"

namespace magi {
namespace {

struct EnhanceCommandArguments {
  EnhanceArguments enhance;
  EnhanceInput input;
  std::string prompt_file;
  std::vector<std::string> images;
  std::string output;
};

void run_enhance(EnhanceCommandArguments& a) {
  if (!a.prompt_file.empty()) a.input.prompt = read_prompt_file(a.prompt_file);
  for (const std::string& path : a.images)
    a.input.images.push_back({static_cast<int>(a.input.images.size()) + 1, path});
  std::optional<AtomicFile> file;  // opened first: an unwritable one must not cost an answer
  if (!a.output.empty()) file.emplace(a.output);
  ProgressBar progress;
  const InterruptGuard guard(progress);
  const std::string caption = enhance_prompt(a.input, a.enhance.options(), progress);
  progress.finish();
  if (!file) {
    fmt::print("{}", caption);
    return;
  }
  file->write(caption.data(), caption.size());
  file->commit();
}

}  // namespace

void add_enhance_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("enhance", "Let a language model write the long prompt for a short one");
  auto a = std::make_shared<EnhanceCommandArguments>();
  auto* prompt = c.add_option("-p,--prompt", a->input.prompt, "The idea of the clip");
  c.add_option("--prompt-file", a->prompt_file, "Read it from a file")->type_name("FILE")->excludes(prompt);
  c.add_option("-i,--image", a->images,
               "Reference image, may be repeated: <Figure 1> in the prompt is the first frame, <Figure 2> …")
      ->type_name("FILE")
      ->allow_extra_args(false);
  c.add_option(
       "--url", a->enhance.url,
       "OpenAI-compatible endpoint, as http://127.0.0.1:8000/v1; its key comes from MAGI2_LLM_API_KEY")
      ->type_name("URL")
      ->required();
  add_enhance_arguments(c, a->enhance, "");
  c.add_option("--seconds", a->input.seconds, "Length of the clip")
      ->check(CLI::Range(0.02, 60.0))
      ->capture_default_str();
  c.add_option("--aspect-ratio", a->input.aspect_ratio, "Of the frame")
      ->type_name("W:H")
      ->capture_default_str();
  c.add_option("-o,--output", a->output, "File to write (default: standard output)")->type_name("FILE");
  c.callback([a, &work] { work = [a] { run_enhance(*a); }; });
}

}  // namespace magi
