// SPDX-License-Identifier: Apache-2.0
// Suspends and resumes one connection, without losing a wake-up between the two. Internal to the HTTP server.
#pragma once

#include <microhttpd.h>

#include <atomic>
#include <mutex>

#include "serve/http.h"

namespace magi {

class ConnectionWaker final : public Waker {
 public:
  explicit ConnectionWaker(MHD_Connection* connection) : connection_(connection) {}

  void wake() override {
    const std::lock_guard lock(mutex_);
    if (!connection_) return;
    if (suspended_) MHD_resume_connection(connection_);
    woken_ = !suspended_;
    suspended_ = false;
  }

  /// On the connection's thread: suspends it, unless wake() came since the last call; then false.
  bool suspend() {
    const std::lock_guard lock(mutex_);
    if (woken_) {
      woken_ = false;
      return false;
    }
    MHD_suspend_connection(connection_);
    suspended_ = true;
    return true;
  }

  /// The client went away: the connection's thread is to end the exchange.
  void abandon() {
    gone_ = true;
    wake();
  }
  bool abandoned() const { return gone_; }

  /// The exchange is over.
  void release() {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
  }

 private:
  std::mutex mutex_;
  MHD_Connection* connection_;
  bool suspended_ = false, woken_ = false;
  std::atomic<bool> gone_{false};
};

}  // namespace magi
