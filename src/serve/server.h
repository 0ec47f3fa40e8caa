// SPDX-License-Identifier: Apache-2.0
// The whole server: database, engine, worker, HTTP, and what has to be done from time to time.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "run/components.h"
#include "run/engine_options.h"
#include "serve/api.h"
#include "serve/http_server.h"
#include "serve/worker.h"

namespace magi {

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  ///< 0: any free one
  std::filesystem::path data = "magi2-data";
  std::optional<std::filesystem::path> api_key_file;
  bool allow_anybody = false;                         ///< listen beyond this machine without keys
  std::int64_t keep_seconds = 30 * 24 * 3600;         ///< of jobs that ended; 0: for ever
  std::int64_t keep_bytes = std::int64_t{100} << 30;  ///< of completed jobs' files
  ApiOptions api;
  HttpLimits http;
  WorkerOptions worker;
  EngineOptions engine;
};

class Server {
 public:
  /// Serves when it returns. Throws Error: the address, the data directory, the keys. `root` must outlive it.
  Server(const CheckpointRoot& root, const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  const Router& router() const;
  /// Reads the keys' file again, which happens by itself some seconds after a change.
  void reload_keys();
  /// Refuses new jobs, keeps how far the running one is, answers what is being asked, returns when all
  /// is quiet.
  void stop();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace magi
