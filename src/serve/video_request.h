// SPDX-License-Identifier: Apache-2.0
// What POST /v1/videos asks for: the API's fields, checked by the Request that they become.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "run/request.h"
#include "serve/http.h"

namespace magi {

inline constexpr const char* kModelName = "magi-2-preview";

struct VideoRequest {
  std::string json;  ///< kept with the job: the API's fields in their own types
  std::int64_t priority = 0;
  std::optional<std::string> reference;  ///< a picture's file, whole and decodable
};

/// What a server allows.
struct RequestLimits {
  bool can_enhance = false;               ///< it has a language model
  std::int64_t max_pixels = 1920 * 1088;  ///< of a frame that is denoised
  double max_seconds = 20;
  std::int64_t max_steps = 200;
  std::size_t max_prompt_bytes = 64 << 10;
};

/// Reads a JSON body or a form. Throws ApiError 400 that names the field.
VideoRequest parse_video_request(HttpRequest& request, const GenerationDefaults& defaults,
                                 const RequestLimits& limits);

/// What the engine is to make of the kept JSON.
struct VideoPlan {
  Request request;
  bool enhance = false;
};
/// `reference`: the picture's path, where there is one. `enhanced`: the prompt that replaces the one in it.
VideoPlan plan_video(const std::string& json, const GenerationDefaults& defaults,
                     const std::optional<std::filesystem::path>& reference,
                     const std::optional<std::string>& enhanced);

}  // namespace magi
