// SPDX-License-Identifier: Apache-2.0
// One engine for many requests: what it has loaded stays between clips, and the next clip's text can be
// encoded while the frames of the one before are decoded.
#pragma once

#include <memory>
#include <mutex>

#include "run/generate.h"
#include "run/pipeline.h"

namespace magi {

class Engine {
 public:
  /// `root` must outlive the engine. With `options.keep_parts`, parts stay loaded as long as memory holds
  /// them.
  Engine(const CheckpointRoot& root, const EngineOptions& options);
  ~Engine();

  const CheckpointRoot& root() const { return root_; }

  /// As generate() for one task. One at a time.
  Report make(ClipTask task, Progress& progress);

  /// What the other ranks do while rank 0 uses its engine: their part in each make(), until that one ends.
  void follow();

  /// Text features for ClipTask::text; may run beside make() where can_encode_ahead(). Throws Error or
  /// Cancelled.
  std::shared_ptr<const TextFeatures> encode_text(const Request& request, Progress& progress);
  /// Whether the text encoder is loaded, or fits beside what is. Not on a GPU, whose memory a second
  /// pipeline's scratch would take from the weights.
  bool can_encode_ahead(DType dtype);

 private:
  Pipeline& text_pipeline(Progress& progress);

  const CheckpointRoot& root_;
  EngineOptions options_;
  Progress idle_;
  std::shared_ptr<PartCache> parts_;
  Pipeline pipeline_;
  std::mutex text_mutex_;
  std::unique_ptr<Pipeline> text_pipeline_;  ///< with scratch memory of its own
};

}  // namespace magi
