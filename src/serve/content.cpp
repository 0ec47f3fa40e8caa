// SPDX-License-Identifier: Apache-2.0
#include "serve/content.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "serve/api_error.h"
#include "serve/ranges.h"

namespace magi {

HttpResponse file_response(const HttpRequest& request, const std::filesystem::path& file,
                           const std::string& content_type, const std::string& tag) {
  const std::shared_ptr<const int> descriptor(new int(open(file.c_str(), O_RDONLY | O_CLOEXEC)),
                                              [](const int* fd) {
                                                if (*fd >= 0) close(*fd);
                                                delete fd;
                                              });
  struct stat info {};
  if (*descriptor < 0 || fstat(*descriptor, &info) != 0)
    throw ApiError(404, "not_found", "this video has no such file", "variant");

  const std::string etag = '"' + tag + '"';
  HttpResponse response;
  response.headers = {{"ETag", etag}, {"Accept-Ranges", "bytes"}, {"Cache-Control", "private, no-cache"}};
  if (request.header("if-none-match") == etag) {
    response.status = 304;
    return response;
  }
  response.headers.emplace_back("Content-Type", content_type);
  FileBody body{descriptor, 0, info.st_size};
  const std::string only_if = request.header("if-range");
  if (only_if.empty() || only_if == etag) {
    if (const auto range = parse_range(request.header("range"), info.st_size)) {
      body.offset = range->first;
      body.length = range->last - range->first + 1;
      response.status = 206;
      response.headers.emplace_back("Content-Range",
                                    fmt::format("bytes {}-{}/{}", range->first, range->last, info.st_size));
    }
  }
  response.body = body;
  return response;
}

}  // namespace magi
