// SPDX-License-Identifier: Apache-2.0
// Who may ask what: keys, cookies, owners, headers; and whether the API's description says what is there.
#include <set>

#include "serve/assets.h"
#include "serve/server_testing.h"

namespace magi {
namespace {

class GuardTest : public ServerTest {};

TEST_F(GuardTest, KeysCookiesAndOwners) {
  options_.api_key_file = directory_.write("keys", "alice-0123456789 alice\nbob-0123456789ab bob\n");
  start();
  const Headers alice{{"Authorization", "Bearer alice-0123456789"}},
      bob{{"Authorization", "Bearer bob-0123456789ab"}};
  for (const Headers& wrong :
       {Headers{}, Headers{{"Authorization", "Bearer alice"}}, Headers{{"Authorization", "Basic x"}},
        Headers{{"Cookie", "magi2_session=x.9999999999.y"}}}) {
    const Reply reply = post_json(port(), "/v1/videos", small(), wrong);
    EXPECT_EQ(reply.status, 401);
    EXPECT_EQ(reply.json()["error"]["type"], "authentication_error");
    for (const char* path : {"/v1/videos", "/v1/models", "/metrics"})
      EXPECT_EQ(request(port(), "GET", path, "", wrong).status, 401) << path;
  }
  for (const char* path : {"/", "/health", "/openapi.json"})
    EXPECT_EQ(request(port(), "GET", path).status, 200) << path;

  const std::string id = created(small(), alice);
  EXPECT_EQ(wait_for(id, "", alice)["status"], "completed");
  for (const char* path : {"", "/content", "/events"})
    EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id + path, "", bob).status, 404) << path;
  EXPECT_EQ(request(port(), "POST", "/v1/videos/" + id + "/cancel", "", bob).status, 404);
  EXPECT_EQ(request(port(), "DELETE", "/v1/videos/" + id, "", bob).status, 404);
  EXPECT_EQ(request(port(), "GET", "/v1/videos", "", bob).json()["data"], Json::array());
  EXPECT_EQ(request(port(), "GET", "/v1/videos?after=" + id, "", bob).status, 400);

  EXPECT_EQ(request(port(), "GET", "/v1/session").json(),
            (Json{{"keys_required", true}, {"authenticated", false}, {"can_enhance", false}}));
  EXPECT_EQ(post_json(port(), "/v1/session", {{"key", "wrong"}}).status, 401);
  EXPECT_EQ(post_json(port(), "/v1/session", {{"key", 1}}).status, 400);
  const Reply session = post_json(port(), "/v1/session", {{"key", "alice-0123456789"}});
  EXPECT_EQ(session.status, 200);
  const std::string cookie = session.headers.at("set-cookie");
  for (const char* part : {"HttpOnly", "SameSite=Strict", "Path=/"})
    EXPECT_NE(cookie.find(part), std::string::npos);
  EXPECT_EQ(cookie.find("alice"), std::string::npos);
  const Headers browser{{"Cookie", "other=1; " + cookie.substr(0, cookie.find(';'))}};
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id, "", browser).status, 200);
  EXPECT_EQ(request(port(), "GET", "/v1/session", "", browser).json()["authenticated"], true);
  Headers forged = browser;
  forged.emplace_back("Origin", "http://evil.example");
  EXPECT_EQ(request(port(), "DELETE", "/v1/videos/" + id, "", forged).status, 403);
  restart();
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id, "", browser).status, 200)
      << "a session outlives the server";
  options_.api_key_file = directory_.write("keys", "bob-0123456789ab bob\n");
  restart();
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id, "", browser).status, 401) << "but not its key";
}

TEST_F(GuardTest, WrongKeysAreLimitedByAddress) {
  options_.api_key_file = directory_.write("keys", "alice-0123456789 alice\n");
  start();
  const Headers right{{"Authorization", "Bearer alice-0123456789"}}, wrong{{"Authorization", "Bearer guess"}};
  const std::string cookie =
      post_json(port(), "/v1/session", {{"key", "alice-0123456789"}}).headers.at("set-cookie");
  for (int i = 0; i < 3 * LoginLimit::kBurst; ++i) {  // neither right keys nor none at all count
    EXPECT_EQ(request(port(), "GET", "/v1/models", "", right).status, 200);
    EXPECT_EQ(request(port(), "GET", "/v1/models").status, 401);
  }
  for (int i = 0; i < LoginLimit::kBurst; ++i)
    EXPECT_EQ(i % 2 ? post_json(port(), "/v1/session", {{"key", "guess"}}).status
                    : request(port(), "GET", "/v1/models", "", wrong).status,
              401)
        << i;
  for (const Headers& headers : {wrong, right}) {  // a right guess is not told either
    const Reply limited = request(port(), "GET", "/v1/models", "", headers);
    EXPECT_EQ(limited.status, 429);
    EXPECT_EQ(limited.error_code(), "too_many_attempts");
    EXPECT_EQ(limited.json()["error"]["type"], "rate_limit_error");
    EXPECT_GT(std::stoi(limited.headers.at("retry-after")), 0);
  }
  EXPECT_EQ(post_json(port(), "/v1/session", {{"key", "alice-0123456789"}}).status, 429);
  EXPECT_EQ(request(port(), "GET", "/v1/models", "", right, "127.0.0.2").status, 200) << "from elsewhere";
  EXPECT_EQ(request(port(), "GET", "/v1/models", "", {{"Cookie", cookie.substr(0, cookie.find(';'))}}).status,
            200)
      << "who is signed in stays so";
  Headers claims = right;
  claims.emplace_back("X-Forwarded-For", "192.0.2.1");
  EXPECT_EQ(request(port(), "GET", "/v1/models", "", claims).status, 429) << "believed without a proxy";
  options_.api.behind_proxy = true;
  restart();
  Headers guess = wrong;
  guess.emplace_back("X-Forwarded-For", "192.0.2.1");
  for (int i = 0; i <= LoginLimit::kBurst; ++i) request(port(), "GET", "/v1/models", "", guess);
  EXPECT_EQ(request(port(), "GET", "/v1/models", "", claims).status, 429);
  claims.back().second = "192.0.2.1, 192.0.2.2";
  EXPECT_EQ(request(port(), "GET", "/v1/models", "", claims).status, 200);
}

TEST_F(GuardTest, KeysChangeWhileItRuns) {
  options_.api_key_file = directory_.write("keys", "alice-0123456789 alice\n");
  start();
  const auto status = [&](const char* key) {
    return request(port(), "GET", "/v1/models", "", {{"Authorization", std::string("Bearer ") + key}}).status;
  };
  directory_.write("keys", "bob-0123456789ab bob\n");
  server_->reload_keys();
  EXPECT_EQ(status("bob-0123456789ab"), 200);
  EXPECT_EQ(status("alice-0123456789"), 401);
  directory_.write("keys", "short\n");
  server_->reload_keys();
  EXPECT_EQ(status("bob-0123456789ab"), 200) << "a bad file changes nothing";
}

TEST_F(GuardTest, StrictHeadersAndModels) {
  start();
  const Reply page = request(port(), "GET", "/");
  EXPECT_EQ(page.status, 200);
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.headers.at("content-security-policy").find("unsafe"), std::string::npos);
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(request(port(), "GET", "/v1/models").json()["data"][0]["id"], "magi-2-preview");
  EXPECT_EQ(request(port(), "GET", "/v1/models/magi-2-preview").json()["object"], "model");
  EXPECT_EQ(request(port(), "GET", "/v1/models/sora-2").status, 404);
  EXPECT_EQ(request(port(), "GET", "/health").json()["status"], "ok");
  EXPECT_EQ(request(port(), "GET", "/health", "", {{"Host", "evil.example"}}).status, 421) << "two Hosts";
  const std::string metrics = request(port(), "GET", "/metrics").body;
  for (const char* line : {"magi2_jobs{status=\"queued\"} 0",
                           "magi2_http_requests_total{route=\"/v1/models\",status=\"200\"} 1"})
    EXPECT_NE(metrics.find(line), std::string::npos) << metrics;
}

TEST_F(GuardTest, TheDescriptionNamesEveryRoute) {
  start();
  const Json description = request(port(), "GET", "/openapi.json").json();
  std::set<std::string> described, routed;
  for (const auto& [path, methods] : description["paths"].items())
    for (const auto& [method, operation] : methods.items()) {
      if (method == "parameters") continue;
      std::string upper = method;
      std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
      described.insert(upper + " " + path);
    }
  std::set<std::string> page;  // parts of the page, which "/" stands for
  for (const Asset& asset : assets())
    if (asset.path != "/" && asset.path != "/openapi.json") page.insert("GET " + std::string(asset.path));
  for (const Route& route : server_->router().routes())
    if (!page.contains(route.method + " " + route.pattern)) routed.insert(route.method + " " + route.pattern);
  EXPECT_EQ(described, routed);

  const std::string id = created(small());
  const Json shown = wait_for(id);
  const Json& properties = description["components"]["schemas"]["Video"]["properties"];
  for (const auto& [name, value] : shown.items()) EXPECT_TRUE(properties.contains(name)) << name;
  for (const auto& [name, property] : properties.items()) EXPECT_TRUE(shown.contains(name)) << name;
  const Json& fields = description["paths"]["/v1/videos"]["post"]["requestBody"]["content"]
                                  ["application/json"]["schema"]["properties"];
  for (const auto& [name, field] : fields.items()) {
    const Reply reply = post_json(port(), "/v1/videos", small({{name, Json::array()}}));
    EXPECT_NE(reply.error_code(), "unknown_field") << name;
  }
}

TEST_F(GuardTest, RefusesToServeEverybody) {
  options_.host = "0.0.0.0";
  EXPECT_THROW(start(), Error);
  options_.host = "127.0.0.1";
  start();
  EXPECT_THROW(Server(root_, options_), Error) << "two servers on one directory";
}

}  // namespace
}  // namespace magi
