// SPDX-License-Identifier: Apache-2.0
// One POST of a JSON document over HTTP or HTTPS, bounded in time and size. The only code that uses the
// network.
#pragma once

#include <cstddef>
#include <string>

#include "core/progress.h"

namespace magi {

/// What may succeed when tried again: no connection, a closed one, too slow, too much, too busy.
class RetryableError : public Error {
 public:
  explicit RetryableError(const std::string& message, double wait_s = 0) : Error(message), wait_s_(wait_s) {}
  /// What the server asks to wait first; 0: it does not say.
  double wait_s() const { return wait_s_; }

 private:
  double wait_s_;
};

struct HttpPost {
  std::string url;
  std::string bearer;  ///< sent as "Authorization: Bearer …"; empty: not sent
  std::string body;
  double timeout_s = 0;             ///< for the whole exchange
  std::size_t max_reply_bytes = 0;  ///< a longer reply ends the exchange
};

struct HttpReply {
  long status = 0;
  std::string body;
  double retry_after_s = 0;  ///< what the server asks to wait; 0: it does not say
};

/// The URL without trailing slashes. Throws Error unless it is http:// or https:// with a host and without
/// user name, password, query and fragment.
std::string checked_base_url(const std::string& url);
/// Whether what is sent to `url` can be read on its way: http to another machine.
bool is_exposed(const std::string& url);

/// Any status is a reply; redirects are not followed, proxies not used, certificates verified. Throws
/// RetryableError, Error where another attempt is useless, and Cancelled within a fraction of a second of
/// progress.cancel(). The messages leave the URL to the caller.
HttpReply http_post(const HttpPost& post, const Progress& progress);

}  // namespace magi
