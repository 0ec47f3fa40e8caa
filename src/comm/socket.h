// SPDX-License-Identifier: Apache-2.0
// TCP connections that carry frames (a length, then bytes), with deadlines: for meeting, heartbeats and
// control between ranks. Model data goes through MPI or NCCL.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace magi {

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(double seconds);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }
  void close();

  /// Tries until somebody listens there or the deadline passes.
  static Socket connect(const std::string& host, int port, Deadline deadline);

  /// Throw Error when the other side is gone or the deadline passes.
  void send_frame(const std::string& bytes, Deadline deadline);
  std::string receive_frame(Deadline deadline);
  /// Whether something came (or the other side closed) within `seconds`.
  bool readable(double seconds) const;
  int fd() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Of 127.x.x.x, ::1 and localhost.
bool is_loopback(const std::string& host);

class Listener {
 public:
  /// Where `host` is a loopback address, others than this machine cannot connect. Port 0: any free one.
  /// Throws Error when the port is taken.
  Listener(const std::string& host, int port);
  int port() const { return port_; }
  Socket accept(Deadline deadline);

 private:
  Socket socket_;
  int port_ = 0;
};

}  // namespace magi
