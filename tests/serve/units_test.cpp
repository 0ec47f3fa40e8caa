// SPDX-License-Identifier: Apache-2.0
// What needs no server: keys, sessions, hosts and origins, ranges, routes, secrets.
#include <gtest/gtest.h>

#include "serve/api_error.h"
#include "serve/events.h"
#include "serve/job.h"
#include "serve/key_ring.h"
#include "serve/keys.h"
#include "serve/login_limit.h"
#include "serve/origin.h"
#include "serve/ranges.h"
#include "serve/router.h"
#include "serve/secret.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace magi {
namespace {

/// The status that `work` ends a request with; 0: it does not.
template <typename Work>
int refusal(Work work) {
  try {
    work();
  } catch (const ApiError& error) {
    return error.status();
  }
  return 0;
}

TEST(Keys, OfAFile) {
  const TempDir directory;
  const Keys keys(
      directory.write("keys", "# two\n0123456789abcdef alice\n\n  fedcba9876543210   # no name\n"));
  EXPECT_TRUE(keys.required());
  const auto alice = keys.owner_of("0123456789abcdef"), other = keys.owner_of("fedcba9876543210");
  ASSERT_TRUE(alice && other);
  EXPECT_NE(*alice, *other);
  EXPECT_EQ(keys.name_of(*alice), "alice");
  EXPECT_EQ(keys.name_of(*other), other->substr(0, 8));
  EXPECT_TRUE(keys.knows(*alice));
  for (const char* wrong : {"", "0123456789abcde", "0123456789abcdef ", "0123456789abcdeF", "alice"})
    EXPECT_FALSE(keys.owner_of(wrong)) << wrong;
  EXPECT_FALSE(keys.knows("0123456789abcdef"));
  EXPECT_FALSE(keys.knows(""));
}

TEST(Keys, BadFilesAreRefusedWithoutShowingAKey) {
  const TempDir directory;
  expect_error([&] { Keys(directory / "missing"); }, "cannot be read");
  expect_error([&] { Keys(directory.write("empty", "# none\n")); }, "no key");
  for (const char* content : {"\nshort\n", "\n0123456789abcdef two names\n"}) {
    try {
      const Keys keys(directory.write("keys", content));
      ADD_FAILURE() << content;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("keys:2: "), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("short"), std::string::npos);
      EXPECT_EQ(std::string(error.what()).find("0123456789abcdef"), std::string::npos);
    }
  }
}

TEST(KeyRing, FollowsItsFileAndKeepsTheOldKeysOfABadOne) {
  const TempDir directory;
  const std::filesystem::path file = directory.write("keys", "0123456789abcdef old\n");
  KeyRing ring(file);
  const auto before = ring.keys();
  const auto knows = [&](const char* key) { return ring.keys()->owner_of(key).has_value(); };
  ring.follow();
  EXPECT_EQ(ring.keys(), before) << "the same file is not read again";
  directory.write("keys", "# nobody any more\n");
  ring.follow();
  EXPECT_TRUE(knows("0123456789abcdef")) << "a file without a key";
  std::filesystem::remove(file);
  ring.reload();
  EXPECT_TRUE(knows("0123456789abcdef")) << "no file";
  directory.write("keys", "fedcba9876543210 new\n");
  ring.follow();
  EXPECT_TRUE(knows("fedcba9876543210"));
  EXPECT_FALSE(knows("0123456789abcdef"));
  EXPECT_TRUE(before->owner_of("0123456789abcdef")) << "who holds the old ones goes on with them";
  EXPECT_FALSE(KeyRing("").keys()->required());
  expect_error([&] { KeyRing(directory / "missing"); }, "cannot be read");
}

TEST(LoginLimit, SomeAtOnceThenSlowly) {
  LoginLimit limit;
  const LoginLimit::Clock::time_point start{std::chrono::hours(1)};
  const auto refill = LoginLimit::kRefill;
  for (int i = 0; i < LoginLimit::kBurst; ++i) EXPECT_EQ(limit.take("192.0.2.1", start), 0);
  EXPECT_EQ(limit.take("192.0.2.1", start), refill.count());
  EXPECT_EQ(limit.take("192.0.2.2", start), 0) << "somebody else";
  EXPECT_EQ(limit.take("::ffff:192.0.2.1", start), refill.count()) << "the same in another notation";
  EXPECT_EQ(limit.take("192.0.2.1", start + refill - std::chrono::seconds(1)), 1);
  EXPECT_EQ(limit.take("192.0.2.1", start + refill), 0);
  EXPECT_GT(limit.take("192.0.2.1", start + refill), 0);
  limit.give_back("192.0.2.1");
  EXPECT_EQ(limit.take("192.0.2.1", start + refill), 0);
  for (int i = 0; i < LoginLimit::kBurst; ++i) EXPECT_EQ(limit.take("192.0.2.1", start + 100 * refill), 0);
  EXPECT_GT(limit.take("192.0.2.1", start + 100 * refill), 0) << "no more than a burst is saved up";

  for (int i = 0; i < LoginLimit::kBurst; ++i) limit.take("2001:db8::" + std::to_string(i + 1), start);
  EXPECT_GT(limit.take("2001:db8::ffff", start), 0) << "one /64 is one subscriber";
  EXPECT_EQ(limit.take("2001:db8:0:1::1", start), 0);
  // A crowd of addresses takes no more memory, and locks nobody out.
  for (int i = 0; i < 50'000; ++i)
    limit.take(fmt::format("10.{}.{}.{}", i >> 16, (i >> 8) & 255, i & 255), start + refill);
  EXPECT_EQ(limit.take("198.51.100.1", start + refill), 0);
  EXPECT_LT(sizeof(LoginLimit), 64U << 10);
}

TEST(EventStream, AStatusIsNewerThanTheProgressBeforeIt) {
  EventStream stream;
  const auto put = [&](EventKind kind, const char* text) {
    stream.put(kind, std::make_shared<const std::string>(text));
  };
  put(EventKind::progress, "a waiting job's place");
  put(EventKind::status, "it runs;");
  EXPECT_EQ(stream.next(), "it runs;");
  put(EventKind::progress, "first");
  put(EventKind::progress, "second");
  EXPECT_EQ(stream.next(), "second");
  EXPECT_EQ(stream.next(), "");
}

TEST(Sessions, HoldForAWhileAndCannotBeMadeUp) {
  const Sessions sessions("secret");
  const std::string cookie = sessions.issue("owner", 1000);
  EXPECT_EQ(sessions.owner_of(cookie, 1000), "owner");
  EXPECT_EQ(sessions.owner_of(cookie, 1000 + Sessions::kSeconds - 1), "owner");
  EXPECT_FALSE(sessions.owner_of(cookie, 1000 + Sessions::kSeconds));
  EXPECT_FALSE(Sessions("other").owner_of(cookie, 1000));
  for (std::size_t i = 0; i < cookie.size(); ++i) {
    std::string changed = cookie;
    changed[i] ^= 1;
    EXPECT_FALSE(sessions.owner_of(changed, 1000)) << changed;
  }
  for (const char* wrong : {"", ".", "..", "owner", "owner.9999999999.", "owner.9999999999"})
    EXPECT_FALSE(sessions.owner_of(wrong, 1000)) << wrong;
}

TEST(Cookies, ValueByName) {
  EXPECT_EQ(cookie_value("a=1; b=2;c=3", "b"), "2");
  EXPECT_EQ(cookie_value("a=1; b=2;c=3", "c"), "3");
  EXPECT_EQ(cookie_value("ab=1", "b"), "");
  EXPECT_EQ(cookie_value("b", "b"), "");
  EXPECT_EQ(cookie_value("", "b"), "");
  EXPECT_EQ(cookie_value(";;; b=;", "b"), "");
}

TEST(Origin, HostsThatMayBeAnotherSitesNames) {
  const auto status = [](const std::string& host) {
    HttpRequest request;
    request.headers["host"] = host;
    return refusal([&] { check_host(request, {"clips.example"}); });
  };
  for (const char* host :
       {"127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]:8080", "192.0.2.7", "clips.example:80"})
    EXPECT_EQ(status(host), 0) << host;
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::1",
                           "[", "[::1]x", "127.0.0.1:80, evil.example", "localhost:evil.example"})
    EXPECT_EQ(status(host), 421) << host;
}

TEST(Origin, ChangesComeFromTheOwnPage) {
  const auto status = [](const std::string& method, const std::string& origin, const std::string& site) {
    HttpRequest request;
    request.method = method;
    request.headers = {{"host", "localhost:8080"}};
    if (!origin.empty()) request.headers["origin"] = origin;
    if (!site.empty()) request.headers["sec-fetch-site"] = site;
    return refusal([&] { check_origin(request); });
  };
  EXPECT_EQ(status("POST", "", ""), 0);
  EXPECT_EQ(status("POST", "http://localhost:8080", "same-origin"), 0);
  EXPECT_EQ(status("POST", "https://localhost:8080", ""), 0);
  EXPECT_EQ(status("GET", "http://evil.example", "cross-site"), 0);
  EXPECT_EQ(status("POST", "http://evil.example", ""), 403);
  EXPECT_EQ(status("POST", "http://localhost:9090", ""), 403);
  EXPECT_EQ(status("POST", "null", ""), 403);
  EXPECT_EQ(status("DELETE", "", "cross-site"), 403);
  EXPECT_EQ(status("POST", "", "same-site"), 403);
}

TEST(Origin, AddressesBehindAProxy) {
  const auto address = [](const std::string& header) {
    HttpRequest request;
    request.remote = "127.0.0.1";
    request.headers["x-forwarded-for"] = header;
    return forwarded_for(request);
  };
  EXPECT_EQ(address("192.0.2.7"), "192.0.2.7");
  EXPECT_EQ(address("10.0.0.1, 2001:db8::1"), "2001:db8::1") << "what stands before it was the client's word";
  EXPECT_EQ(address("10.0.0.1,192.0.2.7"), "192.0.2.7");
  for (const char* none : {"", "unknown", "192.0.2.7:80", "192.0.2.7,", "<script>"})
    EXPECT_EQ(address(none), "127.0.0.1") << none;
}

TEST(Ranges, AsTheRfcHasThem) {
  const auto range = [](const std::string& header, std::int64_t size = 100) {
    const auto r = parse_range(header, size);
    return r ? fmt::format("{}-{}", r->first, r->last) : "all";
  };
  EXPECT_EQ(range("bytes=0-0"), "0-0");
  EXPECT_EQ(range("bytes=10-"), "10-99");
  EXPECT_EQ(range("bytes=10-1000"), "10-99");
  EXPECT_EQ(range("bytes=-7"), "93-99");
  EXPECT_EQ(range("bytes=-700"), "0-99");
  EXPECT_EQ(range("bytes= 5-6 "), "5-6");
  EXPECT_EQ(range(""), "all");
  EXPECT_EQ(range("items=0-1"), "all");
  EXPECT_EQ(range("bytes=0-1,3-4"), "all");
  for (const char* bad :
       {"bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=100-", "bytes=-0", "bytes=--1", "bytes=1",
        "bytes=99999999999999999999-", "bytes=0-99999999999999999999", "bytes=+1-2", "bytes=0x1-2"})
    EXPECT_EQ(refusal([&] { range(bad); }), 416) << bad;
  for (const char* bad : {"bytes=0-", "bytes=-1", "bytes=0-0"})
    EXPECT_EQ(refusal([&] { range(bad, 0); }), 416) << bad;
}

TEST(Router, PathsAndMethods) {
  Router router;
  for (const char* pattern : {"/v1/videos", "/v1/videos/{id}", "/v1/videos/{id}/cancel"})
    router.add({"GET", pattern, true, false, {}});
  EXPECT_EQ(router.match("GET", "/v1/videos").route->pattern, "/v1/videos");
  EXPECT_EQ(router.match("GET", "/v1/videos/a b").argument, "a b");
  EXPECT_EQ(router.match("GET", "/v1/videos/x/cancel").argument, "x");
  EXPECT_EQ(refusal([&] { router.match("POST", "/v1/videos"); }), 405);
  for (const char* path :
       {"", "/", "/v1", "/v1/videos/", "/v1/videos//cancel", "/v1/videos/a/b/cancel", "/v1/videos/../x"})
    EXPECT_EQ(refusal([&] { router.match("GET", path); }), 404) << path;
  EXPECT_EQ(router.pattern_of("GET", "/made/up"), "-");
}

TEST(Secret, Encodings) {
  EXPECT_EQ(to_base64("fox"), "Zm94");
  EXPECT_EQ(to_base64("fo"), "Zm8=");
  EXPECT_EQ(from_base64("Zm8="), "fo");
  EXPECT_EQ(from_base64(""), "");
  for (const char* bad : {"Zm8", "Zm8*", "====", "Zm=8"}) {
    try {
      EXPECT_LE(from_base64(bad).size(), 3U);  // the decoder is lenient about padding, never beyond its size
    } catch (const Error&) {
    }
  }
  EXPECT_EQ(to_hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_TRUE(equal_secrets("a", "a"));
  EXPECT_FALSE(equal_secrets("a", "ab"));
}

TEST(JobIds, OnlyTheirOwnForm) {
  const std::string id = new_job_id();
  EXPECT_TRUE(is_job_id(id)) << id;
  EXPECT_NE(id, new_job_id());
  for (std::string bad :
       {std::string(), std::string("video_"), id + "0", id.substr(0, 37), "Video_" + id.substr(6),
        id.substr(0, 37) + "G", id.substr(0, 37) + "/", std::string("../") + id.substr(3)})
    EXPECT_FALSE(is_job_id(bad)) << bad;
}

}  // namespace
}  // namespace magi
