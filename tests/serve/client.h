// SPDX-License-Identifier: Apache-2.0
// A plain HTTP client over a socket: what it sends may be as wrong as a test wants.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace magi {

struct Reply {
  int status = 0;                              ///< 0: the server closed the connection without an answer
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;

  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
  std::string error_code() const;
  std::string error_param() const;
};

class Connection {
 public:
  /// `from`: an address of this machine's own; the server takes it for the client's.
  explicit Connection(int port, const char* from = "127.0.0.1");
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// False when the server has closed it.
  bool send(const std::string& bytes);
  /// One answer; what follows stays for the next call. `head`: there is no body. Gives up after `seconds`.
  Reply receive(bool head = false, double seconds = 20);
  /// Bytes until `mark` has come, the connection ends, or `seconds` pass.
  std::string read_until(const std::string& mark, double seconds = 20);

 private:
  bool more(double seconds);

  int fd_;
  std::string bytes_;  ///< received, not looked at
};

using Headers = std::vector<std::pair<std::string, std::string>>;

/// One request on a connection of its own, with Host and, where there is a body, Content-Length.
Reply request(int port, const std::string& method, const std::string& path, const std::string& body = "",
              const Headers& headers = {}, const char* from = "127.0.0.1");
Reply post_json(int port, const std::string& path, const nlohmann::json& body, const Headers& headers = {});

/// A multipart/form-data body with the boundary "edge"; parts with a file name are files.
struct FormPart {
  std::string name, content, file_name;
};
std::string form_body(const std::vector<FormPart>& parts);

}  // namespace magi
