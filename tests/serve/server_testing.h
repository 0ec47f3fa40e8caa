// SPDX-License-Identifier: Apache-2.0
// A server in this process, on a tiny root.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <thread>

#include "run/tiny_root.h"
#include "serve/client.h"
#include "serve/server.h"
#include "support/file_bytes.h"
#include "support/temp_dir.h"

namespace magi {

class ServerTest : public testing::Test {
 protected:
  using Json = nlohmann::json;

  static void SetUpTestSuite() {
    model_ = std::make_unique<TempDir>();
    write_tiny_root(model_->path() / "root", 1);
  }
  static void TearDownTestSuite() { model_.reset(); }

  ServerTest() : root_(model_->path() / "root", std::nullopt) {
    options_.port = 0;
    options_.data = directory_ / "data";
    options_.engine.keep_parts = true;
    options_.worker.checkpoint_every = 1;
  }
  ~ServerTest() override { server_.reset(); }

  void start() { server_ = std::make_unique<Server>(root_, options_); }
  void restart() {
    server_.reset();
    start();
  }
  int port() const { return server_->port(); }

  /// The smallest request, with changes.
  static Json small(const Json& changes = Json::object()) {
    Json request{{"prompt", "A fox."}, {"size", "64x48"}, {"seconds", "0.4"}, {"num_inference_steps", 2}};
    request.update(changes);
    return request;
  }
  std::string created(const Json& request, const Headers& headers = {}) const {
    const Reply reply = post_json(port(), "/v1/videos", request, headers);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.json().value("id", "");
  }
  Json video(const std::string& id, const Headers& headers = {}) const {
    return request(port(), "GET", "/v1/videos/" + id, "", headers).json();
  }
  /// The video once it is over, or has the status.
  Json wait_for(const std::string& id, const std::string& status = "", const Headers& headers = {}) const {
    for (int i = 0; i < 12000; ++i) {
      const Json now = video(id, headers);
      const std::string found = now.value("status", "");
      if (status.empty() ? found != "queued" && found != "in_progress" : found == status) return now;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << id << " never gets " << (status.empty() ? "to its end" : status);
    return {};
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(options_.data / "files"))
      names.push_back(entry.path().filename().string());
    return names;
  }

  static inline std::unique_ptr<TempDir> model_;
  TempDir directory_;
  CheckpointRoot root_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

}  // namespace magi
