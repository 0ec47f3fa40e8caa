// SPDX-License-Identifier: Apache-2.0
// Requests and responses as the routes see them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace magi {

/// A part of multipart/form-data that has a file name.
struct UploadedFile {
  std::string content;
};

struct HttpRequest {
  std::string id;      ///< generated here; in the log and in X-Request-Id
  std::string method;  ///< HEAD comes as GET
  std::string path;
  std::map<std::string, std::string> query;    ///< the last value of each
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< where it is not a form
  bool is_form = false;
  std::map<std::string, std::string> fields;  ///< of a form
  std::map<std::string, UploadedFile> files;  ///< of a form
  std::string remote;                         ///< the client's address
  std::string owner;                          ///< of the key; empty where none is needed

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

/// Wakes a response that has to wait. Call from any thread, holding no lock that the waiting side takes.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void wake() = 0;
};

/// Bytes that come over time. All members but the constructor are called by one thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Before the first next().
  virtual void start(std::shared_ptr<Waker> waker) = 0;
  /// More bytes; "": none yet, wake() will tell; nothing: the end.
  virtual std::optional<std::string> next() = 0;
};

struct HttpResponse;

/// An answer that takes long.
class LateAnswer {
 public:
  virtual ~LateAnswer() = default;
  /// Before the first poll().
  virtual void start(std::shared_ptr<Waker> waker) = 0;
  /// Nothing: not yet, wake() will tell.
  virtual std::optional<HttpResponse> poll() = 0;
  /// The client went away first: nothing else is called after this.
  virtual void abandoned() = 0;
};

/// A part of an open file, which closes with its last owner.
struct FileBody {
  std::shared_ptr<const int> descriptor;
  std::int64_t offset = 0, length = 0;
};

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers{};
  std::variant<std::string, FileBody, std::shared_ptr<ByteStream>, std::shared_ptr<LateAnswer>> body{};

  static HttpResponse json(std::string text, int status = 200) {
    return {status, {{"Content-Type", "application/json"}, {"Cache-Control", "no-store"}}, std::move(text)};
  }
};

}  // namespace magi
