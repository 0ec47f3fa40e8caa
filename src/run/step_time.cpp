// SPDX-License-Identifier: Apache-2.0
#include "run/step_time.h"

#include <algorithm>

namespace magi {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9;

/// One H200, medians of 272p and 540p steps; 806 TFLOP/s and 4.3 TB/s are its measured ceilings.
DeviceRates h200(DType dtype) {
  DeviceRates r;
  if (dtype == DType::bf16) {
    r.product_flops = 655 * kTera;
    r.expert_flops = 572 * kTera;
    r.attention_flops = 688 * kTera;
    r.window_attention_flops = 626 * kTera;
    r.convolution_flops = 640 * kTera;
  } else {  // the f32 units alone
    r.product_flops = r.expert_flops = r.convolution_flops = 34 * kTera;
    r.attention_flops = r.window_attention_flops = 20 * kTera;
  }
  r.moved_bytes = 1.9e12;
  r.between = 0.03;
  r.link_bytes = 55 * kGiga;
  r.peer_bytes = 300 * kGiga;
  r.disk_bytes = 3 * kGiga;
  r.basis = "rates measured on one NVIDIA H200";
  return r;
}

/// One thread of an EPYC with AVX-512 and bf16 instructions.
DeviceRates host(DType dtype, int threads) {
  const bool half = dtype == DType::bf16;
  const double n = std::max(1, threads);
  DeviceRates r;
  r.product_flops = n * (half ? 465 : 234) * kGiga;
  r.expert_flops = n * (half ? 355 : 201) * kGiga;
  r.attention_flops = r.window_attention_flops = n * (half ? 340 : 219) * kGiga;
  r.convolution_flops = n * (half ? 400 : 200) * kGiga;
  r.moved_bytes = n * 5 * kGiga;
  r.between = 0.02;
  r.disk_bytes = 1.5 * kGiga;  // with the layout for the kernels
  r.link_bytes = r.peer_bytes = 10 * kGiga;
  r.basis = fmt::format("at the rates of one thread of an EPYC with AVX-512, for {} of them", threads);
  return r;
}

/// A round of layers through slots: when each layer's compute ends, and when each slot is free. Times in
/// seconds.
class Timeline {
 public:
  Timeline(const StepTime& time, const DeviceRates& rates, const Placement& placement,
           const std::vector<std::size_t>& bytes, bool host_computes)
      : rates_(rates),
        placement_(placement),
        bytes_(bytes),
        host_computes_(host_computes),
        slots_(static_cast<std::size_t>(placement.slots)) {
    layer_seconds_ = time.compute_seconds / static_cast<double>(bytes.size());
  }

  /// → when the last layer is done.
  double round() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const Place place = placement_.of(static_cast<int>(i));
      if (place == Place::device) {
        compute_end_ += layer_seconds_;
        continue;
      }
      double& slot_free = slots_[turn_++ % slots_.size()];
      const auto size = static_cast<double>(bytes_[i]);
      double there = slot_free;
      if (place == Place::disk) there = disk_end_ = std::max(disk_end_, slot_free) + size / rates_.disk_bytes;
      if (!host_computes_) there = copy_end_ = std::max(copy_end_, there) + size / rates_.link_bytes;
      compute_end_ = std::max(compute_end_, there) + layer_seconds_;
      slot_free = compute_end_;
    }
    return compute_end_;
  }

 private:
  const DeviceRates& rates_;
  const Placement& placement_;
  const std::vector<std::size_t>& bytes_;
  bool host_computes_;
  double layer_seconds_ = 0;
  double compute_end_ = 0, copy_end_ = 0, disk_end_ = 0;
  std::vector<double> slots_;
  std::size_t turn_ = 0;
};

}  // namespace

StepWork StepWork::times(double factor) const {
  StepWork s = *this;
  for (double* part : {&s.product_flops, &s.expert_flops, &s.attention_flops, &s.window_attention_flops,
                       &s.convolution_flops, &s.moved_bytes})
    *part *= factor;
  return s;
}

void WorkCounter::begin(const OpCost& cost) {
  if (cost.name == "linear")
    work_.product_flops += cost.flops;
  else if (cost.name == "experts")
    work_.expert_flops += cost.flops;
  else if (cost.name == "attention" || cost.name == "attention_partials")
    work_.attention_flops += cost.flops;
  else if (cost.name == "window_attention")
    work_.window_attention_flops += cost.flops;
  else if (cost.name == "conv")
    work_.convolution_flops += cost.flops;
  else
    work_.moved_bytes += cost.bytes;
}

DeviceRates device_rates(std::string_view name, DType dtype, int threads) {
  if (name.empty()) return host(dtype, threads);
  DeviceRates r = h200(dtype);
  if (name.find("H200") == name.npos) r.basis += fmt::format(", as if {} were one", name);
  return r;
}

double compute_seconds(const StepWork& w, const DeviceRates& r) {
  const double busy = w.product_flops / r.product_flops + w.expert_flops / r.expert_flops +
                      w.attention_flops / r.attention_flops +
                      w.window_attention_flops / r.window_attention_flops +
                      w.convolution_flops / r.convolution_flops + w.moved_bytes / r.moved_bytes;
  return busy / (1 - r.between);
}

StepTime predict_step(const StepWork& work, const DeviceRates& rates, const Placement& placement,
                      const std::vector<std::size_t>& layer_bytes, int passes) {
  StepTime time;
  time.compute_seconds = time.seconds = compute_seconds(work, rates);
  if (!placement.streams()) return time;
  const auto from_disk = static_cast<double>(bytes_at(placement, Place::disk, layer_bytes));
  const auto from_host = static_cast<double>(bytes_at(placement, Place::host, layer_bytes));
  const bool host_computes = placement.host_computes;
  time.disk_seconds = passes * from_disk / rates.disk_bytes;
  time.copy_seconds = host_computes ? 0 : passes * (from_disk + from_host) / rates.link_bytes;

  StepTime pass = time;
  pass.compute_seconds /= passes;
  Timeline timeline(pass, rates, placement, layer_bytes, host_computes);
  const double first = timeline.round(), second = timeline.round();
  time.seconds = passes * (second - first);
  return time;
}

}  // namespace magi
