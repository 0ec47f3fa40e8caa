// SPDX-License-Identifier: Apache-2.0
#include "sample/unipc.h"

#include <algorithm>
#include <cmath>

#include "core/in_parts.h"

namespace magi {

Schedule make_schedule(std::int64_t steps, double shift) {
  require(steps >= 1 && steps <= 1000, "number of steps is {}, expected 1 to 1000", steps);
  require(std::isfinite(shift) && shift > 0, "schedule shift is {}, expected a positive number", shift);
  // The reference keeps its largest noise level as a float.
  const double sigma_max = 0.999f;
  const double increment = -sigma_max / static_cast<double>(steps);
  Schedule schedule;
  for (std::int64_t i = 0; i < steps; ++i) {
    const double linear = sigma_max + increment * static_cast<double>(i);
    const double sigma = shift * linear / (1 + (shift - 1) * linear);
    schedule.sigmas.push_back(static_cast<float>(sigma));
    schedule.timesteps.push_back(static_cast<std::int64_t>(1000 * sigma));
  }
  schedule.sigmas.push_back(0);
  require(schedule.sigmas[0] < 1 && schedule.sigmas[static_cast<std::size_t>(steps) - 1] > 0,
          "schedule shift {} leaves no usable noise levels", shift);
  return schedule;
}

UniPC::UniPC(Schedule schedule, UniPCState state, TensorPool pool)
    : schedule_(std::move(schedule)), state_(std::move(state)), pool_(std::move(pool)) {
  require(state_.step >= 0 && state_.step <= schedule_.steps(), "sampler state at step {} of {}", state_.step,
          schedule_.steps());
  require(state_.step == 0 || (state_.last_sample.defined() && state_.x0.defined() &&
                               (state_.last_order < 2 || state_.previous_x0.defined())),
          "sampler state at step {} lacks its history", state_.step);
}

double UniPC::lambda(std::int64_t i) const {
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  return std::log(1 - sigma) - std::log(sigma);  // +∞ at the last level
}

Tensor UniPC::step(const Tensor& velocity, const Tensor& latents) {
  const std::int64_t i = state_.step;
  require(i < schedule_.steps(), "sampler: all {} steps are done", schedule_.steps());
  require(velocity.shape() == latents.shape(), "sampler: velocity {} for latents {}",
          to_string(velocity.shape()), to_string(latents.shape()));
  require(i == 0 || state_.x0.shape() == latents.shape(), "sampler: latents {} continue a run of {}",
          to_string(latents.shape()), to_string(state_.x0.shape()));

  const std::int64_t order = std::min<std::int64_t>({2, schedule_.steps() - i, i + 1});
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  const Correction correct = correction();
  const Prediction predict = prediction(order);
  Tensor x0 = pool_.empty(DType::f32, latents.shape());
  Tensor sample = pool_.empty(DType::f32, latents.shape());
  Tensor next = pool_.empty(DType::f32, latents.shape());
  const float *v = velocity.data<float>(), *x = latents.data<float>();
  // What a step lacks has the factor 0.
  const auto or_latents = [&](const Tensor& t) { return t.defined() ? t.data<float>() : x; };
  const float *last_sample = or_latents(state_.last_sample), *last_x0 = or_latents(state_.x0),
              *previous_x0 = or_latents(state_.previous_x0);
  float *x0_out = x0.data<float>(), *sample_out = sample.data<float>(), *next_out = next.data<float>();
  in_ranges(latents.numel(), 1, [&](std::int64_t first, std::int64_t end) {
#pragma omp simd
    for (std::int64_t k = first; k < end; ++k) {
      const auto now = static_cast<float>(x[k] - sigma * v[k]);
      const auto corrected = static_cast<float>(correct.carry * last_sample[k] + correct.last * last_x0[k] +
                                                correct.previous * previous_x0[k] + correct.x0 * now);
      x0_out[k] = now;
      sample_out[k] = corrected;
      next_out[k] =
          static_cast<float>(predict.carry * corrected + predict.x0 * now + predict.last * last_x0[k]);
    }
  });
  state_ = {i + 1, order, std::move(sample), std::move(x0), std::move(state_.x0)};
  return next;
}

UniPC::Correction UniPC::correction() const {
  const std::int64_t i = state_.step;
  if (i == 0) return {.carry = 1};  // of the latents themselves
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  const double last_sigma = schedule_.sigmas[static_cast<std::size_t>(i - 1)];
  const double h = lambda(i) - lambda(i - 1);
  const double phi = std::expm1(-h);
  const double scale = -(1 - sigma) * phi;
  const double carry = sigma / last_sigma;
  if (state_.last_order == 1) return {carry, 0.5 * scale, 0, 0.5 * scale};

  const double r = (lambda(i - 2) - lambda(i - 1)) / h;
  const double u = phi / -h - 1;
  const double b1 = u / phi;
  const double b2 = 2 * (u / -h - 0.5) / phi;
  const double rho0 = (b2 - b1) / (r - 1);
  const double rho1 = b1 - rho0;
  return {carry, scale * (1 - rho0 / r - rho1), scale * rho0 / r, scale * rho1};
}

UniPC::Prediction UniPC::prediction(std::int64_t order) const {
  const std::int64_t i = state_.step;
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  const double next_sigma = schedule_.sigmas[static_cast<std::size_t>(i + 1)];
  const double h = lambda(i + 1) - lambda(i);
  const double scale = -(1 - next_sigma) * std::expm1(-h);
  const double carry = next_sigma / sigma;
  if (order == 1) return {carry, scale, 0};

  const double r = (lambda(i - 1) - lambda(i)) / h;
  return {carry, scale * (1 - 0.5 / r), scale * 0.5 / r};
}

}  // namespace magi
