// SPDX-License-Identifier: Apache-2.0
// Server-sent events of jobs. A slow reader gets the latest event of each kind, so nothing piles up.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "serve/http.h"

namespace magi {

enum class EventKind : std::uint8_t { status, progress, preview, done };
inline constexpr std::size_t kEventKinds = 4;

/// "event: NAME\ndata: JSON\n\n"; the JSON is one line.
std::string event_text(EventKind kind, const std::string& json);

/// One listener: what it has not been sent yet.
class EventStream final : public ByteStream {
 public:
  void start(std::shared_ptr<Waker> waker) override;
  std::optional<std::string> next() override;

  /// Replaces an event of the same kind that has not been sent, and `status`, which says all, one of
  /// `progress`; `done` is the last. Returns whom to wake then.
  std::shared_ptr<Waker> put(EventKind kind, std::shared_ptr<const std::string> text);
  std::shared_ptr<Waker> ping();
  std::shared_ptr<Waker> end();

 private:
  std::mutex mutex_;
  std::shared_ptr<Waker> waker_;
  std::array<std::shared_ptr<const std::string>, kEventKinds> events_;
  bool ping_ = false, ended_ = false;
};

/// Who wants to hear of which job.
class EventHub {
 public:
  /// Sends an event to those who listen to the job; `done` is its last. Cheap when nobody does.
  void publish(const std::string& id, EventKind kind, const std::string& json);
  /// Whether anybody listens.
  bool heard(const std::string& id);
  std::size_t listeners();
  /// A comment to everybody, so that dead connections are noticed and proxies keep live ones.
  void ping();
  /// Ends all streams, now and from now on.
  void close();

  /// A stream of the job's events from now on. Nothing when there are too many already.
  std::shared_ptr<EventStream> listen(const std::string& id);
  /// Wakes `waker` once the job is over, or the hub closes.
  void when_done(const std::string& id, std::shared_ptr<Waker> waker);
  bool closed();

 private:
  std::mutex mutex_;
  bool closed_ = false;
  std::multimap<std::string, std::weak_ptr<EventStream>> streams_;
  std::multimap<std::string, std::shared_ptr<Waker>> waiting_;
};

}  // namespace magi
