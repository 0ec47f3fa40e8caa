// SPDX-License-Identifier: Apache-2.0
#include "serve/client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace magi {
namespace {

constexpr double kPatience = 120;  // seconds: sanitizers and busy machines

/// The size line at `at` of a chunked body; the next chunk begins behind it. −1: it is not all there.
long chunk_size(const std::string& bytes, std::size_t& at) {
  const std::size_t end = bytes.find("\r\n", at);
  if (end == std::string::npos) return -1;
  const long size = std::stol(bytes.substr(at, end - at), nullptr, 16);
  at = end + 2;
  return size;
}

}  // namespace

std::string Reply::error_code() const {
  const auto j = json();
  return j.is_object() && j.contains("error") ? j["error"].value("code", "") : "";
}

std::string Reply::error_param() const {
  const auto j = json();
  return j.is_object() && j.contains("error") && j["error"]["param"].is_string() ? j["error"]["param"] : "";
}

Connection::Connection(int port, const char* from) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{}, own{};
  own.sin_family = AF_INET;
  inet_pton(AF_INET, from, &own.sin_addr);
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0 ||
      connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    if (fd_ >= 0) close(fd_);
    throw std::runtime_error("no connection to the server");
  }
}

Connection::~Connection() {
  close(fd_);
}

bool Connection::send(const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

bool Connection::more(double seconds) {
  pollfd waiting{fd_, POLLIN, 0};
  if (poll(&waiting, 1, static_cast<int>(std::max(0.0, seconds) * 1000)) <= 0) return false;
  char buffer[65536];
  const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
  if (n > 0) bytes_.append(buffer, static_cast<std::size_t>(n));
  return n > 0;
}

std::string Connection::read_until(const std::string& mark, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto left = [&] {
    return std::chrono::duration<double>(end - std::chrono::steady_clock::now()).count();
  };
  std::size_t at;
  while ((at = bytes_.find(mark)) == std::string::npos && left() > 0 && more(left())) {
  }
  const std::size_t size = at == std::string::npos ? bytes_.size() : at + mark.size();
  std::string result = bytes_.substr(0, size);
  bytes_.erase(0, size);
  return result;
}

Reply Connection::receive(bool head, double seconds) {
  Reply reply;
  std::string text;
  do {  // 100 Continue comes before the answer
    text = read_until("\r\n\r\n", seconds);
  } while (text.starts_with("HTTP/1.1 100"));
  if (!text.starts_with("HTTP/1.") || !text.ends_with("\r\n\r\n")) return reply;
  reply.status = std::stoi(text.substr(9, 3));
  for (std::size_t at = text.find("\r\n") + 2; at + 2 < text.size();) {
    const std::size_t end = text.find("\r\n", at), colon = text.find(": ", at);
    std::string name = text.substr(at, colon - at);
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    reply.headers[name] = text.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head || reply.status == 304) return reply;
  if (reply.headers.contains("transfer-encoding")) {
    for (std::size_t at = 0;;) {
      std::size_t begin = at;
      const long size = chunk_size(bytes_, begin);
      if (size < 0 || bytes_.size() < begin + static_cast<std::size_t>(size) + 2) {
        if (!more(seconds)) return reply;
        continue;
      }
      reply.body += bytes_.substr(begin, static_cast<std::size_t>(size));
      at = begin + static_cast<std::size_t>(size) + 2;
      if (size == 0) {
        bytes_.erase(0, at);
        return reply;
      }
    }
  }
  const std::size_t size =
      std::stoul(reply.headers.contains("content-length") ? reply.headers["content-length"] : "0");
  while (bytes_.size() < size && more(seconds)) {
  }
  reply.body = bytes_.substr(0, size);
  bytes_.erase(0, size);
  return reply;
}

Reply request(int port, const std::string& method, const std::string& path, const std::string& body,
              const Headers& headers, const char* from) {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", method, path, port);
  for (const auto& [name, value] : headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty()) text += fmt::format("Content-Length: {}\r\n", body.size());
  Connection connection(port, from);
  connection.send(text + "\r\n" + body);
  return connection.receive(method == "HEAD", kPatience);
}

Reply post_json(int port, const std::string& path, const nlohmann::json& body, const Headers& headers) {
  Headers all = headers;
  all.emplace_back("Content-Type", "application/json");
  return request(port, "POST", path, body.dump(), all);
}

std::string form_body(const std::vector<FormPart>& parts) {
  std::string body;
  for (const FormPart& part : parts) {
    body += fmt::format("--edge\r\nContent-Disposition: form-data; name=\"{}\"", part.name);
    if (!part.file_name.empty())
      body += fmt::format("; filename=\"{}\"\r\nContent-Type: image/png", part.file_name);
    body += "\r\n\r\n" + part.content + "\r\n";
  }
  return body + "--edge--\r\n";
}

}  // namespace magi
