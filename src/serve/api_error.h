// SPDX-License-Identifier: Apache-2.0
// What a client did wrong, in the shape that OpenAI's clients understand.
#pragma once

#include <string>

#include "core/error.h"

namespace magi {

/// Ends a request with `status` and {"error":{"message","type","param","code"}}.
class ApiError : public Error {
 public:
  ApiError(int status, std::string code, const std::string& message, std::string param = {})
      : Error(message), status_(status), code_(std::move(code)), param_(std::move(param)) {}

  int status() const { return status_; }
  const std::string& code() const { return code_; }
  const std::string& param() const { return param_; }   ///< the field; empty: none
  int retry_after_s() const { return retry_after_s_; }  ///< 0: the client is not told when to come back
  ApiError retry_after(int seconds) && {
    retry_after_s_ = seconds;
    return std::move(*this);
  }

  /// The body of the answer.
  std::string json() const;

 private:
  int status_;
  std::string code_;
  std::string param_;
  int retry_after_s_ = 0;
};

/// 400 for a field.
[[noreturn]] void bad_field(const std::string& field, const std::string& message);

}  // namespace magi
