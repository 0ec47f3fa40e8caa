// SPDX-License-Identifier: Apache-2.0
#include "comm/monitor.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "core/standard_error.h"

namespace magi {
namespace {

using Clock = std::chrono::steady_clock;

// First byte of a frame.
constexpr char kBeat = 'b', kFailure = 'f', kVerdict = 'v', kLeave = 'l';

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr double kBeatSeconds = 1;
constexpr double kSendSeconds = 5;   // a beat fits into any socket buffer; longer means that nobody reads
constexpr double kGraceSeconds = 5;  // for the main thread to unwind, once the run has failed
// A rank starves when all others wait for so much of the time and it does not: it is twenty times slower.
constexpr double kOthersWait = 0.95, kStarvedWaits = 0.5;

std::string link_target(const char* path) {
  std::array<char, 256> text{};
  const ssize_t length = ::readlink(path, text.data(), text.size() - 1);
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : "";
}

}  // namespace

RankName RankName::own(int rank) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return {rank, host.data(), link_target("/proc/self/ns/pid"), ::getpid()};
}

std::string RankName::to_text() const {
  return fmt::format("{}\n{}\n{}\n{}", rank, process, host, process_space);
}

RankName RankName::from_text(const std::string& text) {
  std::istringstream in(text);
  RankName name;
  in >> name.rank >> name.process;
  in.ignore();
  std::getline(in, name.host);
  std::getline(in, name.process_space);
  return name;
}

std::string RankName::describe() const {
  return fmt::format("rank {} ({}, process {})", rank, host, process);
}

Monitor::Monitor(int rank, std::vector<RankName> names, std::vector<Socket> links, double silence_seconds)
    : rank_(rank), names_(std::move(names)), silence_(silence_seconds), links_(std::move(links)) {
  steps_.assign(links_.size(), "start");
  silent_at_.assign(links_.size(), deadline_in(silence_));
  left_.assign(links_.size(), 0);
  heard_waiting_.assign(links_.size() + 1, 0);
  stage_ = "start";
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() {
  leave();
}

void Monitor::leave() {
  stopping_ = true;
  if (thread_.joinable()) thread_.join();
}

void Monitor::set_stage(const std::string& text) {
  const std::lock_guard lock(mutex_);
  stage_ = text;
  collective_.clear();
}

void Monitor::set_collective(const std::string& text) {
  const std::lock_guard lock(mutex_);
  collective_ = text;
}

void Monitor::set_excuse(const std::string& why) {
  const std::lock_guard lock(mutex_);
  excuse_ = why;
}

void Monitor::check() const {
  if (!failed_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw RankLost(verdict_, told_);
}

std::string Monitor::own_step() const {
  const std::lock_guard lock(mutex_);
  return collective_.empty() ? stage_ : fmt::format("{}, {}", stage_, collective_);
}

std::string Monitor::last_step(int rank) const {
  if (rank == rank_) return own_step();
  const std::lock_guard lock(mutex_);
  return steps_.at(static_cast<std::size_t>(rank_ == 0 ? rank - 1 : 0));
}

void Monitor::fail(const std::string& why, bool printed) {
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.empty()) return;
    pending_failure_ = why;
    pending_printed_ = printed;
  }
  for (const Deadline end = deadline_in(2); !failed_ && Clock::now() < end;)
    std::this_thread::sleep_for(kTick / 4);
}

void Monitor::late(int rank, const std::string& collective, double seconds) {
  std::string who = fmt::format("rank {}", rank), step;
  if (rank_ == 0 || rank == 0) {
    who = names_.at(static_cast<std::size_t>(rank)).describe();
    step = fmt::format(", whose last step is: {}", last_step(rank));
  }
  std::string why = fmt::format("waited {:.0f} s in {} for {}{}", seconds, collective, who, step);
  {
    const std::lock_guard lock(mutex_);
    if (!excuse_.empty()) why = excuse_;
  }
  fail(why);
  check();
  throw RankLost(fmt::format("rank {} {}", rank_, why), false);  // nobody was there to decide
}

void Monitor::watch(std::function<std::string()> what_is_wrong) {
  const std::lock_guard lock(watch_mutex_);
  what_is_wrong_ = std::move(what_is_wrong);
}

/// The run has failed: every rank is told, and ends itself if its main thread does not.
void Monitor::decide(const std::string& verdict, bool told) {
  {
    const std::lock_guard lock(mutex_);
    if (!verdict_.empty()) return;
    verdict_ = verdict;
  }
  // At once: a launcher that sees a dead process ends the others without asking.
  if (!told) print_error("magi2: {}\n", verdict);
  told_ = true;
  failed_.store(true, std::memory_order_release);
  if (rank_ != 0) return;
  for (std::size_t i = 0; i < links_.size(); ++i) try {
      if (links_[i].open() && !left_[i]) links_[i].send_frame(kVerdict + verdict, deadline_in(0.5));
    } catch (const Error&) {  // that one is gone as well
    }
}

void Monitor::lost(std::size_t link, const std::string& how) {
  links_[link].close();
  if (left_[link]) return;
  left_[link] = 1;
  const RankName& name = names_.at(rank_ == 0 ? link + 1 : 0);
  if (how.starts_with("has been silent")) end_if_here(name);
  decide(fmt::format("{} {}; its last step: {}", name.describe(), how, last_step(name.rank)), false);
}

/// A stopped or starved process would stay for ever where no launcher cleans up.
void Monitor::end_if_here(const RankName& name) const {
  const RankName own = RankName::own(rank_);
  if (name.host == own.host && !own.process_space.empty() && name.process_space == own.process_space)
    ::kill(name.process, SIGKILL);
}

/// Looks at the last `2 * silence_` seconds.
void Monitor::look_for_starved_rank() {
  heard_waiting_[0] = waited_;
  const Deadline now = Clock::now();
  const auto age = [&](const Waiting& w) { return std::chrono::duration<double>(now - w.at).count(); };
  waiting_.push_back({now, heard_waiting_});
  while (waiting_.size() > 1 && age(waiting_[1]) >= 2 * silence_) waiting_.pop_front();
  const Waiting& then = waiting_.front();
  const double seconds = age(then);
  if (seconds < 2 * silence_ || std::ranges::find(left_, 1) != left_.end()) return;
  int starved = -1;
  for (std::size_t r = 0; r < heard_waiting_.size(); ++r) {
    const double share = (heard_waiting_[r] - then.seconds[r]) / seconds;
    if (share >= kOthersWait) continue;
    if (starved >= 0 || share > kStarvedWaits) return;
    starved = static_cast<int>(r);
  }
  if (starved < 0) return;
  const RankName& name = names_.at(static_cast<std::size_t>(starved));
  decide(
      fmt::format(
          "{} starves: for {:.0f} s all others did nothing but wait for it; give it a processor of its own; "
          "its last step: {}",
          name.describe(), seconds, last_step(starved)),
      false);
  if (starved > 0) end_if_here(name);
}

void Monitor::handle(std::size_t link, const std::string& frame) {
  silent_at_[link] = deadline_in(silence_);
  const std::string text = frame.substr(1);
  switch (frame.at(0)) {
    case kBeat: {
      const auto split = text.find('\n');
      if (rank_ == 0) heard_waiting_[link + 1] = std::atof(text.c_str());
      const std::lock_guard lock(mutex_);
      steps_[link] = text.substr(split + 1);
      return;
    }
    case kFailure: {  // only rank 0 is told
      const auto split = text.find('\n');
      const RankName& name = names_.at(link + 1);
      return decide(fmt::format("{} failed: {}; its last step: {}", name.describe(), text.substr(0, split),
                                text.substr(split + 1)),
                    false);
    }
    case kVerdict:
      return decide(text, true);
    case kLeave:
      left_[link] = 1;
      links_[link].close();
      return;
    default:
      return;
  }
}

void Monitor::send_beats() {
  const std::string beat = fmt::format("{}{:.3f}\n{}", kBeat, waited_.load(), own_step());
  for (std::size_t i = 0; i < links_.size(); ++i) try {
      if (links_[i].open()) links_[i].send_frame(beat, deadline_in(kSendSeconds));
    } catch (const Error&) {
      lost(i, "ended unexpectedly");
    }
}

void Monitor::look_around() {
  if (rank_ == 0 && !failed_) look_for_starved_rank();
  const std::lock_guard lock(watch_mutex_);
  if (const std::string wrong = what_is_wrong_ ? what_is_wrong_() : ""; !wrong.empty() && !failed_) {
    const std::lock_guard failure_lock(mutex_);
    pending_failure_ = wrong;
  }
}

void Monitor::listen() {
  std::vector<pollfd> waited;
  for (const Socket& link : links_) waited.push_back({link.fd(), POLLIN, 0});  // closed ones: −1 is skipped
  const Deadline before = Clock::now();
  ::poll(waited.data(), waited.size(), static_cast<int>(kTick.count()));
  // This process itself may have been stopped for a while: nobody else was silent then.
  if (Clock::now() - before > 20 * kTick)
    for (Deadline& at : silent_at_) at = deadline_in(silence_);
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i].open()) continue;
    if (waited[i].revents) {
      try {
        handle(i, links_[i].receive_frame(deadline_in(kSendSeconds)));
      } catch (const Error&) {
        lost(i, "ended unexpectedly");
      }
    } else if (Clock::now() > silent_at_[i]) {
      lost(i, fmt::format("has been silent for {:.0f} s", silence_));
    }
  }
}

void Monitor::tell_own_failure() {
  std::string failure;
  bool printed = false;
  {
    const std::lock_guard lock(mutex_);
    std::swap(failure, pending_failure_);
    printed = std::exchange(pending_printed_, false);
  }
  if (failure.empty()) return;
  if (rank_ == 0) {
    decide(fmt::format("{} failed: {}", names_.at(0).describe(), failure), printed);
  } else if (links_[0].open()) {
    try {
      links_[0].send_frame(fmt::format("{}{}\n{}", kFailure, failure, own_step()), deadline_in(kSendSeconds));
    } catch (const Error&) {
      lost(0, "ended unexpectedly");
    }
  }
}

void Monitor::run() {
  Deadline next_beat = Clock::now(), give_up = Deadline::max();
  std::string sent;
  while (!stopping_) {
    if (const std::string step = own_step(); Clock::now() >= next_beat || step != sent) {
      send_beats();
      sent = step;
      next_beat = deadline_in(kBeatSeconds);
      look_around();
    }
    listen();
    tell_own_failure();
    if (failed_ && give_up == Deadline::max()) give_up = deadline_in(kGraceSeconds);
    if (Clock::now() > give_up) {  // the main thread waits for something that will not come
      std::fflush(nullptr);
      ::_exit(1);
    }
  }
  if (!failed_)
    for (std::size_t i = 0; i < links_.size(); ++i) try {
        if (links_[i].open()) links_[i].send_frame(std::string(1, kLeave), deadline_in(1));
      } catch (const Error&) {
      }
}

}  // namespace magi
