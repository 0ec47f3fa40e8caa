// SPDX-License-Identifier: Apache-2.0
// Requests that no well-meaning client sends: 4xx or a closed connection, never a crash, a leak or a 5xx.
#include <atomic>
#include <random>

#include "media/image_writer.h"
#include "serve/secret.h"
#include "serve/server_testing.h"

namespace magi {
namespace {

class HostileTest : public ServerTest {
 protected:
  HostileTest() {
    options_.worker.paused = true;
    options_.api.queue = 100'000;
    options_.http.header_time = std::chrono::seconds(1);
    options_.http.request_time = std::chrono::seconds(2);
    options_.http.stall_time = std::chrono::seconds(5);
    options_.http.body_bytes = 64 << 10;
    options_.http.form_bytes = 1 << 20;
    options_.http.field_bytes = 80 << 10;
    start();
  }

  static std::size_t open_files() {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
    return count;
  }
  Reply raw(const std::string& bytes, double seconds = 10) const {
    Connection connection(port());
    connection.send(bytes);
    return connection.receive(false, seconds);
  }
  std::string head(const std::string& first, const std::string& rest = "") const {
    return first + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + rest + "\r\n";
  }
  Reply form(const std::string& body, const std::string& type = "multipart/form-data; boundary=edge") const {
    return request(port(), "POST", "/v1/videos", body, {{"Content-Type", type}});
  }
  void expect_alive() const { EXPECT_EQ(request(port(), "GET", "/health").status, 200); }
};

bool refused(int status) {
  return status == 0 || (status >= 400 && status < 500) || status == 505;  // 505: another HTTP
}

TEST_F(HostileTest, RequestsThatAreNone) {
  for (const std::string& bytes :
       {std::string("\r\n\r\n\r\n"), std::string("GET\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8),
        std::string(100, '\0') + "\r\n\r\n", head("GET /" + std::string(100'000, 'a')),
        head("GET /health", "X: " + std::string(100'000, 'a') + "\r\n"),
        head("POST /v1/videos", "Content-Length: -5\r\n"),
        head("POST /v1/videos", "Content-Length: many\r\n"),
        head("POST /v1/videos", "Content-Length: 99999999999999999999999\r\n"),
        head("POST /v1/videos", "Content-Length: 9999999999\r\nContent-Type: application/json\r\n"),
        head("GET /health", "Host: other.example\r\n"), head("DELETE /health"), head("PUT /v1/videos"),
        head("TRACE /"), head("BREW /v1/videos"), head("GET http://evil.example/")})
    EXPECT_TRUE(refused(raw(bytes, 4).status)) << bytes.substr(0, 80);
  std::string many = "GET /health HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 5000; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  EXPECT_TRUE(refused(raw(many + "\r\n").status));
  expect_alive();
}

TEST_F(HostileTest, PathsThatClimb) {
  const std::filesystem::path secret = directory_.write("secret.mp4", "secret");
  for (const std::string path :
       {"/../secret.mp4", "/v1/videos/../../secret.mp4", "/v1/videos/..%2f..%2fsecret/content",
        "/%2e%2e/secret.mp4", "/v1/videos/video_00000000000000000000000000000000%00/content", "//etc/passwd",
        "/v1/videos/%2e%2e/content", "/v1/videos/..\\..\\secret/content", "/v1/videos/%c0%ae%c0%ae/content",
        "/v1/videos/%ff%fe/content", "/page/../x",
        "/v1/videos/"
        "video_../../../../../secret00000/content"}) {
    const Reply reply = request(port(), "GET", path);
    EXPECT_EQ(reply.status, 404) << path;
    EXPECT_EQ(reply.body.find("secret"), std::string::npos) << path;
  }
  expect_alive();
}

TEST_F(HostileTest, BodiesThatAreNoJson) {
  const Headers json{{"Content-Type", "application/json"}};
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("null"), std::string("\"x\""),
        std::string("{\"prompt\":\"\xff\xfe\"}"), std::string("{\"prompt\":\"\xc3\"}"),
        std::string("{\"prompt\":\"\\ud800\"}"), std::string("{\"prompt\":1e999}"),
        std::string("{\"\xff\":1}"), std::string("\0{}", 3), std::string(20'000, '['),
        "{\"prompt\":" + std::string(20'000, '[') + std::string(20'000, ']') + "}",
        std::string("{\"prompt\":\"a\",\"prompt\":{}}"), std::string("prompt=fox"),
        std::string("{\"prompt\":\"a\",\"seconds\":1e-300}"),
        std::string("{\"prompt\":\"a\",\"seed\":99999999999999999999}")}) {
    const Reply reply = request(port(), "POST", "/v1/videos", body, json);
    EXPECT_EQ(reply.status, 400) << body.substr(0, 80) << reply.body;
    EXPECT_TRUE(reply.json().is_object()) << reply.body;
  }
  std::string wide = "{\"prompt\":\"a\",\"input_reference\":{\"k\":{}";
  for (int i = 0; i < 2000; ++i) wide += fmt::format(",\"{}\":{{}}", i);
  EXPECT_NE(request(port(), "POST", "/v1/videos", wide + "}}", json).body.find("more than 1000 values"),
            std::string::npos);
  EXPECT_EQ(request(port(), "POST", "/v1/videos", "prompt=fox",
                    {{"Content-Type", "application/x-www-form-urlencoded"}})
                .status,
            415);
  EXPECT_EQ(request(port(), "POST", "/v1/videos", "{}").status, 415);
  EXPECT_EQ(request(port(), "POST", "/v1/videos", std::string(100 << 10, ' '), json).status, 413);
  expect_alive();
}

TEST_F(HostileTest, FormsThatAreNone) {
  const std::string good = form_body({{"prompt", "A fox.", ""}, {"size", "64x48", ""}});
  EXPECT_EQ(form(good).status, 200);
  for (std::size_t cut = 1; cut < good.size(); cut += 7)
    EXPECT_EQ(form(good.substr(0, cut)).status, 400) << cut;
  EXPECT_EQ(form(good, "multipart/form-data").status, 400);
  EXPECT_EQ(form(good, "multipart/form-data; boundary=").status, 400);
  EXPECT_EQ(form(good, "multipart/form-data; boundary=\"edge").status, 400);
  EXPECT_EQ(form(good, "multipart/form-data; boundary=other").status, 400);
  EXPECT_EQ(form("--edge--\r\n").status, 400);
  EXPECT_EQ(form(form_body({{"prompt", "a", ""}, {"prompt", "b", ""}})).status, 400);
  EXPECT_EQ(form(form_body({{"prompt", "a", "file.txt"}})).error_param(), "prompt");
  EXPECT_EQ(form(form_body({{"prompt", "\xff\xfe", ""}})).status, 400);
  EXPECT_EQ(form(form_body({{"prompt", std::string(90 << 10, 'a'), ""}})).status, 413);
  EXPECT_EQ(form(form_body({{"prompt", "a", ""}, {"../../x", "b", "../../x"}})).status, 400);
  EXPECT_EQ(form(form_body({{"prompt", "a", ""}, {"input_reference", "no picture", "a.png"}})).error_param(),
            "input_reference");
  EXPECT_EQ(form(form_body({{"prompt", "a", ""}, {"input_reference", "", "a.png"}})).status, 400);
  std::vector<FormPart> many;
  for (int i = 0; i < 100; ++i) many.push_back({"field" + std::to_string(i), "x", ""});
  EXPECT_EQ(form(form_body(many)).status, 400);
  std::string header =
      "--edge\r\nContent-Disposition: form-data; name=\"" + std::string(60'000, 'n') + "\"\r\n\r\nx\r\n";
  EXPECT_TRUE(refused(form(header + "--edge--\r\n").status));
  EXPECT_EQ(form(std::string(2 << 20, 'x')).status, 413);
  // A picture that says it is enormous.
  std::string png = bytes_of(model_->path() / "root" / "example.png");
  png.replace(16, 8, std::string("\x7f\xff\xff\xff\x7f\xff\xff\xff"));
  EXPECT_EQ(form(form_body({{"prompt", "a", ""}, {"input_reference", png, "a.png"}})).error_param(),
            "input_reference");
  EXPECT_EQ(files(), std::vector<std::string>());
  expect_alive();
}

TEST_F(HostileTest, PicturesThatAreTraps) {
  const std::filesystem::path data = std::filesystem::path(MAGI2_SOURCE_DIR) / "tests/media/data";
  const auto with_picture = [&](const std::string& picture) {
    return form(form_body({{"prompt", "a", ""}, {"input_reference", picture, "a.png"}}));
  };
  const std::string jpeg = bytes_of(data / "ycc420.jpg");
  for (const std::string& picture :
       {bytes_of(data / "bomb.png"), bytes_of(data / "picture.gif"), jpeg.substr(0, jpeg.size() / 2),
        jpeg.substr(0, jpeg.size() - 2), std::string("<svg xmlns=\"http://www.w3.org/2000/svg\"/>")}) {
    const Reply reply = with_picture(picture);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(reply.error_param(), "input_reference");
  }
  EXPECT_EQ(files(), std::vector<std::string>());
  for (const char* good : {"orientation6.jpg", "animated.webp", "palette_alpha.png"})
    EXPECT_EQ(with_picture(bytes_of(data / good)).status, 200) << good;
  expect_alive();
}

/// While large pictures are decoded, who asks for something else does not wait for them.
TEST_F(HostileTest, LargePicturesKeepNobodyWaiting) {
  server_.reset();
  options_.http.form_bytes = 24 << 20;
  options_.http.request_time = std::chrono::seconds(60);
  start();
  const std::vector<std::uint8_t> png = encode_png(Tensor::zeros(DType::u8, {3000, 3000, 3}));
  const std::string body =
      form_body({{"prompt", "a", ""}, {"input_reference", {png.begin(), png.end()}, "a.png"}});
  using Seconds = std::chrono::duration<double>;
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> uploading{4};
  std::vector<std::thread> uploaders;
  for (int i = 0; i < 4; ++i)
    uploaders.emplace_back([&] {
      EXPECT_EQ(form(body).status, 200);
      --uploading;
    });
  std::vector<double> answers;
  while (uploading > 0) {
    const auto asked = std::chrono::steady_clock::now();
    EXPECT_EQ(request(port(), "GET", "/health").status, 200);
    answers.push_back(Seconds(std::chrono::steady_clock::now() - asked).count());
  }
  const double all = Seconds(std::chrono::steady_clock::now() - start).count();
  for (std::thread& uploader : uploaders) uploader.join();
  std::ranges::sort(answers);
  EXPECT_LT(answers[answers.size() * 9 / 10], all / 20) << answers.size() << " answers in " << all << " s";
}

TEST_F(HostileTest, OddFormsOfGoodRequests) {
  const std::string id = created(small()), path = "/v1/videos/" + id;
  EXPECT_EQ(request(port(), "GET", "/v1/videos/%76ideo_" + id.substr(6)).json()["id"], id) << "%76 is v";
  EXPECT_EQ(request(port(), "GET", "/v1/videos/%20" + id).status, 404);
  EXPECT_EQ(request(port(), "GET", path + "%00").status, 404);
  EXPECT_EQ(request(port(), "GET", path + "/").status, 404);
  EXPECT_EQ(request(port(), "GET", path + "?limit=1&limit=2&&=&%").json()["id"], id);
  for (const char* p : {"", "/content", "/events"}) {
    const Reply head = request(port(), "HEAD", path + p);
    EXPECT_EQ(head.status, std::string_view(p) == "/content" ? 409 : 200) << p;
    EXPECT_EQ(head.body, "");
  }
  for (const char* number :
       {"nan", "inf", "-inf", "1e999", "0x10", "1e", "+1", " 1", "1 ", "1,5", "99999999999"})
    EXPECT_EQ(post_json(port(), "/v1/videos", small({{"seconds", number}})).error_param(), "seconds")
        << number;
  for (const char* method : {"PATCH", "OPTIONS", "HEAD"})
    EXPECT_GE(request(port(), method, "/v1/session/x").status, 400) << method;
  EXPECT_EQ(request(port(), "DELETE", path).status, 200);
  EXPECT_EQ(request(port(), "DELETE", path).status, 404) << "twice";
  EXPECT_EQ(request(port(), "POST", path + "/cancel").status, 404);
  expect_alive();
}

TEST_F(HostileTest, GuessedKeysFromManyConnections) {
  server_.reset();
  options_.api_key_file = directory_.write("keys", "alice-0123456789 alice\n");
  start();
  std::atomic<int> refused{0}, limited{0}, other{0};
  std::vector<std::thread> guessers;
  for (int t = 0; t < 8; ++t)
    guessers.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const std::string guess = fmt::format("Bearer guess-{}-{}", t, i);
        const int status = request(port(), "GET", "/v1/videos", "", {{"Authorization", guess}}).status;
        ++(status == 401 ? refused : status == 429 ? limited : other);
      }
    });
  for (std::thread& guesser : guessers) guesser.join();
  EXPECT_EQ(other, 0);
  EXPECT_GE(refused, LoginLimit::kBurst);
  EXPECT_LE(refused, LoginLimit::kBurst + 10) << "one more in 6 s";
  EXPECT_EQ(
      request(port(), "GET", "/v1/videos", "", {{"Authorization", "Bearer alice-0123456789"}}, "127.0.0.2")
          .status,
      200);
}

TEST_F(HostileTest, ChunksAndPipelines) {
  const std::string chunked = "Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n";
  const std::string post = head("POST /v1/videos", chunked);
  EXPECT_EQ(raw(post + "10\r\n{\"prompt\":\"fox\"}\r\n0\r\n\r\n").status, 200);
  EXPECT_TRUE(refused(raw(post + "zz\r\n{}\r\n0\r\n\r\n").status));
  EXPECT_TRUE(refused(raw(post + "ffffffffffffffffff\r\n{}").status));
  EXPECT_TRUE(refused(raw(post + "2\r\n{}{}{}\r\n0\r\n\r\n").status));
  const std::string big(32 << 10, ' ');
  std::string stream = post;
  for (int i = 0; i < 100; ++i) stream += "8000\r\n" + big + "\r\n";
  EXPECT_TRUE(refused(raw(stream).status));

  Connection connection(port());
  std::string three;
  for (int i = 0; i < 3; ++i) three += head("GET /health") + head("GET /nothing");
  connection.send(three);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(connection.receive().status, 200);
    EXPECT_EQ(connection.receive().status, 404);
  }
  // A body that is refused does not become the next request.
  Connection smuggler(port());
  smuggler.send(head("POST /v1/nothing", "Content-Length: 44\r\n") +
                "GET /v1/videos HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(smuggler.receive().status, 404);
  EXPECT_EQ(smuggler.receive(false, 1).status, 0);
  expect_alive();
}

TEST_F(HostileTest, SlowClientsAreCutOff) {
  const auto start = std::chrono::steady_clock::now();
  Connection headers(port()), body(port()), silent(port());
  headers.send("GET /health HTTP/1.1\r\nHost: lo");
  body.send(head("POST /v1/videos", "Content-Type: application/json\r\nContent-Length: 1000\r\n") + "{");
  EXPECT_EQ(headers.receive().status, 408);
  for (int i = 0; i < 40 && body.send(" "); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const int status = body.receive(false, 2).status;  // its last bytes may have reset the connection
  EXPECT_TRUE(status == 408 || status == 0) << status;
  EXPECT_EQ(silent.receive().status, 408);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  expect_alive();
}

TEST_F(HostileTest, MutationsOfGoodRequests) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::string json =
      R"({"prompt":"A fox.","size":"64x48","seconds":"0.4","seed":7,"cfg_video":2.5,"audio":true})";
  const std::string form =
      form_body({{"prompt", "A fox.", ""}, {"size", "64x48", ""}, {"input_reference", "PNG", "a.png"}});
  const std::vector<std::string> seeds{
      head("POST /v1/videos",
           "Content-Type: application/json\r\nContent-Length: " + std::to_string(json.size()) + "\r\n") +
          json,
      head("POST /v1/videos", "Content-Type: multipart/form-data; boundary=edge\r\nContent-Length: " +
                                  std::to_string(form.size()) + "\r\n") +
          form,
      head("GET /v1/videos?limit=3&order=asc"),
      head("GET /v1/videos/video_0123456789abcdef0123456789abcdef/content", "Range: bytes=0-1\r\n"),
      head("POST /v1/session", "Content-Type: application/json\r\nContent-Length: 9\r\n") + "{\"key\":1}"};
  for (int i = 0; i < 300; ++i) {
    std::string bytes = seeds[random() % seeds.size()];
    for (unsigned n = 1 + random() % 4; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 32));
          break;
        default:
          bytes.insert(at, 1 + random() % 3, "\r\n\0\xff%\"{}"[random() % 8]);
      }
      if (bytes.empty()) bytes = " ";
    }
    Connection connection(port());
    connection.send(bytes);
    const Reply reply = connection.receive(false, 0.05);  // many wait for a body that does not come
    EXPECT_TRUE(reply.status < 500 || reply.status == 505) << reply.status << " for " << bytes;
  }
  expect_alive();
}

TEST_F(HostileTest, NothingIsLeftOpen) {
  expect_alive();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::size_t before = open_files();
  const std::string id = created(small());
  for (int i = 0; i < 50; ++i) {
    Connection events(port()), half(port());
    events.send(head("GET /v1/videos/" + id + "/events"));
    half.send(head("POST /v1/videos", "Content-Length: 10\r\nContent-Type: application/json\r\n"));
    EXPECT_EQ(events.read_until("event: status", 5).substr(0, 12), "HTTP/1.1 200");
  }
  request(port(), "DELETE", "/v1/videos/" + id);  // ends the streams, whose clients are gone
  for (int i = 0; i < 100 && open_files() > before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LE(open_files(), before);
}

}  // namespace
}  // namespace magi
