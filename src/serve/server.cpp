// SPDX-License-Identifier: Apache-2.0
#include "serve/server.h"

#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "comm/socket.h"
#include "core/log.h"
#include "serve/json_log.h"

namespace magi {
namespace {

constexpr std::chrono::seconds kPing{15}, kTidy{60};

void check_options(const ServerOptions& options) {
  require(options.port >= 0 && options.port <= 65535, "--port: expected 0 to 65535, found {}", options.port);
  require(is_loopback(options.host) || options.api_key_file || options.allow_anybody,
          "--host {}: everybody who reaches this machine could use it; give --api-key-file, or "
          "--allow-anybody if that is meant",
          options.host);
  require(options.worker.checkpoint_every >= 1, "--checkpoint-every: expected at least 1 step");
}

/// Every connection and stream is a file.
void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// What is done again and again.
class Housekeeper {
 public:
  Housekeeper(JobStore& store, EventHub& events, KeyRing& keys, std::int64_t keep_seconds,
              std::int64_t keep_bytes)
      : store_(store),
        events_(events),
        keys_(keys),
        keep_seconds_(keep_seconds),
        keep_bytes_(keep_bytes),
        thread_([this] { run(); }) {}
  ~Housekeeper() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    stopping_.notify_all();
    thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    auto tidied = std::chrono::steady_clock::now() - kTidy;
    do {
      lock.unlock();
      events_.ping();
      keys_.follow();
      if (std::chrono::steady_clock::now() - tidied >= kTidy) {
        expire();
        tidied = std::chrono::steady_clock::now();
      }
      lock.lock();
    } while (!stopping_.wait_for(lock, kPing, [this] { return stop_; }));
  }

  void expire() {
    try {
      const std::size_t removed =
          store_.expire(keep_seconds_ > 0 ? unix_time() - keep_seconds_ : 0, keep_bytes_);
      if (removed > 0) json_log("expired", {{"videos", removed}});
    } catch (const std::exception& error) {
      log_warning("expiring videos: {}", error.what());
    }
  }

  JobStore& store_;
  EventHub& events_;
  KeyRing& keys_;
  std::int64_t keep_seconds_, keep_bytes_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

ApiOptions api_options(const ServerOptions& options) {
  ApiOptions api = options.api;
  api.keep_seconds = options.keep_seconds;
  api.limits.can_enhance = options.worker.enhance.has_value();
  return api;
}

}  // namespace

class Server::State {
 public:
  State(const CheckpointRoot& root, const ServerOptions& options)
      : keys_(options.api_key_file.value_or("")),
        store_(options.data),
        engine_(root, options.engine),
        worker_(engine_, store_, events_, options.worker, [this](const std::string& id) { changed(id); }),
        api_(api_options(options), root.defaults(), keys_, store_, events_, worker_) {
    store_.sweep();
    http_.emplace(options.host, options.port, options.http, api_);
    worker_.start();
    housekeeper_.emplace(store_, events_, keys_, options.keep_seconds, options.keep_bytes);
    json_log("listening", {{"host", options.host}, {"port", http_->port()}, {"keys", keys_.keys()->count()}});
  }
  ~State() { stop(); }

  int port() const { return http_->port(); }
  const Router& router() const { return api_.router(); }
  void reload_keys() { keys_.reload(); }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    json_log("stopping", nlohmann::json::object());
    api_.stop_accepting();
    worker_.stop();
    housekeeper_.reset();
    events_.close();
    http_->stop();
    json_log("stopped", nlohmann::json::object());
  }

 private:
  void changed(const std::string& id) {
    try {
      api_.job_changed(id);
      const std::optional<Job> job = store_.find(id);
      if (job) json_log("video", {{"video", id}, {"status", to_string(job->status)}});
    } catch (const std::exception& error) {
      log_warning("{}: {}", id, error.what());
    }
  }

  bool stopped_ = false;
  KeyRing keys_;
  JobStore store_;
  EventHub events_;
  Engine engine_;
  Worker worker_;
  Api api_;
  std::optional<HttpServer> http_;
  std::optional<Housekeeper> housekeeper_;
};

Server::Server(const CheckpointRoot& root, const ServerOptions& options) {
  check_options(options);
  raise_file_limit();
  state_ = std::make_unique<State>(root, options);
}
Server::~Server() = default;
int Server::port() const {
  return state_->port();
}
const Router& Server::router() const {
  return state_->router();
}
void Server::reload_keys() {
  state_->reload_keys();
}
void Server::stop() {
  state_->stop();
}

}  // namespace magi
