// SPDX-License-Identifier: Apache-2.0
#include "serve/api.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "serve/api_error.h"
#include "serve/assets.h"
#include "serve/job_view.h"
#include "serve/json_log.h"
#include "serve/origin.h"
#include "serve/worker.h"

namespace magi {
namespace {

using Json = nlohmann::json;

constexpr const char* kCookie = "magi2_session";
constexpr const char* kBearer = "Bearer ";
// The page's own files and nothing else; images and players also from memory.
constexpr const char* kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' "
    "blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

Json model_object() {
  return {{"id", kModelName}, {"object", "model"}, {"created", 1767225600}, {"owned_by", "sand-ai"}};
}

HttpResponse cookie_response(const HttpRequest& request, const std::string& value, std::int64_t seconds) {
  HttpResponse response = HttpResponse::json(dump({{"authenticated", !value.empty()}}));
  // Behind a proxy that speaks TLS the page's origin tells so.
  const char* secure = request.header("origin").starts_with("https://") ? "; Secure" : "";
  response.headers.emplace_back(
      "Set-Cookie",
      fmt::format("{}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{}", kCookie, value, seconds, secure));
  return response;
}

}  // namespace

Api::Api(const ApiOptions& options, const GenerationDefaults& defaults, const KeyRing& keys, JobStore& store,
         EventHub& events, Worker& worker)
    : options_(options),
      defaults_(defaults),
      keys_(keys),
      sessions_(store.secret()),
      store_(store),
      events_(events),
      worker_(worker),
      queue_(store.queue()) {
  add_pages();
  add_sessions();
  add_videos();
}

void Api::add_pages() {
  for (const Asset& asset : assets())
    router_.add({"GET", std::string(asset.path), false, false, [&asset](HttpRequest&, const std::string&) {
                   return HttpResponse{200,
                                       {{"Content-Type", std::string(asset.content_type)},
                                        {"Cache-Control", "no-cache"},
                                        {"Content-Security-Policy", kPagePolicy}},
                                       std::string(asset.content)};
                 }});
  router_.add(
      {"GET", "/health", false, false, [this](HttpRequest&, const std::string&) { return health(); }});
  router_.add({"GET", "/metrics", true, false, [this](HttpRequest&, const std::string&) {
                 return HttpResponse{200,
                                     {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"},
                                      {"Cache-Control", "no-store"}},
                                     metrics_.text(store_.counts(), worker_.figures(), events_.listeners())};
               }});
  router_.add({"GET", "/v1/models", true, false, [](HttpRequest&, const std::string&) {
                 return HttpResponse::json(dump({{"object", "list"}, {"data", {model_object()}}}));
               }});
  router_.add({"GET", "/v1/models/{model}", true, false, [](HttpRequest&, const std::string& model) {
                 if (model != kModelName)
                   throw ApiError(404, "model_not_found", "there is no such model", "model");
                 return HttpResponse::json(dump(model_object()));
               }});
}

void Api::add_sessions() {
  router_.add({"GET", "/v1/session", false, false, [this](HttpRequest& request, const std::string&) {
                 const bool required = keys_.keys()->required();
                 const bool known = !required || owner_of(request).has_value();
                 return HttpResponse::json(dump({{"keys_required", required},
                                                 {"authenticated", known},
                                                 {"can_enhance", options_.limits.can_enhance}}));
               }});
  router_.add({"POST", "/v1/session", false, true,
               [this](HttpRequest& request, const std::string&) { return log_in(request); }});
  router_.add({"DELETE", "/v1/session", false, false,
               [](HttpRequest& request, const std::string&) { return cookie_response(request, "", 0); }});
}

void Api::admit(HttpRequest& request) {
  if (options_.behind_proxy) request.remote = forwarded_for(request);
  check_host(request, options_.host_names);
  check_origin(request);
  const Match match = router_.match(request.method, request.path);
  if (match.route->needs_key) {
    const auto owner = owner_of(request);
    if (!owner) throw ApiError(401, "invalid_api_key", "a key is needed: Authorization: Bearer …");
    request.owner = *owner;
  }
  const bool has_body =
      request.headers.contains("transfer-encoding") ||
      (!request.header("content-length").empty() && request.header("content-length") != "0");
  if (!has_body) return;
  // Bodies without a use (an empty object, say) do no harm; what they say is not read.
  if (!match.route->takes_body) return;
  if (!request.is_form && !request.header("content-type").starts_with("application/json"))
    throw ApiError(415, "unsupported_media_type", "expected application/json or multipart/form-data");
}

HttpResponse Api::answer(HttpRequest& request) {
  const Match match = router_.match(request.method, request.path);
  return match.route->handle(request, match.argument);
}

void Api::decorate(const HttpRequest& request, HttpResponse& response) {
  response.headers.emplace_back("X-Request-Id", request.id);
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("X-Frame-Options", "DENY");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  response.headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
}

void Api::finished(const Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  const std::string route = router_.pattern_of(request.method, request.path);
  metrics_.request(route, exchange.status, exchange.seconds);
  Json line{{"request", request.id},    {"remote", request.remote},  {"method", request.method},
            {"route", route},           {"status", exchange.status}, {"seconds", exchange.seconds},
            {"sent", exchange.complete}};
  if (!request.owner.empty()) line["key"] = keys_.keys()->name_of(request.owner);
  if (const auto match = request.path.find("video_"); match != std::string::npos && route != "-")
    line["video"] = request.path.substr(match, request.path.find('/', match) - match);
  json_log("http", line);
}

std::optional<std::string> Api::owner_of(const HttpRequest& request) {
  const std::shared_ptr<const Keys> keys = keys_.keys();
  if (!keys->required()) return "";
  if (const std::string given = request.header("authorization"); !given.empty())
    return given.starts_with(kBearer)
               ? owner_of_key(request, std::string_view(given).substr(std::strlen(kBearer)))
               : std::nullopt;
  const std::string cookie = cookie_value(request.header("cookie"), kCookie);
  const auto owner = sessions_.owner_of(cookie, unix_time());
  return owner && keys->knows(*owner) ? owner : std::nullopt;
}

std::optional<std::string> Api::owner_of_key(const HttpRequest& request, std::string_view key) {
  if (const int wait = logins_.take(request.remote); wait > 0)
    throw ApiError(429, "too_many_attempts", "too many wrong keys from this address").retry_after(wait);
  std::optional<std::string> owner = keys_.keys()->owner_of(key);
  if (owner) logins_.give_back(request.remote);
  return owner;
}

HttpResponse Api::log_in(const HttpRequest& request) {
  if (!keys_.keys()->required()) return HttpResponse::json(dump({{"authenticated", true}}));
  const Json body = Json::parse(request.body, nullptr, false);
  if (!body.is_object() || !body.contains("key") || !body["key"].is_string())
    bad_field("key", "expected a string");
  const auto owner = owner_of_key(request, body["key"].get<std::string>());
  if (!owner) throw ApiError(401, "invalid_api_key", "this key is not known here", "key");
  return cookie_response(request, sessions_.issue(*owner, unix_time()), Sessions::kSeconds);
}

HttpResponse Api::health() {
  const JobStore::Counts counts = store_.counts();
  const bool stopping = stopping_;
  return HttpResponse::json(
      dump(
          {{"status", stopping ? "stopping" : "ok"}, {"queued", counts.queued}, {"running", counts.running}}),
      stopping ? 503 : 200);
}

}  // namespace magi
