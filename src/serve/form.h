// SPDX-License-Identifier: Apache-2.0
// multipart/form-data as it arrives, within limits.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "serve/api_error.h"
#include "serve/http.h"

struct MHD_Connection;

namespace magi {

class FormReader {
 public:
  /// For a connection whose Content-Type is multipart/form-data. Throws ApiError when it lacks a boundary.
  FormReader(MHD_Connection* connection, HttpRequest& request, std::size_t field_bytes);

  /// The next bytes of the body. What is wrong with them is told by finish().
  void add(const char* data, std::size_t bytes);
  /// After the last byte. Throws ApiError: a form that is malformed, cut short, or has a field twice.
  void finish();

 private:
  friend struct FormCallback;
  void part(const char* name, bool is_file, const char* data, std::uint64_t offset, std::size_t bytes);

  HttpRequest& request_;
  std::size_t field_bytes_;
  std::shared_ptr<void> processor_;
  std::optional<ApiError> error_;
  std::string tail_;  ///< the last bytes seen: the closing boundary has to be there
  std::string boundary_;
};

}  // namespace magi
