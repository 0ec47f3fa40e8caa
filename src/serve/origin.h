// SPDX-License-Identifier: Apache-2.0
// What browsers can be made to send: requests under a foreign name (DNS rebinding) or from a foreign page.
#pragma once

#include <string>
#include <vector>

#include "serve/http.h"

namespace magi {

/// Throws ApiError 421 unless the Host header is an IP address, localhost, or one of `names` (without port):
/// another name may be an attacker's that resolves to this machine.
void check_host(const HttpRequest& request, const std::vector<std::string>& names);

/// The client's address behind a proxy: the last one in X-Forwarded-For, which the proxy itself has seen; the
/// proxy's where there is none.
std::string forwarded_for(const HttpRequest& request);

/// Throws ApiError 403 when a request that changes something comes from another site's page.
void check_origin(const HttpRequest& request);

}  // namespace magi
