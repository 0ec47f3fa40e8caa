// SPDX-License-Identifier: Apache-2.0
// What a run did and took, as --stats writes it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "model/parallel.h"
#include "sample/preview_sampler.h"

namespace magi {

struct StageRecord {
  std::string name;
  double seconds = 0;
  std::size_t peak_bytes = 0;          ///< resident memory of the process, highest during the stage
  std::size_t peak_scratch_bytes = 0;  ///< activations
  std::size_t peak_device_bytes = 0;   ///< of a GPU's memory: weights, slots, scratch
};

/// One rank's part in a clip.
struct RankRecord {
  int rank = 0;
  std::string place;  ///< machine
  Degrees degrees;
  std::int64_t bytes_sent = 0, bytes_received = 0;
  double tokens_share = 1, weights_share = 1;  ///< of the preview, that it held
  double refiner_tokens_share = 1;             ///< of both branches

  nlohmann::json to_json() const;
  static RankRecord from_json(const nlohmann::json& object);
};

struct Report {
  std::string error;  ///< why there is no clip; empty: there is one
  std::vector<StageRecord> stages;
  std::vector<StepRecord> steps, refiner_steps;
  std::map<std::string, std::string> sha256;  ///< latents, audio_latents, frames, audio
  std::int64_t bytes_exchanged = 0;           ///< sent by all ranks
  std::vector<RankRecord> ranks;              ///< empty for one

  nlohmann::json to_json() const;
};

/// Highest resident memory since the last reset, and the reset (where the system allows it).
std::size_t peak_resident_bytes();
void reset_peak_resident();

}  // namespace magi
