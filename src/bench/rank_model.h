// SPDX-License-Identifier: Apache-2.0
// How long a step of the preview takes over many GPUs, by counting: products and bytes of the busiest rank,
// at rates that were measured on one GPU; messages at the rates of the links that they cross. docs/ranks.md
// compares it with runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/preview.h"

namespace magi {

/// What one GPU does in a second; the defaults are an H200's in steps at 540p (docs/performance.md).
struct GpuRates {
  double linear = 680e12, attention = 693e12, experts = 578e12;  ///< floating-point operations
  double row_layer =
      89e-9;  ///< seconds that a row takes a layer beside products (mHC, norms, rotary, router, sums)
  double copy_bytes = 3.4e12;                   ///< read and written, packing for an exchange
  double host_step = 0.03, host_row = 0.12e-6;  ///< seconds on the host between steps, on every rank
  double unequal = 0.015;  ///< by which GPUs take longer that wait for the slowest in every layer
};

/// Links between GPUs. Bytes a second that a GPU sends, while all do.
struct Network {
  std::string name;
  int gpus_a_node = 8;
  double inside = 0;   ///< in messages to the GPUs of its node
  double between = 0;  ///< to those of others
  double latency = 0;  ///< seconds of an exchange, however small
  /// Where all GPUs are of one node, kernels write what they compute where it is needed: bytes a second of
  /// what they take longer for it; 0: they do not.
  double direct = 0;
};
/// "nvlink" (one NVLink domain, however large); nodes of eight over NVLink, between them "infiniband" (400
/// Gb/s a GPU) or "ethernet" (100 Gb/s a node); "pcie". Throws Error for other names.
Network network_named(std::string_view name);

/// All layers' experts.
double expert_bytes(const PreviewConfig& config, double expert_bits);

struct RankPrediction {
  Degrees degrees;
  bool windows = false;              ///< what is exchanged is written where it is needed, else messages
  double seconds = 0;                ///< a step
  double compute = 0, exchange = 0;  ///< of it, on the busiest rank; exchanges as if nothing hid them
  double bytes_sent = 0;             ///< by a rank in a step
  double weight_bytes = 0;           ///< that a rank holds
  double efficiency = 0;             ///< of so many times one GPU
};

/// `rows`: of the two guidance branches. `expert_bits`: a weight (16, or 4.5 packed).
RankPrediction predict_step(const PreviewConfig& config, std::vector<std::int64_t> rows,
                            const Degrees& degrees, const Network& network, double expert_bits,
                            const GpuRates& rates = {});

/// Every choice for `gpus` GPUs with MoE heads for each, the quickest first;
/// those whose weights exceed `bytes_a_gpu` (0: no limit) last.
std::vector<RankPrediction> predict_all(const PreviewConfig& config, const std::vector<std::int64_t>& rows,
                                        int gpus, const Network& network, double expert_bits,
                                        double bytes_a_gpu, const GpuRates& rates = {});

/// For people: the first `count` of them.
std::string table_of(const std::vector<RankPrediction>& predictions, std::size_t count, double bytes_a_gpu);

}  // namespace magi
