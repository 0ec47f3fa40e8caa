// SPDX-License-Identifier: Apache-2.0
// The routes and what they do.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "run/request.h"
#include "serve/events.h"
#include "serve/http_server.h"
#include "serve/job_store.h"
#include "serve/job_view.h"
#include "serve/keys.h"
#include "serve/metrics.h"
#include "serve/router.h"
#include "serve/video_request.h"

namespace magi {

class Worker;

struct ApiOptions {
  std::vector<std::string> host_names;  ///< that the server answers under, besides addresses and localhost
  std::size_t queue = 64;               ///< jobs that may wait
  std::int64_t keep_seconds = 0;        ///< after a job's end; 0: for ever
  RequestLimits limits;
};

class Api final : public HttpHandler {
 public:
  Api(const ApiOptions& options, const GenerationDefaults& defaults, const Keys& keys, JobStore& store,
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
  HttpResponse list(const HttpRequest& request);
  HttpResponse content(const HttpRequest& request, const std::string& id);
  HttpResponse events(const HttpRequest& request, const std::string& id);
  HttpResponse cancel(const HttpRequest& request, const std::string& id);
  HttpResponse remove(const HttpRequest& request, const std::string& id);
  HttpResponse health();
  HttpResponse log_in(const HttpRequest& request);

  /// The owner of the request's key or cookie.
  std::optional<std::string> owner_of(const HttpRequest& request) const;
  /// Throws ApiError 404 unless the job is there and the request's owner's.
  Job owned(const HttpRequest& request, const std::string& id);
  Job add_job(HttpRequest& request);
  JobContext context(const Job& job);
  std::string view(const Job& job);

  const ApiOptions options_;
  const GenerationDefaults& defaults_;
  const Keys& keys_;
  const Sessions sessions_;
  JobStore& store_;
  EventHub& events_;
  Worker& worker_;
  Metrics metrics_;
  Router router_;
  std::atomic<bool> stopping_{false};
};

}  // namespace magi
