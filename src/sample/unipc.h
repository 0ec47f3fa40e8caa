// SPDX-License-Identifier: Apache-2.0
// The sampler's solver: flow-matching UniPC of order 2, variant bh2, predicting x₀ (pipeline.md section 3).
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor_pool.h"

namespace magi {

/// Noise levels of a run. `sigmas` has steps + 1 entries, the last one 0; `timesteps` has one entry a step,
/// 0…999.
struct Schedule {
  std::vector<float> sigmas;
  std::vector<std::int64_t> timesteps;
  std::int64_t steps() const { return static_cast<std::int64_t>(timesteps.size()); }
};

/// steps in 1…1000 and shift > 0, else Error.
Schedule make_schedule(std::int64_t steps, double shift);

/// All that a run needs to go on from where it was.
struct UniPCState {
  std::int64_t step = 0;        ///< next step
  std::int64_t last_order = 0;  ///< order of the last prediction
  Tensor last_sample;           ///< corrected sample of the last step, undefined before the first
  Tensor x0;                    ///< prediction of x₀ at the last step
  Tensor previous_x0;           ///< and at the one before
};

class UniPC {
 public:
  /// What it returns and keeps lies in the pool's memory.
  explicit UniPC(Schedule schedule, UniPCState state = {}, TensorPool pool = {});

  /// Takes the model's velocity at the current latents (both f32 on the host, any shape, contiguous) and
  /// returns the latents of the next noise level. Throws when all steps are done. Sums are taken in double.
  Tensor step(const Tensor& velocity, const Tensor& latents);

  const Schedule& schedule() const { return schedule_; }
  /// Tensors in the state are never written after they were made: a copy of the struct is a snapshot.
  const UniPCState& state() const { return state_; }

 private:
  /// x̂ = carry·(last corrected sample) + x0·x₀ + last·(x₀ of the last step) + previous·(of the one before).
  struct Correction {
    double carry = 0, last = 0, previous = 0, x0 = 0;
  };
  /// The next latents = carry·x̂ + x0·x₀ + last·(x₀ of the last step).
  struct Prediction {
    double carry = 0, x0 = 0, last = 0;
  };
  Correction correction() const;
  Prediction prediction(std::int64_t order) const;
  double lambda(std::int64_t i) const;

  Schedule schedule_;
  UniPCState state_;
  TensorPool pool_;
};

}  // namespace magi
