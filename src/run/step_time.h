// SPDX-License-Identifier: Apache-2.0
// How long a step will take, told beforehand: the work that a dry run counts, over the rates that were
// measured (docs/performance.md).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "model/placement.h"
#include "ops/ops.h"

namespace magi {

/// What the operations of a step cost, by what bounds them.
struct StepWork {
  double product_flops = 0;           ///< linear layers
  double expert_flops = 0;            ///< with sort and combine
  double attention_flops = 0;         ///< full
  double window_attention_flops = 0;  ///< the refiner's
  double convolution_flops = 0;
  double moved_bytes = 0;  ///< of all else: norms, mHC, rotary, router, …

  /// So many times as much; 1.0/n: the share of one of n devices.
  StepWork times(double factor) const;
};

/// Adds up the work of the operations that it observes; with a counting arena nothing is computed.
class WorkCounter final : public OpObserver {
 public:
  explicit WorkCounter(Ops& ops) : ops_(ops) { ops_.observe(this); }
  ~WorkCounter() override { ops_.observe(nullptr); }
  WorkCounter(const WorkCounter&) = delete;
  WorkCounter& operator=(const WorkCounter&) = delete;

  void begin(const OpCost& cost) override;
  void end() override {}
  const StepWork& work() const { return work_; }

 private:
  Ops& ops_;
  StepWork work_;
};

/// Rates of the field's name, a second.
struct DeviceRates {
  double product_flops = 0, expert_flops = 0, attention_flops = 0, window_attention_flops = 0,
         convolution_flops = 0;
  double moved_bytes = 0;
  double between = 0;     ///< share of a step in which no operation runs
  double link_bytes = 0;  ///< host to device
  double peer_bytes = 0;  ///< sent by each device to the others at once
  double disk_bytes = 0;  ///< assumed: disks differ too much
  std::string basis;      ///< where the figures are from, for people
};

/// `name`: as the driver spells it; "" for the host, whose rates are those of one thread times `threads`.
DeviceRates device_rates(std::string_view name, DType dtype, int threads = 1);

struct StepTime {
  double compute_seconds = 0;  ///< were every layer resident
  double copy_seconds = 0;     ///< of the layers that come through slots
  double disk_seconds = 0;     ///< of the layers that are read
  double seconds = 0;          ///< of a step, once the first is over
};

double compute_seconds(const StepWork& work, const DeviceRates& rates);

/// `layer_bytes` and `placement` as in place_layers(); `passes`: how often a step goes through the layers
/// (the refiner: twice). Layers are taken to compute equally long; a copy into a slot begins when the layer
/// before has left it.
StepTime predict_step(const StepWork& work, const DeviceRates& rates, const Placement& placement = {},
                      const std::vector<std::size_t>& layer_bytes = {}, int passes = 1);

}  // namespace magi
