// SPDX-License-Identifier: Apache-2.0
// The routes below /v1/videos.
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/log.h"
#include "io/atomic_file.h"
#include "serve/api.h"
#include "serve/api_error.h"
#include "serve/content.h"
#include "serve/job_view.h"
#include "serve/worker.h"

namespace magi {
namespace {

using Json = nlohmann::json;

constexpr int kRetrySeconds = 30;
constexpr std::size_t kViews = 64;

std::size_t page_limit(const HttpRequest& request) {
  const auto found = request.query.find("limit");
  if (found == request.query.end()) return 20;
  std::size_t limit = 0;
  const std::string& text = found->second;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), limit);
  if (error != std::errc() || end != text.data() + text.size() || limit < 1 || limit > 100)
    bad_field("limit", "expected 1 to 100");
  return limit;
}

std::string argument(const HttpRequest& request, const char* name, const char* otherwise) {
  const auto found = request.query.find(name);
  return found == request.query.end() ? otherwise : found->second;
}

void write_file(const std::filesystem::path& path, const std::string& content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

[[noreturn]] void no_such_video() {
  throw ApiError(404, "not_found", "there is no such video");
}

}  // namespace

/// Waits for a job, then sends its file.
class SyncAnswer final : public LateAnswer {
 public:
  SyncAnswer(Api& api, HttpRequest request, std::string id)
      : api_(api), request_(std::move(request)), id_(std::move(id)) {}

  void start(std::shared_ptr<Waker> waker) override { api_.events_.when_done(id_, std::move(waker)); }

  std::optional<HttpResponse> poll() override {
    const Job job = api_.owned(request_, id_);
    if (!is_over(job.status)) {
      if (!api_.events_.closed()) return std::nullopt;
      throw ApiError(503, "stopping", fmt::format("the server stops; {} goes on after its next start", id_));
    }
    if (job.status == JobStatus::cancelled) throw ApiError(409, "cancelled", "the video was cancelled");
    if (job.status == JobStatus::failed)
      throw ApiError(500, job.error_code.value_or("failed"), job.error_message.value_or("the video failed"));
    HttpResponse response =
        file_response(HttpRequest{}, api_.store_.file(id_, JobFile::video), "video/mp4", id_);
    response.headers.emplace_back("X-Video-Id", id_);
    return response;
  }

  /// Nobody was told of the job, so nobody would fetch what it makes. A server that stops keeps it.
  void abandoned() override {
    if (api_.stopping_) return;
    try {
      api_.end_job(id_);
    } catch (const std::exception& error) {
      log_warning("{}: its client went away, and it cannot be cancelled: {}", id_, error.what());
    }
  }

 private:
  Api& api_;
  HttpRequest request_;
  std::string id_;
};

void Api::add_videos() {
  const auto add = [this](const char* method, const char* pattern, bool body, auto work) {
    router_.add({method, pattern, true, body, std::move(work)});
  };
  using Id = const std::string&;
  add("POST", "/v1/videos", true, [this](HttpRequest& r, Id) { return create(r, false); });
  add("POST", "/v1/videos/sync", true, [this](HttpRequest& r, Id) { return create(r, true); });
  add("GET", "/v1/videos", false, [this](HttpRequest& r, Id) { return list(r); });
  add("GET", "/v1/videos/{id}", false,
      [this](HttpRequest& r, Id id) { return HttpResponse::json(view(owned(r, id))); });
  add("GET", "/v1/videos/{id}/content", false, [this](HttpRequest& r, Id id) { return content(r, id); });
  add("GET", "/v1/videos/{id}/events", false, [this](HttpRequest& r, Id id) { return events(r, id); });
  add("POST", "/v1/videos/{id}/cancel", false, [this](HttpRequest& r, Id id) { return cancel(r, id); });
  add("DELETE", "/v1/videos/{id}", false, [this](HttpRequest& r, Id id) { return remove(r, id); });
}

Job Api::owned(const HttpRequest& request, const std::string& id) {
  if (!is_job_id(id)) no_such_video();
  std::optional<Job> job = store_.find(id);
  if (!job || job->owner != request.owner) no_such_video();
  return *std::move(job);
}

JobContext Api::context(const Job& job) {
  JobContext context;
  context.keep_seconds = options_.keep_seconds;
  if (job.status == JobStatus::queued) context.queue_position = store_.queue_position(job.id);
  if (job.status == JobStatus::in_progress) context.live = worker_.live(job.id);
  return context;
}

std::string Api::view(const Job& job) {
  View now{job.revision, std::nullopt, {}};
  if (job.status == JobStatus::in_progress) now.live = worker_.live(job.id);
  if (job.revision > 0) {
    const std::lock_guard lock(views_mutex_);
    const auto known = views_.find(job.id);
    if (known != views_.end() && known->second.revision == now.revision && known->second.live == now.live)
      return known->second.text;
  }
  now.text = dump(video_object(job, defaults_, context(job)));
  if (job.revision == 0) return now.text;
  const std::lock_guard lock(views_mutex_);
  if (views_.size() >= kViews) views_.clear();
  return (views_[job.id] = std::move(now)).text;
}

Job Api::add_job(HttpRequest& request) {
  const VideoRequest video = parse_video_request(request, defaults_, options_.limits);
  if (stopping_) throw ApiError(503, "stopping", "the server is stopping").retry_after(kRetrySeconds);
  Job job;
  job.id = new_job_id();
  job.owner = request.owner;
  job.priority = video.priority;
  job.created_at = unix_time();
  job.request = video.json;
  job.has_reference = video.reference.has_value();
  // The picture first: a job in the database has all that it needs. Without one it is swept away.
  if (video.reference) write_file(store_.file(job.id, JobFile::reference), *video.reference);
  bool added = false;
  try {
    added = store_.add(job, options_.queue);
  } catch (...) {
    store_.tidy(job.id);
    throw;
  }
  if (!added) {
    store_.tidy(job.id);
    throw ApiError(429, "queue_full", fmt::format("{} videos wait already", options_.queue))
        .retry_after(kRetrySeconds);
  }
  {
    const std::lock_guard lock(queue_mutex_);
    tell_queue();
  }
  worker_.wake();
  return job;
}

/// A picture can take a second to check, in which nobody else may have to wait. Which request has one is
/// known only once it is parsed, so all of them go this way.
HttpResponse Api::create(HttpRequest& request, bool wait) {
  auto own = std::make_shared<HttpRequest>();
  own->owner = request.owner;
  own->is_form = request.is_form;
  own->body = std::move(request.body);
  own->fields = std::move(request.fields);
  own->files = std::move(request.files);
  return errands_.run([this, own, wait] { return created(*own, wait); });
}

HttpResponse Api::created(HttpRequest& request, bool wait) {
  const Job job = add_job(request);
  if (!wait) return HttpResponse::json(view(job));
  HttpRequest asked;
  asked.owner = request.owner;
  HttpResponse response;
  response.body = std::make_shared<SyncAnswer>(*this, std::move(asked), job.id);
  return response;
}

HttpResponse Api::list(const HttpRequest& request) {
  const std::string order = argument(request, "order", "desc"), after = argument(request, "after", "");
  if (order != "asc" && order != "desc") bad_field("order", "expected asc or desc");
  if (!after.empty()) {
    const auto job = is_job_id(after) ? store_.find(after) : std::nullopt;
    if (!job || job->owner != request.owner) bad_field("after", "there is no such video");
  }
  const JobStore::Page page = store_.list(request.owner, page_limit(request), order == "desc", after);
  Json data = Json::array();
  for (const Job& job : page.jobs) data.push_back(video_object(job, defaults_, context(job)));
  Json result{{"object", "list"},
              {"data", data},
              {"has_more", page.more},
              {"first_id", nullptr},
              {"last_id", nullptr}};
  if (!page.jobs.empty()) {
    result["first_id"] = page.jobs.front().id;
    result["last_id"] = page.jobs.back().id;
  }
  return HttpResponse::json(dump(result));
}

HttpResponse Api::content(const HttpRequest& request, const std::string& id) {
  const Job job = owned(request, id);
  const std::string variant = argument(request, "variant", "video");
  struct Variant {
    const char* name;
    JobFile file;
    const char* type;
  };
  constexpr Variant kVariants[] = {{"video", JobFile::video, "video/mp4"},
                                   {"thumbnail", JobFile::thumbnail, "image/jpeg"},
                                   {"audio", JobFile::sound, "audio/wav"},
                                   {"reference", JobFile::reference, "application/octet-stream"}};
  for (const Variant& v : kVariants) {
    if (variant != v.name) continue;
    if (v.file != JobFile::reference && job.status != JobStatus::completed)
      throw ApiError(409, "video_not_ready", fmt::format("the video is {}", to_string(job.status)));
    return file_response(request, store_.file(id, v.file), v.type, id + "-" + v.name);
  }
  bad_field("variant", "expected video, thumbnail, audio or reference");
}

HttpResponse Api::events(const HttpRequest& request, const std::string& id) {
  owned(request, id);
  const auto stream = events_.listen(id);
  if (!stream)
    throw ApiError(503, "too_many_streams", "too many event streams are open").retry_after(kRetrySeconds);
  const Job job = owned(request, id);  // as it is now that nothing is missed
  const auto put = [&](EventKind kind, const std::string& json) {
    stream->put(kind, std::make_shared<const std::string>(event_text(kind, json)));
  };
  const std::string now = view(job);
  put(EventKind::status, now);
  if (const std::string preview = worker_.preview(id); !preview.empty()) put(EventKind::preview, preview);
  if (is_over(job.status)) put(EventKind::done, now);
  return {200,
          {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-store"}, {"X-Accel-Buffering", "no"}},
          std::static_pointer_cast<ByteStream>(stream)};
}

HttpResponse Api::cancel(const HttpRequest& request, const std::string& id) {
  owned(request, id);
  if (!end_job(id)) throw ApiError(409, "already_finished", "the video has ended already");
  return HttpResponse::json(view(owned(request, id)));
}

bool Api::end_job(const std::string& id) {
  if (!store_.cancel(id)) return false;
  worker_.withdraw(id);
  job_changed(id);
  return true;
}

HttpResponse Api::remove(const HttpRequest& request, const std::string& id) {
  owned(request, id);
  if (!store_.remove(id)) no_such_video();
  worker_.withdraw(id);
  events_.publish(id, EventKind::done, dump({{"id", id}, {"status", "deleted"}}));
  {
    const std::lock_guard lock(queue_mutex_);
    tell_queue();
  }
  return HttpResponse::json(dump({{"id", id}, {"object", "video.deleted"}, {"deleted", true}}));
}

void Api::job_changed(const std::string& id) {
  const std::optional<Job> job = store_.find(id);
  if (!job) return;
  const std::string now = view(*job);
  const std::lock_guard lock(queue_mutex_);
  events_.publish(id, EventKind::status, now);
  if (is_over(job->status)) events_.publish(id, EventKind::done, now);
  tell_queue();
}

void Api::tell_queue() {
  std::vector<std::string> queue = store_.queue();
  for (std::size_t i = 0; i < queue.size(); ++i) {
    if ((i < queue_.size() && queue_[i] == queue[i]) || !events_.heard(queue[i])) continue;
    JobContext waiting;
    waiting.queue_position = static_cast<std::int64_t>(i) + 1;
    events_.publish(queue[i], EventKind::progress, dump(progress_object(JobStatus::queued, waiting)));
  }
  queue_ = std::move(queue);
}

}  // namespace magi
