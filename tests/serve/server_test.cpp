// SPDX-License-Identifier: Apache-2.0
// The API as a client meets it, on a tiny model.
#include "run/enhance_testing.h"
#include "run/generate.h"
#include "serve/secret.h"
#include "serve/server_testing.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

class ApiTest : public ServerTest {};

TEST_F(ApiTest, AClipFromPromptToBytes) {
  start();
  const Reply reply =
      post_json(port(), "/v1/videos", small({{"seed", 7}, {"cfg_video", 2.5}, {"model", "magi-2-preview"}}));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  EXPECT_EQ(reply.headers.at("x-request-id").size(), 16U);
  const Json queued = reply.json();
  EXPECT_EQ(queued["object"], "video");
  EXPECT_EQ(queued["model"], "magi-2-preview");
  EXPECT_EQ(queued["size"], "64x48");
  EXPECT_EQ(queued["seconds"], "0.4");
  EXPECT_EQ(queued["seed"], 7);
  const std::string id = queued["id"];
  const Json done = wait_for(id);
  EXPECT_EQ(done["status"], "completed") << done;
  EXPECT_EQ(done["progress"], 100);
  EXPECT_GE(done["completed_at"], done["started_at"]);
  EXPECT_EQ(done["error"], Json());

  const Reply clip = request(port(), "GET", "/v1/videos/" + id + "/content");
  EXPECT_EQ(clip.status, 200);
  EXPECT_EQ(clip.headers.at("content-type"), "video/mp4");
  Progress progress;
  const Request same =
      plan_video(R"({"prompt":"A fox.","size":"64x48","seconds":0.4,"num_inference_steps":2,)"
                 R"("seed":7,"cfg_video":2.5})",
                 root_.defaults(), {}, {})
          .request;
  generate(root_, {{same, directory_ / "same.mp4", {}, {}, {}}}, progress);
  EXPECT_EQ(clip.body, bytes_of(directory_ / "same.mp4")) << "not what the command line makes";
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id + "/content?variant=thumbnail").body.substr(0, 2),
            "\xff\xd8");
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id + "/content?variant=audio").body.substr(0, 4), "RIFF");
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id + "/content?variant=reference").status, 404);
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id + "/content?variant=../x").status, 400);

  EXPECT_EQ(request(port(), "DELETE", "/v1/videos/" + id).json(),
            (Json{{"id", id}, {"object", "video.deleted"}, {"deleted", true}}));
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id).status, 404);
  EXPECT_EQ(request(port(), "DELETE", "/v1/videos/" + id).status, 404);
  EXPECT_EQ(files(), std::vector<std::string>());
}

TEST_F(ApiTest, RangesAndConditions) {
  start();
  const std::string id = created(small());
  wait_for(id);
  const std::string path = "/v1/videos/" + id + "/content";
  const Reply whole = request(port(), "GET", path);
  const std::string size = std::to_string(whole.body.size());
  const Reply part = request(port(), "GET", path, "", {{"Range", "bytes=10-19"}});
  EXPECT_EQ(part.status, 206);
  EXPECT_EQ(part.body, whole.body.substr(10, 10));
  EXPECT_EQ(part.headers.at("content-range"), "bytes 10-19/" + size);
  EXPECT_EQ(request(port(), "GET", path, "", {{"Range", "bytes=-5"}}).body,
            whole.body.substr(whole.body.size() - 5));
  EXPECT_EQ(request(port(), "GET", path, "", {{"Range", "bytes=" + size + "-"}}).status, 416);
  EXPECT_EQ(request(port(), "GET", path, "", {{"Range", "bytes=5-4"}}).status, 416);
  EXPECT_EQ(request(port(), "GET", path, "", {{"Range", "bytes=0-1"}, {"If-Range", "\"other\""}}).status,
            200);
  const std::string etag = whole.headers.at("etag");
  EXPECT_EQ(request(port(), "GET", path, "", {{"Range", "bytes=0-1"}, {"If-Range", etag}}).status, 206);
  EXPECT_EQ(request(port(), "GET", path, "", {{"If-None-Match", etag}}).status, 304);
  const Reply head = request(port(), "HEAD", path);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.at("content-length"), size);
}

TEST_F(ApiTest, APictureInAFormAndInJson) {
  start();
  const std::string picture = bytes_of(model_->path() / "root" / "example.png");
  const std::string body = form_body({{"prompt", "The sun of <Figure 1> sets.", ""},
                                      {"size", "64x48", ""},
                                      {"seconds", "0.4", ""},
                                      {"num_inference_steps", "2", ""},
                                      {"audio", "false", ""},
                                      {"input_reference", picture, "../../etc/passwd"}});
  const Reply form =
      request(port(), "POST", "/v1/videos", body, {{"Content-Type", "multipart/form-data; boundary=edge"}});
  ASSERT_EQ(form.status, 200) << form.body;
  const Json json =
      small({{"prompt", "The sun of <Figure 1> sets."},
             {"audio", false},
             {"input_reference", {{"image_url", "data:image/png;base64," + to_base64(picture)}}}});
  const std::string first = form.json()["id"], second = created(json);
  EXPECT_EQ(form.json()["input_reference"], true);
  EXPECT_EQ(wait_for(first)["status"], "completed");
  EXPECT_EQ(wait_for(second)["status"], "completed");
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + first + "/content").body,
            request(port(), "GET", "/v1/videos/" + second + "/content").body);
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + first + "/content?variant=reference").body, picture);
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + first + "/content?variant=audio").status, 404);
}

TEST_F(ApiTest, BadFieldsAreNamed) {
  start();
  const std::vector<std::pair<Json, std::string>> cases{
      {{{"model", "sora-2"}}, "model"},
      {{{"prompt", ""}}, "prompt"},
      {{{"prompt", nullptr}}, "prompt"},
      {{{"prompt", 3}}, "prompt"},
      {{{"prompt", std::string(70'000, 'a')}}, "prompt"},
      {{{"seconds", "long"}}, "seconds"},
      {{{"seconds", "-1"}}, "seconds"},
      {{{"seconds", 1e9}}, "seconds"},
      {{{"seconds", 30}}, "seconds"},
      {{{"size", "64"}}, "size"},
      {{{"size", "64x50"}}, "size"},
      {{{"size", "-64x48"}}, "size"},
      {{{"size", "99999999999999999999x48"}}, "size"},
      {{{"size", "8192x8192"}}, "size"},
      {{{"size", "64x48x3"}}, "size"},
      {{{"preset", "4k"}}, "preset"},
      {{{"preset", "272p"}}, "preset"},
      {{{"seed", -1}}, "seed"},
      {{{"seed", "x"}}, "seed"},
      {{{"seed", 1.5}}, "seed"},
      {{{"num_inference_steps", 0}}, "num_inference_steps"},
      {{{"num_inference_steps", 500}}, "num_inference_steps"},
      {{{"cfg_video", "much"}}, "cfg_video"},
      {{{"cfg_audio", 1e300}}, "cfg_audio"},
      {{{"audio", "yes"}}, "audio"},
      {{{"enhance", true}}, "enhance"},
      {{{"priority", 11}}, "priority"},
      {{{"negative_prompt", Json::array()}}, "negative_prompt"},
      {{{"steps", 3}}, "steps"},
      {{{"image", "/etc/passwd"}}, "image"},
      {{{"input_reference", "x"}}, "input_reference"},
      {{{"input_reference", {{"image_url", "http://127.0.0.1/x.png"}}}}, "input_reference"},
      {{{"input_reference", {{"image_url", "data:image/png;base64,AAA"}}}}, "input_reference"},
      {{{"input_reference", {{"image_url", "data:image/png;base64,AAAA"}}}}, "input_reference"},
      {{{"input_reference", {{"file_id", "file-1"}}}}, "input_reference"}};
  for (const auto& [changes, field] : cases) {
    const Reply reply = post_json(port(), "/v1/videos", small(changes));
    EXPECT_EQ(reply.status, 400) << changes << reply.body;
    EXPECT_EQ(reply.error_param(), field) << reply.body;
    EXPECT_EQ(reply.json()["error"]["type"], "invalid_request_error");
  }
  EXPECT_EQ(request(port(), "GET", "/v1/videos").json()["data"], Json::array());
  EXPECT_EQ(files(), std::vector<std::string>());
}

TEST_F(ApiTest, ListsPageByPage) {
  options_.worker.paused = true;
  start();
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(created(small()));
  const auto page = [&](const std::string& query) {
    const Json list = request(port(), "GET", "/v1/videos" + query).json();
    std::string text;
    for (const Json& v : list["data"])
      text += std::to_string(std::ranges::find(ids, v["id"].get<std::string>()) - ids.begin());
    return text + (list["has_more"].get<bool>() ? "+" : "");
  };
  EXPECT_EQ(page(""), "43210");
  EXPECT_EQ(page("?limit=2"), "43+");
  EXPECT_EQ(page("?limit=2&after=" + ids[3]), "21+");
  EXPECT_EQ(page("?limit=2&after=" + ids[1]), "0");
  EXPECT_EQ(page("?order=asc&limit=3"), "012+");
  EXPECT_EQ(page("?order=asc&limit=3&after=" + ids[2]), "34");
  for (const char* bad : {"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=video_0", "?limit="})
    EXPECT_EQ(request(port(), "GET", std::string("/v1/videos") + bad).status, 400) << bad;
  EXPECT_EQ(video(ids[0])["queue_position"], 1);
  EXPECT_EQ(video(ids[4])["queue_position"], 5);
}

TEST_F(ApiTest, PriorityBoundAndCancelInTheQueue) {
  options_.worker.paused = true;
  options_.api.queue = 3;
  start();
  const std::string low = created(small({{"priority", -1}})), plain = created(small()),
                    high = created(small({{"priority", 5}}));
  EXPECT_EQ(video(high)["queue_position"], 1);
  EXPECT_EQ(video(plain)["queue_position"], 2);
  EXPECT_EQ(video(low)["queue_position"], 3);
  const Reply full = post_json(port(), "/v1/videos", small());
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.error_code(), "queue_full");
  EXPECT_GT(std::stoi(full.headers.at("retry-after")), 0);
  EXPECT_EQ(request(port(), "POST", "/v1/videos/" + high + "/cancel").json()["status"], "cancelled");
  EXPECT_EQ(request(port(), "POST", "/v1/videos/" + high + "/cancel").status, 409);
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + high + "/content").status, 409);
  EXPECT_EQ(post_json(port(), "/v1/videos", small()).status, 200);
}

TEST_F(ApiTest, CancelAndDeleteOfARunningJob) {
  start();
  for (const bool remove : {false, true}) {
    const std::string id = created(small({{"num_inference_steps", 150}, {"seconds", 4}}));
    while (video(id)["stage"] != "denoise") std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const std::string next = created(small());
    const auto start = std::chrono::steady_clock::now();
    if (remove) {
      EXPECT_EQ(request(port(), "DELETE", "/v1/videos/" + id).status, 200);
      EXPECT_EQ(request(port(), "GET", "/v1/videos/" + id).status, 404);
    } else {
      EXPECT_EQ(request(port(), "POST", "/v1/videos/" + id + "/cancel").json()["status"], "cancelled");
    }
    EXPECT_EQ(wait_for(next)["status"], "completed");
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    for (const std::string& name : files()) EXPECT_FALSE(name.starts_with(id)) << name;
  }
}

TEST_F(ApiTest, EventsTellAllUntilTheEnd) {
  start();
  const std::string id = created(small({{"num_inference_steps", 6}, {"seconds", 1}}));
  Connection connection(port());
  connection.send("GET /v1/videos/" + id + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Reply stream = connection.receive(false, 60);
  EXPECT_EQ(stream.status, 200);
  EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream");
  std::map<std::string, std::vector<Json>> events;
  for (std::size_t at = 0, end; (end = stream.body.find("\n\n", at)) != std::string::npos; at = end + 2) {
    const std::string event = stream.body.substr(at, end - at);
    if (event.starts_with(":")) continue;
    const std::size_t line = event.find("\ndata: ");
    events[event.substr(7, line - 7)].push_back(Json::parse(event.substr(line + 7)));
  }
  ASSERT_FALSE(events["status"].empty());
  ASSERT_EQ(events["done"].size(), 1U) << stream.body.substr(0, 2000);
  EXPECT_EQ(events["done"][0]["status"], "completed");
  ASSERT_FALSE(events["progress"].empty());
  int last = 0;
  for (const Json& progress : events["progress"]) {
    EXPECT_GE(progress["progress"], last);
    last = progress["progress"];
  }
  ASSERT_FALSE(events["preview"].empty());
  EXPECT_TRUE(events["preview"][0]["image"].get<std::string>().starts_with("data:image/jpeg;base64,/9j/"));
  // Told again to who comes late.
  const Reply late = request(port(), "GET", "/v1/videos/" + id + "/events");
  EXPECT_NE(late.body.find("event: done"), std::string::npos);
}

TEST_F(ApiTest, WhoWaitsIsToldWhenItMovesOn) {
  options_.worker.paused = true;
  start();
  const std::string first = created(small()), second = created(small()), third = created(small());
  Connection events(port());
  events.send("GET /v1/videos/" + third + "/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const auto position = [&] {
    events.read_until("event: progress\ndata: ");
    const Json progress = Json::parse(events.read_until("\n"));
    EXPECT_EQ(progress["status"], "queued");
    return progress["queue_position"].get<int>();
  };
  EXPECT_NE(events.read_until("\n\n\r\n").find("\"queue_position\":3"), std::string::npos);
  request(port(), "DELETE", "/v1/videos/" + first);
  EXPECT_EQ(position(), 2);
  created(small({{"priority", 1}}));
  EXPECT_EQ(position(), 3);
  request(port(), "POST", "/v1/videos/" + second + "/cancel");
  EXPECT_EQ(position(), 2);
}

TEST_F(ApiTest, WhoLeavesASyncRequestCancelsIt) {
  options_.worker.paused = true;
  start();
  const std::string body = small().dump();
  std::string id;
  {
    Connection gone(port());
    gone.send("POST /v1/videos/sync HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
              fmt::format("Content-Length: {}\r\n\r\n", body.size()) + body);
    for (int i = 0; i < 1000 && id.empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const Json list = request(port(), "GET", "/v1/videos").json()["data"];
      if (!list.empty()) id = list[0]["id"];
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // who waits is not taken for one who left
    EXPECT_EQ(video(id)["status"], "queued");
  }
  EXPECT_EQ(wait_for(id)["status"], "cancelled");
  const std::string kept = created(small());  // an ordinary request does not hang on its connection
  EXPECT_EQ(video(kept)["status"], "queued");
}

TEST_F(ApiTest, SyncWaitsForTheFile) {
  start();
  const Reply reply = post_json(port(), "/v1/videos/sync", small());
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "video/mp4");
  const std::string id = reply.headers.at("x-video-id");
  EXPECT_EQ(reply.body, request(port(), "GET", "/v1/videos/" + id + "/content").body);
  EXPECT_EQ(post_json(port(), "/v1/videos/sync", small({{"size", "1x1"}})).status, 400);
}

TEST_F(ApiTest, TheNextTextIsEncodedWhileFramesAreDecoded) {
  start();
  const std::string picture = to_base64(bytes_of(model_->path() / "root" / "example.png"));
  const Json second = small({{"prompt", "The sun of <Figure 1> sets."},
                             {"input_reference", {{"image_url", "data:image/png;base64," + picture}}}});
  created(small({{"seconds", 2}}));
  const std::string ahead = created(second);
  EXPECT_EQ(wait_for(ahead)["status"], "completed");
  const std::string metrics = request(port(), "GET", "/metrics").body;
  EXPECT_NE(metrics.find("\nmagi2_texts_ahead_total 1\n"), std::string::npos) << metrics;
  const std::string alone = created(second);
  EXPECT_EQ(wait_for(alone)["status"], "completed");
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + ahead + "/content").body,
            request(port(), "GET", "/v1/videos/" + alone + "/content").body);
}

TEST_F(ApiTest, AFailedJobSaysWhyWithoutPaths) {
  const fs::path copy = directory_ / "broken";
  fs::copy(model_->path() / "root", copy, fs::copy_options::recursive);
  fs::remove_all(copy / "preview");
  root_ = CheckpointRoot(copy, std::nullopt);
  start();
  const Json failed = wait_for(created(small()));
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"]["code"], "generation_failed");
  EXPECT_EQ(failed.dump().find(directory_.path().string()), std::string::npos) << failed;
  EXPECT_EQ(wait_for(created(small()))["status"], "failed") << "and the server goes on";
}

TEST_F(ApiTest, APromptIsEnhancedOnce) {
  const ChatServer chat([](const ServedRequest&, std::size_t) { return say(kCaption); });
  options_.worker.enhance = quick_options(chat);
  start();
  const std::string id = created(small({{"enhance", true}}));
  const Json done = wait_for(id);
  EXPECT_EQ(done["status"], "completed") << done;
  EXPECT_EQ(done["prompt"], "A fox.");
  EXPECT_NE(done["enhanced_prompt"].get<std::string>().find("A fox crosses a field."), std::string::npos);
  EXPECT_EQ(chat.requests().size(), 1U);
}

}  // namespace
}  // namespace magi
