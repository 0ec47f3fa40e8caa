// SPDX-License-Identifier: Apache-2.0
// The routes and what they do.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "run/request.h"
#include "serve/errands.h"
#include "serve/events.h"
#include "serve/http_server.h"
#include "serve/job_store.h"
#include "serve/job_view.h"
#include "serve/key_ring.h"
#include "serve/login_limit.h"
#include "serve/metrics.h"
#include "serve/router.h"
#include "serve/video_request.h"

namespace magi {

class Worker;

struct ApiOptions {
  std::vector<std::string> host_names;  ///< that the server answers under, besides addresses and localhost
  bool behind_proxy = false;            ///< clients' addresses are what X-Forwarded-For says last
  std::size_t queue = 64;               ///< jobs that may wait
  std::int64_t keep_seconds = 0;        ///< after a job's end; 0: for ever
  RequestLimits limits;
};

class Api final : public HttpHandler {
 public:
  Api(const ApiOptions& options, const GenerationDefaults& defaults, const KeyRing& keys, JobStore& store,
      EventHub& events, Worker& worker);

  void admit(HttpRequest& request) override;
  HttpResponse answer(HttpRequest& request) override;
  void finished(const Exchange& exchange) override;
  void decorate(const HttpRequest& request, HttpResponse& response) override;

  /// No new jobs from now on; /health says so.
  void stop_accepting() { stopping_ = true; }
  /// Tells the listeners of a job that its status changed. Called by any thread.
  void job_changed(const std::string& id);
  const Router& router() const { return router_; }

 private:
  friend class SyncAnswer;
  void add_pages();
  void add_videos();
  void add_sessions();

  HttpResponse create(HttpRequest& request, bool wait);
  HttpResponse created(HttpRequest& request, bool wait);
  HttpResponse list(const HttpRequest& request);
  HttpResponse content(const HttpRequest& request, const std::string& id);
  HttpResponse events(const HttpRequest& request, const std::string& id);
  HttpResponse cancel(const HttpRequest& request, const std::string& id);
  HttpResponse remove(const HttpRequest& request, const std::string& id);
  HttpResponse health();
  HttpResponse log_in(const HttpRequest& request);

  /// The owner of the request's key or cookie.
  std::optional<std::string> owner_of(const HttpRequest& request);
  /// Throws ApiError 429 where the client has been wrong too often.
  std::optional<std::string> owner_of_key(const HttpRequest& request, std::string_view key);
  /// Throws ApiError 404 unless the job is there and the request's owner's.
  Job owned(const HttpRequest& request, const std::string& id);
  Job add_job(HttpRequest& request);
  JobContext context(const Job& job);
  std::string view(const Job& job);
  /// Ends a job that waits or runs; false when it had ended.
  bool end_job(const std::string& id);
  /// Tells those who listen to waiting jobs where they stand now. Under queue_mutex_.
  void tell_queue();

  const ApiOptions options_;
  const GenerationDefaults& defaults_;
  const KeyRing& keys_;
  const Sessions sessions_;
  LoginLimit logins_;
  JobStore& store_;
  EventHub& events_;
  Worker& worker_;
  Metrics metrics_;
  Router router_;
  std::atomic<bool> stopping_{false};

  struct View {
    std::uint64_t revision = 0;
    std::optional<LiveState> live;
    std::string text;
  };
  std::mutex views_mutex_;
  std::map<std::string, View> views_;  ///< what was answered last: many ask for the same

  std::mutex queue_mutex_;          ///< events of waiting jobs go out in the order of the changes
  std::vector<std::string> queue_;  ///< as it was told last

  Errands errands_;  ///< last, since what it does needs the others
};

}  // namespace magi
