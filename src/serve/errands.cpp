// SPDX-License-Identifier: Apache-2.0
#include "serve/errands.h"

#include <exception>

#include "serve/api_error.h"

namespace magi {

constexpr std::size_t kMost = 64;

class Errands::Answer final : public LateAnswer {
 public:
  Answer(Errands& errands, Work work) : errands_(errands), work_(std::move(work)) {}

  void start(std::shared_ptr<Waker> waker) override {
    errands_.post([outcome = outcome_, work = std::move(work_), waker = std::move(waker)] {
      outcome->become(work);
      waker->wake();
    });
  }

  std::optional<HttpResponse> poll() override {
    const std::lock_guard lock(outcome_->mutex);
    if (outcome_->error) std::rethrow_exception(outcome_->error);
    return std::exchange(outcome_->response, std::nullopt);
  }

  void abandoned() override {
    const std::lock_guard lock(outcome_->mutex);
    outcome_->gone = true;
    outcome_->tell();
  }

 private:
  /// Of both threads.
  struct Outcome {
    void become(const Work& work) {
      {
        const std::lock_guard lock(mutex);
        if (gone) return;
      }
      std::optional<HttpResponse> given;
      std::exception_ptr thrown;
      try {
        given = work();
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      response = std::move(given);
      error = thrown;
      tell();
    }
    void tell() {
      if (!gone || !response) return;
      if (const auto* late = std::get_if<std::shared_ptr<LateAnswer>>(&response->body)) (*late)->abandoned();
    }

    std::mutex mutex;
    std::optional<HttpResponse> response;
    std::exception_ptr error;
    bool gone = false;
  };

  Errands& errands_;
  Work work_;
  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

Errands::Errands() : thread_([this] { loop(); }) {}

Errands::~Errands() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  awake_.notify_all();
  thread_.join();
}

HttpResponse Errands::run(Work work) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= kMost) throw ApiError(503, "busy", "too many requests at once").retry_after(1);
  }
  HttpResponse response;
  response.body = std::make_shared<Answer>(*this, std::move(work));
  return response;
}

void Errands::post(std::function<void()> errand) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(errand));
  }
  awake_.notify_all();
}

void Errands::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    awake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    const std::function<void()> errand = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    errand();
    lock.lock();
  }
}

}  // namespace magi
