// SPDX-License-Identifier: Apache-2.0
// A stand-in for a language model's server: HTTP on a port of its own on 127.0.0.1, one exchange after
// another.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace magi {

struct ServedRequest {
  std::string head;  ///< request line and headers
  std::string body;
};

struct ServedReply {
  int status = 200;
  std::string body{};
  std::string headers{};                   ///< further lines, each with its \r\n
  double delay_s = 0;                      ///< before anything is sent
  std::size_t cut_at = std::string::npos;  ///< bytes of the body after which the connection closes
  bool no_reply = false;                   ///< closes at once
};

class ChatServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest&, std::size_t number)>;

  explicit ChatServer(Handler handler) : handler_(std::move(handler)) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, generic, size) != 0 || ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, generic, &size) != 0)
      throw std::runtime_error("cannot listen on 127.0.0.1");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~ChatServer() {
    stop_ = true;
    thread_.join();
    ::close(listener_);
  }
  ChatServer(const ChatServer&) = delete;
  ChatServer& operator=(const ChatServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/v1"; }
  std::vector<ServedRequest> requests() const {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  static bool readable(int fd, int milliseconds) {
    pollfd wanted{fd, POLLIN, 0};
    return ::poll(&wanted, 1, milliseconds) > 0;
  }

  void serve() {
    while (!stop_) {
      if (!readable(listener_, 20)) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      if (connection < 0) continue;
      exchange(connection);
      ::close(connection);
    }
  }

  void exchange(int connection) {
    const ServedRequest request = read_request(connection);
    std::size_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      number = requests_.size();
      requests_.push_back(request);
    }
    const ServedReply reply = handler_(request, number);
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(reply.delay_s);
    while (!stop_ && Clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (reply.no_reply) return;
    const std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " Said\r\nConnection: close\r\n" +
                             reply.headers + "Content-Length: " + std::to_string(reply.body.size()) +
                             "\r\n\r\n" + reply.body.substr(0, reply.cut_at);
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(connection, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<std::size_t>(n);
    }
  }

  ServedRequest read_request(int connection) const {
    std::string text;
    std::size_t head = std::string::npos, length = 0;
    while (head == std::string::npos || text.size() < head + length) {
      if (stop_ || !readable(connection, 1000)) break;
      char buffer[65536];
      const ssize_t n = ::recv(connection, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
      if (head != std::string::npos) continue;
      head = text.find("\r\n\r\n");
      if (head == std::string::npos) continue;
      head += 4;
      const std::size_t field = text.find("Content-Length: ");
      if (field < head) length = std::strtoul(text.c_str() + field + 16, nullptr, 10);
    }
    head = std::min(head, text.size());
    return {text.substr(0, head), text.substr(head)};
  }

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<ServedRequest> requests_;
  std::thread thread_;
};

}  // namespace magi
