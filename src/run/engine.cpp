// SPDX-License-Identifier: Apache-2.0
#include "run/engine.h"

#include <exception>

namespace magi {

Engine::Engine(const CheckpointRoot& root, const EngineOptions& options)
    : root_(root),
      options_(options),
      parts_(std::make_shared<PartCache>(options.device, options.keep_parts)),
      pipeline_(root, idle_, options, parts_) {
  pipeline_.team().require_same(root, options);
}

Engine::~Engine() {
  if (pipeline_.team().first() && std::uncaught_exceptions() == 0) try {
      dismiss(pipeline_);
    } catch (const Error&) {  // the run ends anyhow
    }
  parts_->clear();  // before the backends that made their tensors
}

Report Engine::make(ClipTask task, Progress& progress) {
  parts_->forget_failures();
  std::vector<ClipTask> tasks;
  tasks.push_back(std::move(task));
  return generate(root_, pipeline_, std::move(tasks), progress).at(0);
}

void Engine::follow() {
  magi::follow(root_, pipeline_, [this] { parts_->forget_failures(); });
}

Pipeline& Engine::text_pipeline(Progress& progress) {
  if (options_.device.kind != Device::Kind::cpu) {
    pipeline_.report_to(progress);
    return pipeline_;
  }
  if (!text_pipeline_) text_pipeline_ = std::make_unique<Pipeline>(root_, progress, options_, parts_);
  text_pipeline_->report_to(progress);
  return *text_pipeline_;
}

std::shared_ptr<const TextFeatures> Engine::encode_text(const Request& request, Progress& progress) {
  const std::lock_guard lock(text_mutex_);
  return std::make_shared<const TextFeatures>(text_pipeline(progress).encode_text(request));
}

bool Engine::can_encode_ahead(DType dtype) {
  return options_.device.kind == Device::Kind::cpu &&
         (pipeline_.has_text_encoder(dtype) ||
          (options_.keep_parts && parts_->fits(bytes_on_disk(root_.text_encoder()))));
}

}  // namespace magi
