// SPDX-License-Identifier: Apache-2.0
#include "comm/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

#include "core/error.h"

namespace magi {
namespace {

constexpr std::uint32_t kLargestFrame = 1u << 31;

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1 << 30));
}

void wait_until_ready(int fd, short events, Deadline deadline, const char* what) {
  pollfd waited{fd, events, 0};
  for (;;) {
    const int ready = ::poll(&waited, 1, milliseconds_until(deadline));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) fail("{}: {}", what, std::strerror(errno));
    require(ready < 0 || std::chrono::steady_clock::now() < deadline, "{}: no answer in time", what);
  }
}

void transfer(int fd, char* data, std::size_t bytes, bool sending, Deadline deadline) {
  while (bytes > 0) {
    wait_until_ready(fd, sending ? POLLOUT : POLLIN, deadline, "a connection between ranks");
    const ssize_t done = sending ? ::send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : ::recv(fd, data, bytes, MSG_DONTWAIT);
    if (done < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    require(done > 0, "a connection between ranks was closed{}{}", done < 0 ? ": " : "",
            done < 0 ? std::strerror(errno) : "");
    data += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

int try_connect(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd >= 0 && ::connect(fd, address.ai_addr, address.ai_addrlen) == 0) return fd;
  if (fd >= 0) ::close(fd);
  return -1;
}

Socket without_delay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return Socket(fd);
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                std::chrono::duration<double>(std::min(seconds, 1e8)));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Socket Socket::connect(const std::string& host, int port, Deadline deadline) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  for (;;) {
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    for (addrinfo* a = found; status == 0 && a; a = a->ai_next)
      if (const int fd = try_connect(*a); fd >= 0) return without_delay(fd);
    require(std::chrono::steady_clock::now() < deadline, "rank 0 does not answer at {} port {}{}{}", host,
            port, status ? ": " : "", status ? ::gai_strerror(status) : "");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void Socket::send_frame(const std::string& bytes, Deadline deadline) {
  require(open() && bytes.size() < kLargestFrame, "a message of {} bytes between ranks", bytes.size());
  const auto length = static_cast<std::uint32_t>(bytes.size());
  std::string frame(sizeof length, '\0');
  std::memcpy(frame.data(), &length, sizeof length);
  frame += bytes;
  transfer(fd_, frame.data(), frame.size(), true, deadline);
}

std::string Socket::receive_frame(Deadline deadline) {
  std::uint32_t length = 0;
  transfer(fd_, reinterpret_cast<char*>(&length), sizeof length, false, deadline);
  require(length < kLargestFrame, "a message of {} bytes between ranks", length);
  std::string bytes(length, '\0');
  transfer(fd_, bytes.data(), bytes.size(), false, deadline);
  return bytes;
}

bool Socket::readable(double seconds) const {
  pollfd waited{fd_, POLLIN, 0};
  return ::poll(&waited, 1, static_cast<int>(seconds * 1000)) > 0 && fd_ >= 0;
}

bool is_loopback(const std::string& host) {
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return host == "::1" || host == "localhost";
}

Listener::Listener(const std::string& host, int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  require(fd >= 0, "cannot listen for the other ranks: {}", std::strerror(errno));
  socket_ = Socket(fd);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (!is_loopback(host))
    address.sin_addr.s_addr = htonl(INADDR_ANY);
  else if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1)
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const bool listens = ::bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                       ::listen(fd, 1024) == 0 &&
                       ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  require(listens, "cannot listen at port {} for the other ranks: {}; set MASTER_PORT to a free one", port,
          std::strerror(errno));
  port_ = ntohs(address.sin_port);
}

Socket Listener::accept(Deadline deadline) {
  wait_until_ready(socket_.fd(), POLLIN, deadline, "waiting for the other ranks");
  const int fd = ::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
  require(fd >= 0, "waiting for the other ranks: {}", std::strerror(errno));
  return without_delay(fd);
}

}  // namespace magi
