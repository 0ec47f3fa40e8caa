// SPDX-License-Identifier: Apache-2.0
#include "sample/unipc.h"

#include <algorithm>
#include <cmath>

namespace magi {
namespace {

/// One term of a linear combination of latents.
struct Term {
  double factor;
  const Tensor& tensor;
};

/// Σ factor·tensor, accumulated in double, in the order given.
template <std::size_t N>
Tensor combine(const Term (&terms)[N]) {
  Tensor result = Tensor::empty(DType::f32, terms[0].tensor.shape());
  const float* in[N];
  for (std::size_t k = 0; k < N; ++k) in[k] = terms[k].tensor.template data<float>();
  float* out = result.data<float>();
  const std::int64_t n = result.numel();
#pragma omp parallel for schedule(static) if (n > 32768)
  for (std::int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (std::size_t k = 0; k < N; ++k) sum += terms[k].factor * in[k][i];
    out[i] = static_cast<float>(sum);
  }
  return result;
}

}  // namespace

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

UniPC::UniPC(Schedule schedule, UniPCState state) : schedule_(std::move(schedule)), state_(std::move(state)) {
  require(state_.step >= 0 && state_.step <= schedule_.steps(), "sampler state at step {} of {}", state_.step,
          schedule_.steps());
  require(state_.step == 0 || (state_.last_sample.defined() && state_.x0.defined()),
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

  Tensor x0 = combine({{1.0, latents}, {-schedule_.sigmas[static_cast<std::size_t>(i)], velocity}});
  Tensor sample = i > 0 ? correct(x0) : latents.clone();
  state_.previous_x0 = std::move(state_.x0);
  state_.x0 = std::move(x0);
  const std::int64_t order = std::min<std::int64_t>({2, schedule_.steps() - i, i + 1});
  Tensor next = predict(sample, order);
  state_.last_order = order;
  state_.last_sample = std::move(sample);
  state_.step = i + 1;
  return next;
}

Tensor UniPC::correct(const Tensor& x0) const {
  const std::int64_t i = state_.step;
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  const double last_sigma = schedule_.sigmas[static_cast<std::size_t>(i - 1)];
  const double h = lambda(i) - lambda(i - 1);
  const double phi = std::expm1(-h);
  const double scale = -(1 - sigma) * phi;
  const double carry = sigma / last_sigma;
  if (state_.last_order == 1)
    return combine({{carry, state_.last_sample}, {0.5 * scale, state_.x0}, {0.5 * scale, x0}});

  const double r = (lambda(i - 2) - lambda(i - 1)) / h;
  const double u = phi / -h - 1;
  const double b1 = u / phi;
  const double b2 = 2 * (u / -h - 0.5) / phi;
  const double rho0 = (b2 - b1) / (r - 1);
  const double rho1 = b1 - rho0;
  return combine({{carry, state_.last_sample},
                  {scale * (1 - rho0 / r - rho1), state_.x0},
                  {scale * rho0 / r, state_.previous_x0},
                  {scale * rho1, x0}});
}

Tensor UniPC::predict(const Tensor& sample, std::int64_t order) const {
  const std::int64_t i = state_.step;
  const double sigma = schedule_.sigmas[static_cast<std::size_t>(i)];
  const double next_sigma = schedule_.sigmas[static_cast<std::size_t>(i + 1)];
  const double h = lambda(i + 1) - lambda(i);
  const double scale = -(1 - next_sigma) * std::expm1(-h);
  const double carry = next_sigma / sigma;
  if (order == 1) return combine({{carry, sample}, {scale, state_.x0}});

  const double r = (lambda(i - 1) - lambda(i)) / h;
  return combine(
      {{carry, sample}, {scale * (1 - 0.5 / r), state_.x0}, {scale * 0.5 / r, state_.previous_x0}});
}

}  // namespace magi
