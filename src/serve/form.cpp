// SPDX-License-Identifier: Apache-2.0
#include "serve/form.h"

#include <microhttpd.h>

namespace magi {
namespace {

constexpr std::size_t kBufferBytes = 32 << 10;  // of one part's headers
constexpr std::size_t kMaxParts = 64;

MHD_PostProcessor* processor_of(const std::shared_ptr<void>& pointer) {
  return static_cast<MHD_PostProcessor*>(pointer.get());
}

/// The boundary of a Content-Type; "" where there is none.
std::string boundary_of(const std::string& content_type) {
  const std::size_t at = content_type.find("boundary=");
  if (at == std::string::npos) return "";
  std::string boundary = content_type.substr(at + 9);
  if (!boundary.empty() && boundary[0] == '"') {
    const std::size_t end = boundary.find('"', 1);
    return end == std::string::npos ? "" : boundary.substr(1, end - 1);
  }
  return boundary.substr(0, boundary.find_first_of("; \t"));
}

}  // namespace

struct FormCallback {
  static MHD_Result part(void* self, MHD_ValueKind, const char* key, const char* filename, const char*,
                         const char*, const char* data, std::uint64_t offset, std::size_t bytes) {
    auto& form = *static_cast<FormReader*>(self);
    form.part(key, filename != nullptr, data, offset, bytes);
    return form.error_ ? MHD_NO : MHD_YES;
  }
};

FormReader::FormReader(MHD_Connection* connection, HttpRequest& request, std::size_t field_bytes)
    : request_(request), field_bytes_(field_bytes), boundary_(boundary_of(request.header("content-type"))) {
  MHD_PostProcessor* processor =
      boundary_.empty() ? nullptr
                        : MHD_create_post_processor(connection, kBufferBytes, FormCallback::part, this);
  if (!processor) throw ApiError(400, "invalid_form", "multipart/form-data without a boundary");
  processor_ = {processor, [](void* p) { MHD_destroy_post_processor(static_cast<MHD_PostProcessor*>(p)); }};
}

void FormReader::part(const char* name, bool is_file, const char* data, std::uint64_t offset,
                      std::size_t bytes) {
  if (!name || request_.fields.size() + request_.files.size() > kMaxParts) {
    error_.emplace(400, "invalid_form", name ? "too many parts" : "a part has no name");
    return;
  }
  std::string& content = is_file ? request_.files[name].content : request_.fields[name];
  if (offset != content.size() ||
      (is_file ? request_.fields.contains(name) : request_.files.contains(name))) {
    error_.emplace(400, "invalid_form", "given twice", name);
    return;
  }
  if (!is_file && content.size() + bytes > field_bytes_) {
    error_.emplace(413, "too_large", fmt::format("a field of more than {} bytes", field_bytes_), name);
    return;
  }
  content.append(data, bytes);
}

void FormReader::add(const char* data, std::size_t bytes) {
  tail_.append(data, bytes);
  const std::size_t keep = boundary_.size() + 16;
  if (tail_.size() > keep) tail_.erase(0, tail_.size() - keep);
  if (error_) return;
  if (MHD_post_process(processor_of(processor_), data, bytes) != MHD_YES && !error_)
    error_.emplace(400, "invalid_form", "malformed multipart/form-data");
}

void FormReader::finish() {
  if (!error_ && tail_.find("--" + boundary_ + "--") == std::string::npos)
    error_.emplace(400, "invalid_form", "multipart/form-data is cut short");
  if (error_) throw ApiError(*error_);
}

}  // namespace magi
