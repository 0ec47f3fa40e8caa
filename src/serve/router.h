// SPDX-License-Identifier: Apache-2.0
// Which handler a method and a path lead to.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "serve/http.h"

namespace magi {

struct Route {
  std::string method;
  std::string pattern;  ///< "/v1/videos/{id}/cancel"
  bool needs_key = true;
  bool takes_body = false;  ///< others are refused one
  std::function<HttpResponse(HttpRequest& request, const std::string& argument)> handle;
};

struct Match {
  const Route* route = nullptr;
  std::string argument;  ///< what stands for the pattern's {…}
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }
  /// Throws ApiError 404, or 405 where another method would do.
  Match match(const std::string& method, const std::string& path) const;
  /// The pattern for logs and figures; "-" for none: paths that clients make up are not kept.
  std::string pattern_of(const std::string& method, const std::string& path) const;

 private:
  std::vector<Route> routes_;
};

}  // namespace magi
