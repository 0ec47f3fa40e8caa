// SPDX-License-Identifier: Apache-2.0
#include "serve/connections.h"

#include <sys/socket.h>

#include <cerrno>
#include <string_view>

#include "serve/connection_waker.h"

namespace magi {
namespace {

constexpr std::chrono::milliseconds kLook{250};
constexpr std::string_view kTooSlow =
    "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Type: application/json\r\n"
    "Content-Length: 113\r\n\r\n"
    R"({"error":{"message":"the request took too long","type":"invalid_request_error","param":null,"code":"too_slow"}}  )";

}  // namespace

Connections::Connections(Clock::duration header_time, Clock::duration request_time, Clock::duration idle_time)
    : limits_{header_time, request_time, Clock::duration::max(), idle_time}, watcher_([this] { watch(); }) {}

Connections::~Connections() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  watcher_.join();
}

void Connections::opened(const MHD_Connection* connection, int descriptor) {
  const std::lock_guard lock(mutex_);
  connections_[connection] = {descriptor, Phase::headers, Clock::now()};
}

void Connections::closed(const MHD_Connection* connection) {
  const std::lock_guard lock(mutex_);
  connections_.erase(connection);
}

void Connections::enter(const MHD_Connection* connection, Phase phase) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  found->second.phase = phase;
  found->second.since = Clock::now();
  found->second.waiting = nullptr;
}

void Connections::waits(const MHD_Connection* connection, std::shared_ptr<ConnectionWaker> waker) {
  const std::lock_guard lock(mutex_);
  const auto found = connections_.find(connection);
  if (found != connections_.end()) found->second.waiting = std::move(waker);
}

void Connections::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kLook, [this] { return stop_; })) {
    cut_off_slow();
    const auto gone = abandoned();
    lock.unlock();  // a waker takes locks of its own
    for (const auto& waker : gone) waker->abandon();
    lock.lock();
  }
}

void Connections::cut_off_slow() {
  const auto now = Clock::now();
  for (auto& [connection, c] : connections_) {
    if (now - c.since < limits_[static_cast<int>(c.phase)]) continue;
    // Nothing of an answer has been sent in these phases, so this is the answer. The server's thread finds
    // the connection closed, and closes its side.
    if (c.phase != Phase::idle)
      send(c.descriptor, kTooSlow.data(), kTooSlow.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(c.descriptor, SHUT_RDWR);
    c.phase = Phase::answer;  // once is enough
  }
}

/// Those whose clients have closed their end, each once.
std::vector<std::shared_ptr<ConnectionWaker>> Connections::abandoned() {
  std::vector<std::shared_ptr<ConnectionWaker>> gone;
  for (auto& [connection, c] : connections_) {
    if (!c.waiting) continue;
    char byte = 0;
    const ssize_t count = recv(c.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR))) continue;
    gone.push_back(std::move(c.waiting));
    c.waiting = nullptr;
  }
  return gone;
}

}  // namespace magi
