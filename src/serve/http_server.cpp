// SPDX-License-Identifier: Apache-2.0
#include "serve/http_server.h"

#include <microhttpd.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "core/log.h"
#include "serve/api_error.h"
#include "serve/connection_waker.h"
#include "serve/connections.h"
#include "serve/form.h"

namespace magi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned kThreads = 2;
constexpr int kBacklog = 511;
constexpr std::size_t kStreamBlock = 32 << 10;
constexpr std::size_t kDrainBytes = 1 << 20;  // of a refused body, so that the client reads the answer

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

MHD_Result add_header(void* headers, MHD_ValueKind, const char* name, const char* value) {
  std::string& known = (*static_cast<std::map<std::string, std::string>*>(headers))[lower(name)];
  if (!known.empty()) known += ", ";  // a header given twice is one list: two Hosts are none that is known
  known += value ? value : "";
  return MHD_YES;
}

MHD_Result add_argument(void* query, MHD_ValueKind, const char* name, const char* value) {
  (*static_cast<std::map<std::string, std::string>*>(query))[name] = value ? value : "";
  return MHD_YES;
}

std::string remote_of(MHD_Connection* connection) {
  const auto* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (!info || !info->client_addr) return "";
  const socklen_t bytes =
      info->client_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  char host[NI_MAXHOST] = "";
  getnameinfo(info->client_addr, bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

/// Tells requests apart, no more: nobody need be unable to guess it.
std::string new_request_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("{:016x}", random());
}

/// A listening socket.
int listen_on(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  require(error == 0, "--host {}: {}", host, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> address(found, freeaddrinfo);
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, kBacklog) == 0)
    return fd;
  const int reason = errno;
  if (fd >= 0) close(fd);
  fail("cannot listen on {} port {}: {}", host, port, std::strerror(reason));
}

int port_of(int listener) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  char port[NI_MAXSERV] = "0";
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &bytes) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  return std::atoi(port);
}

/// A stream on its way to a connection.
struct Streaming {
  std::shared_ptr<ByteStream> stream;
  std::shared_ptr<ConnectionWaker> waker;
  std::string bytes;
  std::size_t sent = 0;

  static ssize_t read(void* self, std::uint64_t, char* out, std::size_t room) {
    auto& s = *static_cast<Streaming*>(self);
    while (s.sent == s.bytes.size()) {
      std::optional<std::string> more = s.stream->next();
      if (!more) return MHD_CONTENT_READER_END_OF_STREAM;
      if (more->empty() && s.waker->suspend()) return 0;
      s.bytes = std::move(*more);
      s.sent = 0;
    }
    const std::size_t count = std::min(room, s.bytes.size() - s.sent);
    std::memcpy(out, s.bytes.data() + s.sent, count);
    s.sent += count;
    return static_cast<ssize_t>(count);
  }
};

MHD_Response* mhd_response(const HttpResponse& response, const std::shared_ptr<ConnectionWaker>& waker) {
  if (const auto* file = std::get_if<FileBody>(&response.body))
    return MHD_create_response_from_fd_at_offset64(static_cast<std::uint64_t>(file->length),
                                                   dup(*file->descriptor),
                                                   static_cast<std::uint64_t>(file->offset));
  if (const auto* stream = std::get_if<std::shared_ptr<ByteStream>>(&response.body)) {
    (*stream)->start(waker);
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kStreamBlock, Streaming::read,
                                             new Streaming{*stream, waker, {}, 0},
                                             [](void* p) { delete static_cast<Streaming*>(p); });
  }
  const std::string& text = std::get<std::string>(response.body);
  return MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = HttpResponse::json(error.json(), error.status());
  if (error.retry_after_s() > 0)
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s()));
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

/// What `work` answers, or what it throws as an answer.
template <typename Work>
HttpResponse answer_of(const HttpRequest& request, Work work) {
  try {
    return work();
  } catch (const ApiError& error) {
    return error_response(error);
  } catch (const std::exception& error) {
    log_warning("request {}: {}", request.id, error.what());
    return error_response(ApiError(500, "internal_error", "the server failed; its log says why"));
  }
}

/// One request and its answer.
struct Exchange {
  HttpRequest request;
  std::optional<FormReader> form;
  std::optional<HttpResponse> refusal;
  std::shared_ptr<LateAnswer> late;
  std::shared_ptr<ConnectionWaker> waker;
  Clock::time_point start = Clock::now(), answered;
  std::size_t received = 0;
  int status = 0;
};

}  // namespace

class HttpServer::State {
 public:
  State(const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler)
      : limits_(limits),
        handler_(handler),
        connections_(limits.header_time, limits.request_time, limits.stall_time),
        listener_(listen_on(host, port)),
        port_(port_of(listener_)) {
    daemon_ = MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr, access, this,
        MHD_OPTION_LISTEN_SOCKET, listener_, MHD_OPTION_THREAD_POOL_SIZE, kThreads,
        MHD_OPTION_CONNECTION_LIMIT, limits.connections, MHD_OPTION_CONNECTION_TIMEOUT,
        static_cast<unsigned>(limits.stall_time.count()), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        limits.header_bytes, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED, completed, this,
        MHD_OPTION_NOTIFY_CONNECTION, connection_changed, this, MHD_OPTION_UNESCAPE_CALLBACK, unescape,
        nullptr, MHD_OPTION_END);
    if (daemon_) return;
    close(listener_);
    fail("the HTTP server cannot start");
  }
  ~State() { stop(); }

  int port() const { return port_; }
  void stop() {
    if (daemon_) MHD_stop_daemon(daemon_);  // closes the listener
    daemon_ = nullptr;
  }

 private:
  /// A NUL would end the path for us alone: one that has it stays as it was written, and is none that is
  /// known.
  static std::size_t unescape(void*, MHD_Connection*, char* text) {
    return std::strstr(text, "%00") ? std::strlen(text) : MHD_http_unescape(text);
  }

  static void connection_changed(void* self, MHD_Connection* connection, void**,
                                 MHD_ConnectionNotificationCode what) {
    Connections& connections = static_cast<State*>(self)->connections_;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) return connections.closed(connection);
    const auto* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) connections.opened(connection, info->connect_fd);
  }

  static void completed(void* self, MHD_Connection* connection, void** context,
                        MHD_RequestTerminationCode how) {
    State& state = *static_cast<State*>(self);
    const std::unique_ptr<Exchange> exchange(static_cast<Exchange*>(*context));
    *context = nullptr;
    state.connections_.answered(connection);
    if (!exchange) return;
    if (exchange->waker) exchange->waker->release();
    if (exchange->late && exchange->status == 0 && how != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN)
      exchange->late->abandoned();
    const std::chrono::duration<double> seconds =
        (exchange->status ? exchange->answered : Clock::now()) - exchange->start;
    state.handler_.finished(
        {exchange->request, exchange->status, seconds.count(), how == MHD_REQUEST_TERMINATED_COMPLETED_OK});
  }

  /// Called once after the headers, for each piece of the body, and once after it.
  static MHD_Result access(void* self, MHD_Connection* connection, const char* url, const char* method,
                           const char*, const char* data, std::size_t* bytes, void** context) {
    State& state = *static_cast<State*>(self);
    auto* exchange = static_cast<Exchange*>(*context);
    if (!exchange) {
      *context = exchange = new Exchange;
      return state.begin(connection, url, method, *exchange);
    }
    if (*bytes > 0) {
      const std::size_t count = std::exchange(*bytes, 0);
      return state.receive(*exchange, data, count);
    }
    return state.finish(connection, *exchange);
  }

  MHD_Result begin(MHD_Connection* connection, const char* url, const char* method, Exchange& exchange) {
    connections_.headers_read(connection);
    HttpRequest& request = exchange.request;
    request.id = new_request_id();
    request.method = std::strcmp(method, "HEAD") == 0 ? "GET" : method;
    request.path = url;
    request.remote = remote_of(connection);
    MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &request.headers);
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, add_argument, &request.query);
    request.is_form = lower(request.header("content-type")).starts_with("multipart/form-data");
    const std::size_t announced = std::strtoull(request.header("content-length").c_str(), nullptr, 10);
    try {
      handler_.admit(request);
      if (announced > body_limit(request)) throw too_large(request);
      if (request.is_form) exchange.form.emplace(connection, request, limits_.field_bytes);
    } catch (const std::exception&) {
      exchange.refusal = answer_of(request, []() -> HttpResponse { throw; });
      if (announced > kDrainBytes) return send(connection, exchange, *std::exchange(exchange.refusal, {}));
    }
    return MHD_YES;
  }

  std::size_t body_limit(const HttpRequest& request) const {
    return request.is_form ? limits_.form_bytes : limits_.body_bytes;
  }
  ApiError too_large(const HttpRequest& request) const {
    return {413, "too_large", fmt::format("a body of more than {} bytes", body_limit(request))};
  }

  MHD_Result receive(Exchange& exchange, const char* data, std::size_t bytes) {
    exchange.received += bytes;
    if (exchange.received > body_limit(exchange.request)) {
      if (!exchange.refusal) exchange.refusal = error_response(too_large(exchange.request));
      if (exchange.received > body_limit(exchange.request) + kDrainBytes) return MHD_NO;
    }
    if (exchange.refusal) return MHD_YES;
    if (exchange.form)
      exchange.form->add(data, bytes);
    else
      exchange.request.body.append(data, bytes);
    return MHD_YES;
  }

  MHD_Result finish(MHD_Connection* connection, Exchange& exchange) {
    connections_.request_read(connection);
    if (!exchange.waker) exchange.waker = std::make_shared<ConnectionWaker>(connection);
    std::optional<HttpResponse> response;
    if (exchange.refusal) {
      response = std::move(exchange.refusal);
    } else if (!exchange.late) {
      response = answer_of(exchange.request, [&] {
        if (exchange.form) exchange.form->finish();
        return handler_.answer(exchange.request);
      });
    }
    for (;;) {
      if (response) {
        const auto* late = std::get_if<std::shared_ptr<LateAnswer>>(&response->body);
        if (!late) return send(connection, exchange, *std::move(response));
        exchange.late = *late;
        exchange.late->start(exchange.waker);
        connections_.waits(connection, exchange.waker);
      }
      if (exchange.waker->abandoned()) return MHD_NO;
      response = polled(exchange);
      if (!response && exchange.waker->suspend()) return MHD_YES;
    }
  }

  /// What the late answer has become, an error too.
  static std::optional<HttpResponse> polled(Exchange& exchange) {
    std::optional<HttpResponse> response;
    HttpResponse failed = answer_of(exchange.request, [&] {
      response = exchange.late->poll();
      return HttpResponse{};
    });
    return failed.status == 200 ? std::move(response) : std::move(failed);
  }

  MHD_Result send(MHD_Connection* connection, Exchange& exchange, HttpResponse response) {
    connections_.request_read(connection);
    handler_.decorate(exchange.request, response);
    MHD_Response* out = mhd_response(response, exchange.waker);
    if (!out) return MHD_NO;
    for (const auto& [name, value] : response.headers)
      MHD_add_response_header(out, name.c_str(), value.c_str());
    const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(response.status), out);
    MHD_destroy_response(out);
    exchange.status = response.status;
    exchange.answered = Clock::now();
    return queued;
  }

  HttpLimits limits_;
  HttpHandler& handler_;
  Connections connections_;
  int listener_;
  int port_;
  MHD_Daemon* daemon_ = nullptr;
};

HttpServer::HttpServer(const std::string& host, int port, const HttpLimits& limits, HttpHandler& handler)
    : state_(std::make_unique<State>(host, port, limits, handler)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const {
  return state_->port();
}
void HttpServer::stop() {
  state_->stop();
}

}  // namespace magi
