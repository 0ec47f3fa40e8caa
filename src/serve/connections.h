// SPDX-License-Identifier: Apache-2.0
// Open connections and how long each has been sending its request: a client that takes too long, however
// steadily it trickles, is told so and cut off. Notices when a client goes that waits for a late answer.
// Internal to the HTTP server.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

struct MHD_Connection;

namespace magi {

class ConnectionWaker;

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
  /// Nobody reads from a suspended connection, so its end is looked for here, and told to the waker.
  void waits(const MHD_Connection* connection, std::shared_ptr<ConnectionWaker> waker);

 private:
  enum class Phase { headers, body, answer, idle };
  struct Connection {
    int descriptor = -1;
    Phase phase = Phase::headers;
    Clock::time_point since;
    std::shared_ptr<ConnectionWaker> waiting{};
  };
  void enter(const MHD_Connection* connection, Phase phase);
  void cut_off_slow();
  std::vector<std::shared_ptr<ConnectionWaker>> abandoned();
  void watch();

  Clock::duration limits_[4];
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::map<const MHD_Connection*, Connection> connections_;
  std::thread watcher_;
};

}  // namespace magi
