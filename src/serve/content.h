// SPDX-License-Identifier: Apache-2.0
// A job's files over HTTP: ranges, conditional requests.
#pragma once

#include <filesystem>
#include <string>

#include "serve/http.h"

namespace magi {

/// The file, or the part of it that the request's Range asks for (206), or 304 where the client has it
/// already. `tag` names the content, which never changes. Throws ApiError 404 when there is no such file,
/// 416.
HttpResponse file_response(const HttpRequest& request, const std::filesystem::path& file,
                           const std::string& content_type, const std::string& tag);

}  // namespace magi
