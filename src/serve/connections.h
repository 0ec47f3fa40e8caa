// SPDX-License-Identifier: Apache-2.0
// Open connections and how long each has been sending its request: a client that takes too long, however
// steadily it trickles, is told so and cut off. Internal to the HTTP server.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

struct MHD_Connection;

namespace magi {

class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  Connections(Clock::duration header_time, Clock::duration request_time, Clock::duration idle_time);
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  void opened(const MHD_Connection* connection, int descriptor);
  void closed(const MHD_Connection* connection);
  void headers_read(const MHD_Connection* connection) { enter(connection, Phase::body); }
  void request_read(const MHD_Connection* connection) { enter(connection, Phase::answer); }
  void answered(const MHD_Connection* connection) { enter(connection, Phase::idle); }

 private:
  enum class Phase { headers, body, answer, idle };
  struct Connection {
    int descriptor = -1;
    Phase phase = Phase::headers;
    Clock::time_point since;
  };
  void enter(const MHD_Connection* connection, Phase phase);
  void watch();

  Clock::duration limits_[4];
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::map<const MHD_Connection*, Connection> connections_;
  std::thread watcher_;
};

}  // namespace magi
