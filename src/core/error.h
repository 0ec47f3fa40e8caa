// SPDX-License-Identifier: Apache-2.0
// Errors that a person can act on: what was wrong, where, and what to do, in one line.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace magi {

/// Bad input, missing files, exhausted resources. The message is one line, printed as it is by the commands.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The run was cancelled (Ctrl-C, or a job that was withdrawn). Not a failure: nothing was left behind.
class Cancelled : public Error {
 public:
  Cancelled() : Error("cancelled") {}
};

/// Throws Error with a formatted message.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error with a formatted message unless `condition` holds.
template <typename... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(format, std::forward<Args>(args)...);
}

}  // namespace magi
