// SPDX-License-Identifier: Apache-2.0
// What clients cost a running job: windows without and with `clients` that poll once a second and as many
// that stream events take turns within one job of one server, so that only the clients differ. The clients
// are one thread over epoll, since on the same cores their own time would count as the server's; it is told
// beside. usage: serve_load PROGRAM [clients=100] [pairs=8] [window=8] [size=256x160] [seconds=4]
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The number behind `mark`, nowhere: −1.
double number_after(const std::string& text, const std::string& mark) {
  const std::size_t at = text.find(mark);
  return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + mark.size(), nullptr);
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(q * static_cast<double>(values.size())))];
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

pid_t start(const std::vector<std::string>& command, const fs::path& log) {
  const pid_t child = fork();
  require(child >= 0, "no process can be started");
  if (child > 0) return child;
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  _exit(127);
}

/// `program serve` on a tiny root in a directory of its own, which goes with it.
class Server {
 public:
  explicit Server(const std::string& program) {
    char name[] = "/tmp/magi2-load-XXXXXX";
    require(mkdtemp(name) != nullptr, "no directory can be made in /tmp");
    directory_ = name;
    int status = -1;
    waitpid(start({program, "init", directory_ / "root"}, directory_ / "log"), &status, 0);
    require(status == 0, "{} init failed", program);
    pid_ = start({program, "serve", "-m", directory_ / "root", "--data", directory_ / "data", "--port", "0",
                  "--max-steps", "1000"},
                 directory_ / "log");
    for (int i = 0; i < 600 && port_ <= 0; ++i) {
      std::this_thread::sleep_for(milliseconds(100));
      port_ = static_cast<int>(number_after(content_of(directory_ / "log"), "\"port\":"));
    }
    require(port_ > 0, "{} serve does not listen", program);
  }
  ~Server() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
    std::error_code ignored;
    fs::remove_all(directory_, ignored);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }

  /// CPU seconds of its threads, or of those that answer alone.
  double cpu_seconds(bool http_only) const {
    double total = 0;
    for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid_))) {
      if (http_only && !content_of(task.path() / "comm").starts_with("MHD-")) continue;
      total += std::strtod(content_of(task.path() / "schedstat").c_str(), nullptr) * 1e-9;
    }
    return total;
  }

 private:
  fs::path directory_;
  pid_t pid_ = -1;
  int port_ = -1;
};

/// One connection that is kept.
class Link {
 public:
  Link(int port, std::string request) : request_(std::move(request)) {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    require(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0,
            "no connection to the server");
  }
  ~Link() { close(fd_); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  int fd() const { return fd_; }
  void ask() {
    require(
        send(fd_, request_.data(), request_.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request_.size()),
        "the server closed a connection");
    asked_ = Clock::now();
    got_.clear();
  }
  /// What has come; "" at the end.
  std::string_view receive() {
    static char buffer[256 << 10];
    const ssize_t count = recv(fd_, buffer, sizeof buffer, 0);
    return {buffer, static_cast<std::size_t>(std::max<ssize_t>(0, count))};
  }
  /// Adds to the answer; whether it is whole.
  bool answered() {
    const std::string_view more = receive();
    require(!more.empty(), "the server closed a connection");
    got_ += more;
    const std::size_t head = got_.find("\r\n\r\n");
    if (head == std::string::npos) return false;
    const double length = number_after(got_, "Content-Length: ");
    return got_.size() >= head + 4 + static_cast<std::size_t>(std::max(0.0, length));
  }
  const std::string& got() const { return got_; }
  Clock::time_point asked() const { return asked_; }

 private:
  int fd_;
  std::string request_, got_;
  Clock::time_point asked_;
};

std::string text_of(const char* method, const std::string& path, const std::string& body = "") {
  std::string text = fmt::format("{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\n", method, path);
  if (!body.empty())
    text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  return text + "\r\n" + body;
}

std::string asked(int port, const char* method, const std::string& path, const std::string& body = "") {
  Link link(port, text_of(method, path, body));
  link.ask();
  while (!link.answered()) {
  }
  return link.got();
}

/// The clients, while they are wanted.
class Load {
 public:
  Load(int port, const std::string& id, int clients) : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    const Clock::time_point now = Clock::now();
    for (int i = 0; i < 2 * clients; ++i) {
      const bool stream = i >= clients;
      links_.push_back(
          std::make_unique<Link>(port, text_of("GET", "/v1/videos/" + id + (stream ? "/events" : ""))));
      if (stream)
        links_.back()->ask();
      else
        due_.push_back(now + std::chrono::microseconds(1'000'000LL * i / clients));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u32 = static_cast<std::uint32_t>(i);
      require(epoll_ctl(epoll_, EPOLL_CTL_ADD, links_.back()->fd(), &event) == 0, "epoll failed");
    }
  }
  ~Load() { close(epoll_); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void run(double seconds) {
    const auto end =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    const std::size_t polls = due_.size();
    for (Clock::time_point now; (now = Clock::now()) < end;) {
      if (polls > 0 && due_[next_] <= now) {  // they are due in turn
        links_[next_]->ask();
        due_[next_] += std::chrono::seconds(1);
        next_ = (next_ + 1) % polls;
        continue;
      }
      const Clock::time_point until = polls > 0 ? std::min(end, due_[next_]) : end;
      epoll_event events[64];
      const int count =
          epoll_wait(epoll_, events, 64, static_cast<int>(seconds_between(now, until) * 1000) + 1);
      for (int i = 0; i < count; ++i) take(events[i].data.u32);
    }
  }

  std::vector<double> answers_ms;
  std::int64_t event_reads = 0, event_bytes = 0;

 private:
  void take(std::size_t i) {
    if (i >= due_.size()) {
      const std::string_view more = links_[i]->receive();
      require(!more.empty(), "the server ended an event stream");
      ++event_reads;
      event_bytes += static_cast<std::int64_t>(more.size());
    } else if (links_[i]->answered()) {
      require(links_[i]->got().starts_with("HTTP/1.1 200"), "an answer that is none: {}", links_[i]->got());
      answers_ms.push_back(1000 * seconds_between(links_[i]->asked(), Clock::now()));
    }
  }

  int epoll_;
  std::vector<std::unique_ptr<Link>> links_;  ///< those that poll, then those that stream
  std::vector<Clock::time_point> due_;
  std::size_t next_ = 0;
};

double own_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Window {
  double step_ms = 0, http_share = 0, server_share = 0, client_share = 0;  // shares of one core
};

Window measured(const Server& server, Load& load, double seconds) {
  const auto look = [&] { return asked(server.port(), "GET", "/metrics"); };
  const auto delta = [](const std::string& before, const std::string& after, const char* name) {
    const std::string mark = fmt::format("\n{} ", name);
    return number_after(after, mark) - number_after(before, mark);
  };
  const std::string before = look();
  const double http = server.cpu_seconds(true), all = server.cpu_seconds(false), own = own_cpu_seconds();
  const Clock::time_point begin = Clock::now();
  load.run(seconds);
  const double wall = seconds_between(begin, Clock::now());
  Window window;
  window.client_share = (own_cpu_seconds() - own) / wall;
  window.http_share = (server.cpu_seconds(true) - http) / wall;
  window.server_share = (server.cpu_seconds(false) - all) / wall;
  const std::string after = look();
  const double steps = delta(before, after, "magi2_steps_total");
  require(steps > 0, "no step ended within {} s: a longer window is needed", seconds);
  window.step_ms = 1000 * delta(before, after, "magi2_step_seconds_total") / steps;
  return window;
}

std::string id_of(const std::string& answer) {
  const std::size_t at = answer.find("\"id\":\"");
  require(at != std::string::npos, "the job was refused: {}", answer);
  return answer.substr(at + 6, answer.find('"', at + 6) - at - 6);
}

struct Options {
  std::string program;
  int clients = 100, pairs = 8;
  double window = 8;
  std::string size = "256x160", seconds = "4";
};

void run(const Options& options) {
  const Server server(options.program);
  const std::string id = id_of(
      asked(server.port(), "POST", "/v1/videos",
            fmt::format(R"({{"prompt":"A fox.","size":"{}","seconds":"{}","num_inference_steps":1000}})",
                        options.size, options.seconds)));
  while (number_after(asked(server.port(), "GET", "/v1/videos/" + id), "\"step\":") < 3)
    std::this_thread::sleep_for(milliseconds(200));

  std::vector<double> step_ms[2], http, client, answers, changes;
  std::int64_t event_reads = 0, event_bytes = 0;
  for (int pair = 0; pair < options.pairs; ++pair) {
    double ms[2];
    for (const bool loaded : {pair % 2 == 1, pair % 2 == 0}) {  // AB BA AB …: what drifts falls on both
      Load load(server.port(), id, loaded ? options.clients : 0);
      load.run(1);
      load.answers_ms.clear();
      load.event_reads = load.event_bytes = 0;
      const Window window = measured(server, load, options.window);
      ms[loaded] = window.step_ms;
      step_ms[loaded].push_back(window.step_ms);
      fmt::print(
          "pair {} {}: {:.1f} ms a step; of one core: server {:.1f} %, its HTTP threads {:.2f} %, clients "
          "{:.2f} %\n",
          pair + 1, loaded ? "with   " : "without", window.step_ms, 100 * window.server_share,
          100 * window.http_share, 100 * window.client_share);
      std::fflush(stdout);
      if (!loaded) continue;
      http.push_back(100 * window.http_share);
      client.push_back(100 * window.client_share);
      answers.insert(answers.end(), load.answers_ms.begin(), load.answers_ms.end());
      event_reads += load.event_reads;
      event_bytes += load.event_bytes;
    }
    changes.push_back(100 * (ms[1] / ms[0] - 1));
  }
  asked(server.port(), "POST", "/v1/videos/" + id + "/cancel");
  fmt::print("a step: {:.1f} ms without, {:.1f} ms with {} + {} clients (medians of {} windows of {} s)\n",
             median(step_ms[0]), median(step_ms[1]), options.clients, options.clients, options.pairs,
             options.window);
  fmt::print("paired: {:+.2f} % (median; quartiles {:+.2f} and {:+.2f}, {:+.2f} to {:+.2f})\n",
             median(changes), quantile(changes, 0.25), quantile(changes, 0.75), quantile(changes, 0),
             quantile(changes, 1));
  fmt::print("CPU of one core while loaded (medians): HTTP threads {:.2f} %, the clients' own {:.2f} %\n",
             median(http), median(client));
  fmt::print(
      "{} answers: median {:.2f} ms, 99 % within {:.2f} ms, all within {:.2f} ms; {} reads and {:.1f} MB of "
      "events\n",
      answers.size(), quantile(answers, 0.5), quantile(answers, 0.99), quantile(answers, 1), event_reads,
      static_cast<double>(event_bytes) * 1e-6);
}

}  // namespace
}  // namespace magi

int main(int argc, char** argv) try {
  magi::require(argc >= 2,
                "usage: serve_load PROGRAM [clients=100] [pairs=8] [window=8] [size=256x160] [seconds=4]");
  magi::Options options{argv[1]};
  if (argc > 2) options.clients = std::atoi(argv[2]);
  if (argc > 3) options.pairs = std::atoi(argv[3]);
  if (argc > 4) options.window = std::atof(argv[4]);
  if (argc > 5) options.size = argv[5];
  if (argc > 6) options.seconds = argv[6];
  magi::require(options.clients > 0 && options.pairs > 0 && options.window > 0,
                "clients, pairs and window are above 0");
  magi::run(options);
} catch (const std::exception& error) {
  fmt::print(stderr, "serve_load: {}\n", error.what());
  return 1;
}
