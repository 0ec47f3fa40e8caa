// SPDX-License-Identifier: Apache-2.0
// HTTP over libmicrohttpd: a few threads share all connections, waiting ones cost none. Reads requests within
// limits of size and time, asks a handler, sends what it answers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "serve/http.h"

namespace magi {

struct HttpLimits {
  std::size_t body_bytes = 1 << 20;   ///< of JSON
  std::size_t form_bytes = 24 << 20;  ///< of multipart/form-data, pictures included
  std::size_t field_bytes = 1 << 20;  ///< of one text field
  std::size_t header_bytes = 32 << 10;
  unsigned connections = 1024;
  std::chrono::seconds header_time{20};    ///< from connecting, or the first byte, to the end of the headers
  std::chrono::seconds request_time{120};  ///< to the end of the body
  std::chrono::seconds stall_time{60};     ///< without a byte in either direction
};

/// What answers. Called by several threads.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// After the headers, before the body: throws ApiError to refuse the request without reading it.
  virtual void admit(HttpRequest& request) = 0;
  /// The whole request. Throws ApiError.
  virtual HttpResponse answer(HttpRequest& request) = 0;
  /// Every response was sent, or its client went away. Also of requests that were never admitted.
  struct Exchange {
    const HttpRequest& request;
    int status = 0;      ///< 0: none was sent
    double seconds = 0;  ///< from the headers to the answer
    bool complete = true;
  };
  virtual void finished(const Exchange& exchange) = 0;
  /// The headers that every answer has.
  virtual void decorate(const HttpRequest& request, HttpResponse& response) = 0;
};

class HttpServer {
 public:
  /// Listens at once; port 0: any free one. Throws Error when the address cannot be had.
  HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// Takes no new connections, ends what waits, joins the threads. The handler's streams must have ended, or
  /// end when woken.
  void stop();

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace magi
