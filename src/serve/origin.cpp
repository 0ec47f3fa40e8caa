// SPDX-License-Identifier: Apache-2.0
#include "serve/origin.h"

#include <arpa/inet.h>

#include <algorithm>

#include "serve/api_error.h"

namespace magi {
namespace {

/// "example.org:80" → "example.org"; "[::1]:80" → "::1"; "" for anything else.
std::string without_port(const std::string& host) {
  const bool bracket = host.starts_with('[');
  const std::size_t end = bracket ? host.find(']') : std::min(host.find(':'), host.size());
  if (end == std::string::npos) return "";
  const std::string port = host.substr(end + bracket);
  const bool good =
      port.empty() || (port[0] == ':' && port.find_first_not_of("0123456789", 1) == std::string::npos);
  return good ? host.substr(bracket, end - bracket) : "";
}

bool is_address(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

void check_host(const HttpRequest& request, const std::vector<std::string>& names) {
  std::string host = without_port(request.header("host"));
  std::ranges::transform(host, host.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (is_address(host) || host == "localhost" || std::ranges::find(names, host) != names.end()) return;
  throw ApiError(421, "unknown_host", "this server does not answer under that name; --allow-host adds one");
}

std::string forwarded_for(const HttpRequest& request) {
  std::string address = request.header("x-forwarded-for");
  address.erase(0, address.find_last_of(", ") + 1);  // npos + 1 is 0
  return is_address(address) ? address : request.remote;
}

void check_origin(const HttpRequest& request) {
  if (request.method == "GET") return;
  const std::string site = request.header("sec-fetch-site");
  const std::string origin = request.header("origin");
  const std::size_t scheme = origin.find("://");
  const bool own =
      origin.empty() || (scheme != std::string::npos && origin.substr(scheme + 3) == request.header("host"));
  if (own && (site.empty() || site == "same-origin" || site == "none")) return;
  throw ApiError(403, "foreign_origin", "requests from other sites' pages are refused");
}

}  // namespace magi
