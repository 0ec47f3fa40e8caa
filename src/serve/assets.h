// SPDX-License-Identifier: Apache-2.0
// Files that are part of the program: the page and the API's description (CMakeLists.txt embeds them).
#pragma once

#include <span>
#include <string_view>

namespace magi {

struct Asset {
  std::string_view path;  ///< as requested: "/", "/app.js", "/openapi.json"
  std::string_view content_type;
  std::string_view content;
};

std::span<const Asset> assets();

}  // namespace magi
