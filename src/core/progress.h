// SPDX-License-Identifier: Apache-2.0
// How long work tells what it is doing, and how it is told to stop.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"

namespace magi {

/// Receives progress; the default ignores it. cancel() may be called from a signal handler or another thread;
/// work asks check() between steps.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A stage of `total` units begins ("denoise", 100). Ends the one before.
  virtual void stage(std::string_view /*name*/, std::int64_t /*total*/) {}
  /// The stages that follow belong to item `number` (from 1) of `count`.
  virtual void item(std::size_t /*number*/, std::size_t /*count*/) {}
  /// `done` of the stage's units are finished.
  virtual void advance(std::int64_t /*done*/) {}

  void cancel() noexcept { cancelled_.store(true); }
  bool cancelled() const noexcept { return cancelled_.load(); }
  /// Throws Cancelled after cancel().
  void check() const {
    if (cancelled()) throw Cancelled();
  }

 private:
  std::atomic<bool> cancelled_{false};
};

}  // namespace magi
