// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "cli/commands.h"
#include "cli/engine_arguments.h"
#include "cli/enhance_arguments.h"
#include "cli/ranks.h"
#include "run/engine.h"
#include "serve/json_log.h"
#include "serve/server.h"

namespace magi {
namespace {

struct ServeArguments {
  std::string root, config, keys;
  EngineArguments engine;
  double keep_days = 30, keep_gb = 100;
  EnhanceArguments enhance;
  ServerOptions options;
};

/// Ctrl-C, SIGTERM and SIGHUP, held back in all threads that are started while it lives, for wait().
class Signals {
 public:
  Signals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  }
  /// Until one that ends the program; SIGHUP does not where it has something to do.
  void wait(const std::function<void()>& hang_up = {}) const {
    for (int signal = 0; sigwait(&signals_, &signal) == 0 && signal == SIGHUP && hang_up;) hang_up();
  }

 private:
  sigset_t signals_{};
};

void serve(const CheckpointRoot& root, const ServerOptions& options, const Signals& signals) {
  const JsonLogSink log;
  Server server(root, options);
  std::function<void()> reload;
  if (options.api_key_file) reload = [&server] { server.reload_keys(); };
  signals.wait(reload);
  std::thread([&signals] {  // a second one does not wait for anything
    signals.wait();
    _exit(1);
  })
      .detach();
  server.stop();
}

void run_serve(ServeArguments& a) {
  require(!a.root.empty(),
          "no checkpoint root: give -m ROOT or set MAGI2_CKPT_ROOT (\"magi2 init DIR\" makes a tiny one)");
  const Signals signals;
  with_ranks([&](const std::shared_ptr<World>& world) {
    const CheckpointRoot root(
        a.root, a.config.empty() ? std::nullopt : std::optional<std::filesystem::path>(a.config));
    ServerOptions& options = a.options;
    options.engine = a.engine.options(world);
    options.engine.keep_parts = true;
    if (world->rank() > 0) {  // rank 0 speaks HTTP
      Engine(root, options.engine).follow();
      return;
    }
    if (!a.keys.empty()) options.api_key_file = a.keys;
    if (!a.enhance.url.empty()) options.worker.enhance = a.enhance.options();
    options.keep_seconds = static_cast<std::int64_t>(a.keep_days * 24 * 3600);
    options.keep_bytes = static_cast<std::int64_t>(a.keep_gb * 1e9);
    serve(root, options, signals);
  });
}

}  // namespace

void add_serve_command(CLI::App& app, Work& work) {
  CLI::App& c = *app.add_subcommand("serve", "Make clips for clients: OpenAI's videos API, and a page");
  auto a = std::make_shared<ServeArguments>();
  ServerOptions& o = a->options;
  c.add_option("-m,--model", a->root, "Checkpoint root")->envname("MAGI2_CKPT_ROOT")->type_name("DIR");
  c.option_defaults()->group("Service");
  c.add_option("--host", o.host, "Address to listen on; another than this machine's own needs keys")
      ->capture_default_str();
  c.add_option("--port", o.port, "Port; 0: any free one")->capture_default_str();
  c.add_option("--data", o.data, "Directory for jobs and clips")->type_name("DIR")->capture_default_str();
  c.add_option("--api-key-file", a->keys,
               "Keys that may ask: one of 16 or more characters a line, and a name for the log behind it")
      ->type_name("FILE");
  c.add_flag("--allow-anybody", o.allow_anybody, "Listen beyond this machine without keys");
  c.add_option("--allow-host", o.api.host_names, "A name that the server is reached under, may be repeated")
      ->type_name("NAME");
  c.add_flag("--behind-proxy", o.api.behind_proxy,
             "A proxy is in front: a client's address is the last one in X-Forwarded-For");
  c.add_option("--queue", o.api.queue, "Jobs that may wait")->capture_default_str();
  c.add_option("--max-seconds", o.api.limits.max_seconds, "Seconds of the longest clip")
      ->capture_default_str();
  c.add_option("--max-pixels", o.api.limits.max_pixels, "Pixels of the largest frame")->capture_default_str();
  c.add_option("--max-steps", o.api.limits.max_steps, "Most denoising steps")->capture_default_str();
  c.add_option("--checkpoint-every", o.worker.checkpoint_every, "Steps between savings of a running job")
      ->capture_default_str();
  c.add_option("--preview-share", o.worker.preview_share, "Share of the time for preview frames; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  c.add_option("--keep-days", a->keep_days, "Days until a job that ended is removed; 0: never")
      ->check(CLI::Range(0.0, 1e5))
      ->capture_default_str();
  c.add_option("--keep-gb", a->keep_gb, "GB of clips beyond which the oldest are removed")
      ->check(CLI::Range(0.001, 1e9))
      ->capture_default_str();
  c.option_defaults()->group("Prompt enhancement");
  auto* enhance = c.add_option("--enhance", a->enhance.url,
                               "OpenAI-compatible endpoint for jobs that ask for a longer prompt, as "
                               "http://127.0.0.1:8000/v1 (key: MAGI2_LLM_API_KEY)")
                      ->type_name("URL");
  for (CLI::Option* option : add_enhance_arguments(c, a->enhance, "llm-")) option->needs(enhance);
  add_engine_arguments(c, a->engine);
  add_degree_options(c, a->engine.degrees);
  c.add_option("--config", a->config,
               "Configuration of the official schema (default: the root's, else the release's)")
      ->type_name("FILE");
  c.callback([a, &work] { work = [a] { run_serve(*a); }; });
}

}  // namespace magi
