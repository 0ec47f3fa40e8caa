// SPDX-License-Identifier: Apache-2.0
#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "core/log.h"
#include "core/standard_error.h"

namespace magi {
namespace {

constexpr int kBarWidth = 24;
constexpr std::chrono::milliseconds kRedraw{100};
constexpr std::chrono::seconds kPlainLine{10};  // where output is not a terminal

std::atomic<Progress*> interrupted_progress{nullptr};

extern "C" void on_interrupt(int signal) {
  Progress* progress = interrupted_progress.load();
  if (!progress || progress->cancelled()) _exit(128 + signal);
  progress->cancel();
}

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(seconds + 0.5);
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

/// "1.23 s each" or "4.5 a second".
std::string rate(double seconds, std::int64_t done) {
  const double each = seconds / static_cast<double>(done);
  return each >= 1 ? fmt::format("{:.2f} s each", each)
                   : fmt::format("{:.1f} a second", 1 / std::max(each, 1e-9));
}

}  // namespace

ProgressBar::ProgressBar() : terminal_(isatty(STDERR_FILENO) == 1) {
  set_log_sink([this](LogLevel level, std::string_view line) {
    print_error("{}{}{}\n", terminal_ ? "\r\x1b[K" : "", level == LogLevel::warning ? "warning: " : "", line);
    if (terminal_ && !name_.empty()) draw(false);
  });
}

ProgressBar::~ProgressBar() {
  set_log_sink({});
}

void ProgressBar::stage(std::string_view name, std::int64_t total) {
  finish();
  name_ = name;
  total_ = total;
  done_ = 0;
  start_ = drawn_ = Clock::now();
  if (terminal_) draw(false);
}

void ProgressBar::item(std::size_t number, std::size_t count) {
  finish();
  item_ = fmt::format("{}/{} ", number, count);
}

void ProgressBar::advance(std::int64_t done) {
  done_ = done;
  const auto interval = terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine);
  const bool last = !terminal_ && done_ >= total_;  // whose line finish() writes
  if (!last && Clock::now() - drawn_ >= interval) draw(false);
}

void ProgressBar::finish() {
  if (name_.empty()) return;
  if (!cancelled()) done_ = total_;
  draw(true);
  name_.clear();
}

void ProgressBar::draw(bool last) {
  drawn_ = Clock::now();
  const double seconds = std::chrono::duration<double>(drawn_ - start_).count();
  std::string line = fmt::format("{}{:<18}", item_, name_);
  if (total_ > 1) {
    const auto filled = static_cast<int>(kBarWidth * done_ / total_);
    line += fmt::format(" [{:<{}}] {}/{}", std::string(static_cast<std::size_t>(filled), '='), kBarWidth,
                        done_, total_);
  }
  line += "  " + duration(seconds);
  if (done_ > 0 && total_ > 1) line += "  " + rate(seconds, done_);
  if (done_ > 0 && done_ < total_)
    line += fmt::format("  {} left",
                        duration(seconds / static_cast<double>(done_) * static_cast<double>(total_ - done_)));
  print_error("{}{}{}", terminal_ ? "\r\x1b[K" : "", line, terminal_ && !last ? "" : "\n");
  std::fflush(stderr);
}

InterruptGuard::InterruptGuard(Progress& progress) {
  interrupted_progress.store(&progress);
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, on_interrupt);
}

InterruptGuard::~InterruptGuard() {
  for (int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  interrupted_progress.store(nullptr);
}

}  // namespace magi
