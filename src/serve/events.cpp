// SPDX-License-Identifier: Apache-2.0
#include "serve/events.h"

#include <fmt/format.h>

namespace magi {
namespace {

constexpr std::size_t kMaxListeners = 512;
constexpr const char* kNames[kEventKinds] = {"status", "progress", "preview", "done"};

}  // namespace

std::string event_text(EventKind kind, const std::string& json) {
  return fmt::format("event: {}\ndata: {}\n\n", kNames[static_cast<std::size_t>(kind)], json);
}

void EventStream::start(std::shared_ptr<Waker> waker) {
  const std::lock_guard lock(mutex_);
  waker_ = std::move(waker);
}

std::optional<std::string> EventStream::next() {
  const std::lock_guard lock(mutex_);
  std::string bytes;
  for (auto& event : events_)
    if (event) bytes += *std::exchange(event, nullptr);
  if (bytes.empty() && ended_) return std::nullopt;
  if (std::exchange(ping_, false) && bytes.empty()) bytes = ": still here\n\n";
  return bytes;
}

std::shared_ptr<Waker> EventStream::put(EventKind kind, std::shared_ptr<const std::string> text) {
  const std::lock_guard lock(mutex_);
  events_[static_cast<std::size_t>(kind)] = std::move(text);
  if (kind == EventKind::status) events_[static_cast<std::size_t>(EventKind::progress)] = nullptr;  // older
  ended_ = ended_ || kind == EventKind::done;
  return waker_;
}

std::shared_ptr<Waker> EventStream::ping() {
  const std::lock_guard lock(mutex_);
  ping_ = true;
  return waker_;
}

std::shared_ptr<Waker> EventStream::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  return waker_;
}

namespace {

/// Holding no lock.
void wake(const std::vector<std::shared_ptr<Waker>>& wakers) {
  for (const auto& waker : wakers)
    if (waker) waker->wake();
}

}  // namespace

void EventHub::publish(const std::string& id, EventKind kind, const std::string& json) {
  std::vector<std::shared_ptr<Waker>> wakers;
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = streams_.equal_range(id);
    if (first != last) {
      const auto text = std::make_shared<const std::string>(event_text(kind, json));
      for (auto at = first; at != last;) {
        const auto stream = at->second.lock();
        if (stream) wakers.push_back(stream->put(kind, text));
        at = stream && kind != EventKind::done ? std::next(at) : streams_.erase(at);
      }
    }
    if (kind == EventKind::done) {
      const auto [begin, end] = waiting_.equal_range(id);
      for (auto at = begin; at != end; ++at) wakers.push_back(at->second);
      waiting_.erase(begin, end);
    }
  }
  wake(wakers);
}

bool EventHub::heard(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return streams_.contains(id);
}

std::size_t EventHub::listeners() {
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [](const auto& entry) { return entry.second.expired(); });
  return streams_.size();
}

void EventHub::ping() {
  std::vector<std::shared_ptr<Waker>> wakers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, weak] : streams_)
      if (const auto stream = weak.lock()) wakers.push_back(stream->ping());
  }
  wake(wakers);
}

void EventHub::close() {
  std::vector<std::shared_ptr<Waker>> wakers;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    for (const auto& [id, weak] : streams_)
      if (const auto stream = weak.lock()) wakers.push_back(stream->end());
    for (const auto& [id, waker] : waiting_) wakers.push_back(waker);
    waiting_.clear();
  }
  wake(wakers);
}

bool EventHub::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

std::shared_ptr<EventStream> EventHub::listen(const std::string& id) {
  if (listeners() >= kMaxListeners) return nullptr;
  auto stream = std::make_shared<EventStream>();
  const std::lock_guard lock(mutex_);
  if (closed_) stream->end();
  streams_.emplace(id, stream);
  return stream;
}

void EventHub::when_done(const std::string& id, std::shared_ptr<Waker> waker) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      waiting_.emplace(id, std::move(waker));
      return;
    }
  }
  waker->wake();
}

}  // namespace magi
