// SPDX-License-Identifier: Apache-2.0
#include "serve/api_error.h"

#include <nlohmann/json.hpp>

namespace magi {
namespace {

const char* type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

std::string ApiError::json() const {
  nlohmann::json error{{"message", what()}, {"type", type_of(status_)}, {"param", nullptr}, {"code", code_}};
  if (!param_.empty()) error["param"] = param_;
  return nlohmann::json{{"error", error}}.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void bad_field(const std::string& field, const std::string& message) {
  throw ApiError(400, "invalid_value", message, field);
}

}  // namespace magi
