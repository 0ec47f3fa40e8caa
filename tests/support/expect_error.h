// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "core/error.h"

namespace magi {

/// Expects an Error of one line that contains `part`.
template <typename Function>
void expect_error(Function function, std::string_view part) {
  try {
    function();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" lacks \"" << part << "\"";
    EXPECT_EQ(message.find('\n'), std::string::npos) << "more than one line: " << message;
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "not an Error: " << error.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with \"" << part << "\"";
}

}  // namespace magi
