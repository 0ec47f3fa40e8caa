// SPDX-License-Identifier: Apache-2.0
// Jobs that survive: restarts, kills at any moment, retention.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <map>
#include <random>

#include "serve/job_store.h"
#include "serve/secret.h"
#include "serve/server_testing.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class RecoveryTest : public ServerTest {};

TEST_F(RecoveryTest, AStoppedServerGoesOnWithTheSameBytes) {
  start();
  const Json long_one = small({{"num_inference_steps", 12}, {"seconds", 2}});
  const std::string whole = created(long_one);
  EXPECT_EQ(wait_for(whole)["status"], "completed");
  const std::string stopped = created(long_one), waiting = created(small());
  for (Json now; now = video(stopped), now["stage"] != "denoise" || now["step"] < 3;)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  restart();  // kept after the step that ran
  EXPECT_EQ(wait_for(stopped)["status"], "completed");
  EXPECT_EQ(wait_for(waiting)["status"], "completed");
  const std::string metrics = request(port(), "GET", "/metrics").body;
  const std::size_t steps = std::stoul(metrics.substr(metrics.find("\nmagi2_steps_total ") + 19));
  EXPECT_LT(steps, 12U + 2U) << "the first steps were done again";
  EXPECT_EQ(request(port(), "GET", "/v1/videos/" + stopped + "/content").body,
            request(port(), "GET", "/v1/videos/" + whole + "/content").body);
}

TEST_F(RecoveryTest, TheStoreKeepsItsPromises) {
  const auto job = [](const std::string& owner, std::int64_t priority) {
    Job j;
    j.id = new_job_id();
    j.owner = owner;
    j.priority = priority;
    j.created_at = unix_time();
    j.request = "{}";
    return j;
  };
  const Job first = job("a", 0), urgent = job("a", 2), other = job("b", 0);
  {
    JobStore store(directory_ / "store");
    EXPECT_THROW(JobStore(directory_ / "store"), Error);
    for (const Job& j : {first, urgent, other}) EXPECT_TRUE(store.add(j, 3));
    EXPECT_FALSE(store.add(job("a", 0), 3)) << "the queue is full";
    EXPECT_EQ(store.peek_next()->id, urgent.id);
    EXPECT_EQ(store.take_next()->id, urgent.id);
    EXPECT_EQ(store.find(urgent.id)->attempts, 1);
  }
  JobStore store(directory_ / "store");
  EXPECT_EQ(store.take_next()->id, urgent.id) << "the one that ran goes first, again";
  EXPECT_EQ(store.find(urgent.id)->attempts, 2);
  store.got_further(urgent.id);
  EXPECT_EQ(store.find(urgent.id)->attempts, 0);
  EXPECT_TRUE(store.complete(urgent.id, 10));
  EXPECT_FALSE(store.complete(urgent.id, 10)) << "once";
  EXPECT_FALSE(store.cancel(urgent.id));
  EXPECT_FALSE(store.fail(first.id, "x", "y")) << "it does not run";
  EXPECT_TRUE(store.cancel(first.id));
  EXPECT_EQ(store.counts().queued, 1);
  EXPECT_EQ(store.list("a", 10, true, "").jobs.size(), 2U);
  EXPECT_EQ(store.list("b", 10, true, "").jobs.size(), 1U);
  for (const JobFile which : {JobFile::video, JobFile::state, JobFile::reference}) {
    std::ofstream(store.file(urgent.id, which)) << "x";
    std::ofstream(store.file(first.id, which)) << "x";
    std::ofstream(store.file(new_job_id(), which)) << "x";
  }
  std::ofstream(store.files() / (urgent.id + ".mp4.partial-1-1")) << "x";
  std::ofstream(store.files() / "stray") << "x";
  store.sweep();
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(store.files())) left.push_back(entry.path());
  std::ranges::sort(left);
  std::vector<fs::path> want{store.file(urgent.id, JobFile::video), store.file(urgent.id, JobFile::reference),
                             store.file(first.id, JobFile::reference)};
  std::ranges::sort(want);
  EXPECT_EQ(left, want);
  EXPECT_EQ(store.expire(0, 1000), 0U);
  EXPECT_EQ(store.expire(0, 5), 1U) << "the completed one is too large";
  EXPECT_FALSE(store.find(urgent.id));
  EXPECT_FALSE(fs::exists(want[0]) && fs::exists(want[1]) && fs::exists(want[2]));
  EXPECT_EQ(store.expire(unix_time() + 1, 1000), 1U) << "the cancelled one is too old";
  EXPECT_TRUE(store.find(other.id)) << "what waits is never too old";
}

TEST_F(RecoveryTest, AJobThatAlwaysEndsTheServerIsGivenUp) {
  {
    JobStore store(options_.data);
    Job job;
    job.id = new_job_id();
    job.request = R"({"prompt":"A fox."})";
    ASSERT_TRUE(store.add(job, 1));
    for (int i = 0; i < 10; ++i) store.take_next();
  }
  start();
  const std::string id = request(port(), "GET", "/v1/videos").json()["data"][0]["id"];
  EXPECT_EQ(wait_for(id)["status"], "failed");
}

/// The program itself, which can be killed.
class Program {
 public:
  Program(const fs::path& root, const fs::path& data, const fs::path& log,
          const std::vector<std::string>& options = {})
      : log_(log) {
    fs::remove(log);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0600);
    std::vector<std::string> words{MAGI2_PROGRAM,        "serve", "-m", root, "--data", data, "--port", "0",
                                   "--checkpoint-every", "1"};
    words.insert(words.end(), options.begin(), options.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    setenv("OMP_WAIT_POLICY", "passive", 1);
    EXPECT_EQ(posix_spawn(&pid_, MAGI2_PROGRAM, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (pid_ > 0) end(SIGKILL);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  /// 0: it never listened.
  int port() {
    for (int i = 0; i < 6000 && port_ == 0; ++i) {
      std::ifstream in(log_);
      const std::string text{std::istreambuf_iterator<char>(in), {}};
      const std::size_t at = text.find("\"port\":"), end = text.find('\n', at);
      if (at != std::string::npos && end != std::string::npos) port_ = std::stoi(text.substr(at + 7));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return port_;
  }
  void tell(int signal) const { kill(pid_, signal); }
  /// The exit status, or minus the signal.
  int end(int signal) {
    kill(pid_, signal);
    int state = 0;
    waitpid(pid_, &state, 0);
    pid_ = -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
  }

 private:
  fs::path log_;
  pid_t pid_ = -1;
  int port_ = 0;
};

TEST_F(RecoveryTest, AHangUpReadsTheKeysAgain) {
  const std::string keys = directory_.write("keys", "alice-0123456789 alice\n").string();
  Program program(model_->path() / "root", directory_ / "data", directory_ / "log", {"--api-key-file", keys});
  const int port = program.port();
  ASSERT_NE(port, 0);
  const auto status = [&](const char* key) {
    return request(port, "GET", "/v1/models", "", {{"Authorization", std::string("Bearer ") + key}}).status;
  };
  EXPECT_EQ(status("alice-0123456789"), 200);
  directory_.write("keys", "bob-0123456789ab bob\n");
  program.tell(SIGHUP);
  for (int i = 0; i < 300 && status("alice-0123456789") != 401; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(status("bob-0123456789ab"), 200);
  EXPECT_EQ(program.end(SIGTERM), 0);
  Program without(model_->path() / "root", directory_ / "other", directory_ / "log");
  ASSERT_NE(without.port(), 0);
  EXPECT_EQ(without.end(SIGHUP), 0) << "a closed terminal ends it";
}

/// Asks for clips until the server is gone; what was accepted goes into `jobs`: id → its request.
void ask(int port, const std::string& picture, std::mt19937& random, std::map<std::string, std::string>& jobs,
         std::map<std::string, bool>& removed) {
  try {
    for (int i = 0; i < 3; ++i) {
      Json fields{{"prompt", "A fox."},
                  {"size", "64x48"},
                  {"seconds", "0.4"},
                  {"num_inference_steps", 2 + random() % 2}};
      if (random() % 3 == 0) fields["input_reference"] = {{"image_url", "data:image/png;base64," + picture}};
      const Reply reply = post_json(port, "/v1/videos", fields);
      if (reply.status == 200) jobs[reply.json()["id"]] = fields.dump();
      if (reply.status == 200 && random() % 5 == 0) {
        const std::string id = reply.json()["id"];
        removed[id] = true;  // may have happened, whether or not the answer comes
        request(port, "DELETE", "/v1/videos/" + id);
      }
    }
  } catch (const std::exception&) {  // killed
  }
}

/// From the start of the program to the end of its first job.
std::chrono::milliseconds time_of_a_job(const fs::path& root, const fs::path& directory) {
  const auto start = std::chrono::steady_clock::now();
  Program program(root, directory / "trial", directory / "trial.log");
  const Json fields{{"prompt", "A fox."}, {"size", "64x48"}, {"seconds", "0.4"}, {"num_inference_steps", 2}};
  EXPECT_EQ(post_json(program.port(), "/v1/videos/sync", fields).status, 200);
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
}

TEST_F(RecoveryTest, KilledAtTwentyRandomMoments) {
  constexpr int kPatience = 60'000;  // in hundredths of a second: the last of some forty jobs, sanitized
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const std::string picture = to_base64(bytes_of(model_->path() / "root" / "example.png"));
  const fs::path root = model_->path() / "root", data = directory_ / "data", log = directory_ / "log";
  std::map<std::string, std::string> jobs;
  std::map<std::string, bool> removed;
  std::map<std::string, Json> ended;  // as first seen
  // Long enough for a job to get further now and then, however slow the machine or the build.
  const auto longest =
      std::max(std::chrono::milliseconds(900), 3 * time_of_a_job(root, directory_.path()) / 2);
  for (int round = 0; round < 20; ++round) {
    Program program(root, data, log);
    const auto moment = longest * (random() % 1000) / 1000;
    if (round % 4 == 3) {  // while it starts
      std::this_thread::sleep_for(moment / 4);
    } else {
      const int port = program.port();
      ASSERT_NE(port, 0);
      std::mt19937 own(random());
      std::thread client([&] { ask(port, picture, own, jobs, removed); });
      std::this_thread::sleep_for(moment);
      EXPECT_EQ(program.end(SIGKILL), -SIGKILL);
      client.join();
    }
  }
  Program program(root, data, log);
  const int port = program.port();
  ASSERT_NE(port, 0);
  std::map<std::string, std::string> bytes_by_request;
  std::size_t completed = 0;
  std::vector<std::string> want;
  for (const auto& [id, fields] : jobs) {
    Json now;
    for (int i = 0; i < kPatience; ++i) {
      now = request(port, "GET", "/v1/videos/" + id).json();
      if (now.contains("error") && !now.contains("status")) break;  // deleted
      if (now["status"] != "queued" && now["status"] != "in_progress") break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!now.contains("status")) {
      EXPECT_TRUE(removed.contains(id)) << id << " was accepted and is lost";
      continue;
    }
    EXPECT_EQ(now["status"], "completed") << now;
    if (now["status"] != "completed") continue;
    ++completed;
    const std::string bytes = request(port, "GET", "/v1/videos/" + id + "/content").body;
    EXPECT_GT(bytes.size(), 1000U);
    const auto [known, first] = bytes_by_request.try_emplace(fields, bytes);
    EXPECT_TRUE(known->second == bytes) << id << " was resumed to another result";
    for (const char* suffix : {".mp4", ".jpg", ".wav"}) want.push_back(id + suffix);
    if (fields.find("input_reference") != std::string::npos) want.push_back(id + ".reference");
  }
  // Accepted, but the client was not told before the kill: they end all the same.
  std::string after;
  for (bool more = true; more;) {
    const Json page =
        request(port, "GET", "/v1/videos?limit=100" + (after.empty() ? "" : "&after=" + after)).json();
    for (const Json& v : page["data"]) {
      const std::string id = v["id"];
      if (jobs.contains(id)) continue;
      for (int i = 0;
           i < kPatience && request(port, "GET", "/v1/videos/" + id).json()["status"] != "completed"; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      for (const char* suffix : {".mp4", ".jpg", ".wav"}) want.push_back(id + suffix);
      if (v["input_reference"] == true) want.push_back(id + ".reference");
    }
    more = page["has_more"];
    if (more) after = page["last_id"];
  }
  EXPECT_GT(completed, 5U);
  EXPECT_EQ(program.end(SIGTERM), 0);
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(data / "files"))
    left.push_back(entry.path().filename().string());
  std::ranges::sort(left);
  std::ranges::sort(want);
  EXPECT_EQ(left, want);
  Database database(data / "jobs.db");
  Statement check = database.prepare("PRAGMA integrity_check");
  ASSERT_TRUE(check.step());
  EXPECT_EQ(check.text(0), "ok");
  std::printf("%zu jobs accepted, %zu completed after 20 kills\n", jobs.size(), completed);
}

}  // namespace
}  // namespace magi
