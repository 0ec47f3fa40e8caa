// SPDX-License-Identifier: Apache-2.0
#include "bench/rank_model.h"

#include <algorithm>
#include <numeric>

namespace magi {
namespace {

using std::int64_t;

/// Multiply-adds a row, of one layer.
struct LayerWork {
  double linear = 0, experts = 0;
};

LayerWork work_of(const PreviewConfig& c, bool has_experts) {
  const auto d = static_cast<double>(c.hidden);
  LayerWork w;
  w.linear = d * static_cast<double>(c.attention.qkv_size() + c.attention.heads + c.attention.q_size());
  if (!has_experts) {
    w.linear += 3 * d * static_cast<double>(c.intermediate);
    return w;
  }
  w.linear += d * static_cast<double>(2 * c.moe_width + 3 * c.shared_hidden + 3 * c.modality_hidden);
  w.experts = 3 * static_cast<double>(c.top_k * c.moe_width * c.expert_hidden);
  return w;
}

/// Of a layer with experts.
double expert_parameters(const PreviewConfig& c) {
  return 3.0 * static_cast<double>(c.moe_width * c.experts * c.expert_hidden);
}

double other_parameters(const PreviewConfig& c, bool has_experts, bool per_modality) {
  const double attention =
      work_of(c, true).linear -
      static_cast<double>(c.hidden) *
          static_cast<double>(2 * c.moe_width + 3 * c.shared_hidden + 3 * c.modality_hidden);
  const auto d = static_cast<double>(c.hidden);
  const double groups = per_modality ? kModalities : 1;
  if (!has_experts) return groups * (attention + 3 * d * static_cast<double>(c.intermediate));
  return groups * attention +
         d * static_cast<double>(2 * c.moe_width + 3 * c.shared_hidden + 3 * kModalities * c.modality_hidden);
}

/// Seconds of an exchange in which a rank sends `bytes` to each of its group's `size` − 1 others, neighbours
/// in rank.
double exchange_seconds(const Network& n, int size, double bytes, bool direct) {
  if (size == 1) return 0;
  if (direct) return (size - 1) * bytes / n.direct + n.latency;
  const int near = std::min(size, n.gpus_a_node) - 1, far = size - 1 - near;
  return std::max(near * bytes / n.inside, far > 0 ? far * bytes / n.between : 0) + n.latency;
}

}  // namespace

Network network_named(std::string_view name) {
  if (name == "nvlink") return {"nvlink", 1 << 20, 310e9, 310e9, 20e-6, 450e9};
  if (name == "infiniband") return {"infiniband", 8, 310e9, 45e9, 40e-6, 450e9};
  if (name == "ethernet") return {"ethernet", 8, 310e9, 1.5e9, 100e-6, 450e9};
  require(name == "pcie",
          "there are no figures for the network \"{}\"; choose nvlink, infiniband, ethernet or pcie", name);
  return {"pcie", 8, 22e9, 22e9, 30e-6};
}

double expert_bytes(const PreviewConfig& config, double expert_bits) {
  double layers = 0;
  for (int64_t i = 0; i < config.layers; ++i) layers += config.has_experts(i) ? 1 : 0;
  return layers * expert_parameters(config) * expert_bits / 8;
}

RankPrediction predict_step(const PreviewConfig& c, std::vector<int64_t> branches, const Degrees& degrees,
                            const Network& network, double expert_bits, const GpuRates& rates) {
  const int ranks = degrees.sp * degrees.cfg;
  const bool direct = network.direct > 0 && std::max(degrees.sp, degrees.ep) <= static_cast<int>(kRowParts) &&
                      ranks <= network.gpus_a_node;
  // The busiest rank is the first one: of the longer branch, with one row, head and MoE head more where they
  // do not divide.
  const int64_t all_rows = std::accumulate(branches.begin(), branches.end(), int64_t{0});
  if (degrees.cfg == 2) branches = {*std::max_element(branches.begin(), branches.end())};
  const int64_t half = std::accumulate(branches.begin(), branches.end(), int64_t{0});
  const auto rows = static_cast<double>(share_of(half, degrees.sp, 0).count);
  const auto heads = static_cast<double>(share_of(c.attention.heads, degrees.sp, 0).count);
  const auto moe_heads = static_cast<double>(share_of(c.moe_heads, degrees.ep, 0).count);
  const auto group_rows = static_cast<double>(all_rows) * degrees.ep / ranks;
  double pairs = 0;
  for (const int64_t n : branches) pairs += static_cast<double>(n) * static_cast<double>(n);

  RankPrediction p;
  p.windows = direct;
  p.degrees = degrees;
  const auto head_dim = static_cast<double>(c.attention.head_dim);
  const double expert_width = moe_heads * static_cast<double>(c.moe_width) / static_cast<double>(c.moe_heads);
  for (int64_t i = 0; i < c.layers; ++i) {
    const bool moe = c.has_experts(i);
    const LayerWork work = work_of(c, moe);
    p.compute += 2 * rows * work.linear / rates.linear + 4 * pairs * heads * head_dim / rates.attention +
                 rows * rates.row_layer;
    p.weight_bytes += 2 * other_parameters(c, moe, c.per_modality(i));
    // Rows to heads and back: q, k, v and a gate, and the output, in bf16, to each other rank its heads.
    if (degrees.sp > 1) {
      const double out = 2 * rows * (3 * heads * head_dim + 8), back = 2 * rows * heads * head_dim;
      p.exchange += exchange_seconds(network, degrees.sp, out, direct) +
                    exchange_seconds(network, degrees.sp, back, direct);
      p.bytes_sent += (degrees.sp - 1) * (out + back);
      // Packing: what norm and rotary write costs nothing more than in place, but the values come along.
      if (!direct) p.compute += 2 * degrees.sp * (out / 3 + back) / rates.copy_bytes;
    }
    if (!moe) continue;
    p.weight_bytes += expert_parameters(c) * expert_bits / 8 * moe_heads / static_cast<double>(c.moe_heads);
    p.compute += 2 * group_rows * work.experts * moe_heads / static_cast<double>(c.moe_heads) / rates.experts;
    if (degrees.ep > 1) {
      const double one_way = 2 * rows * expert_width;
      p.exchange += 2 * exchange_seconds(network, degrees.ep, one_way, direct);
      p.bytes_sent += 2 * (degrees.ep - 1) * one_way;
      if (!direct) p.compute += 2 * 2 * degrees.ep * one_way / rates.copy_bytes;
    }
  }
  if (degrees.sp > 1 || degrees.ep > 1) p.compute *= 1 + rates.unequal;
  p.compute += rates.host_step + static_cast<double>(all_rows) * rates.host_row;
  p.seconds = p.compute + p.exchange;
  return p;
}

std::vector<RankPrediction> predict_all(const PreviewConfig& config, const std::vector<int64_t>& rows,
                                        int gpus, const Network& network, double expert_bits,
                                        double bytes_a_gpu, const GpuRates& rates) {
  const double alone = predict_step(config, rows, {1, 1, 1}, network, expert_bits, rates).seconds;
  std::vector<RankPrediction> list;
  for (const Degrees& d : possible_degrees(gpus)) {
    if (d.ep > config.moe_heads) continue;
    list.push_back(predict_step(config, rows, d, network, expert_bits, rates));
    list.back().efficiency = alone / list.back().seconds / gpus;
  }
  require(!list.empty(),
          "{} GPUs are more than one clip can use: {} attention heads and two guidance branches", gpus,
          config.attention.heads);
  std::stable_sort(list.begin(), list.end(), [&](const RankPrediction& a, const RankPrediction& b) {
    const auto too_large = [&](const RankPrediction& p) {
      return bytes_a_gpu > 0 && p.weight_bytes > bytes_a_gpu;
    };
    return too_large(a) != too_large(b) ? too_large(b) : a.seconds < b.seconds;
  });
  return list;
}

std::string table_of(const std::vector<RankPrediction>& predictions, std::size_t count, double bytes_a_gpu) {
  std::string text = fmt::format("{:>4} {:>4} {:>4} {:>10} {:>10} {:>10} {:>10} {:>10} {:>6}\n", "sp", "cfg",
                                 "ep", "step", "computing", "exchanges", "sent", "weights", "eff.");
  for (std::size_t i = 0; i < std::min(count, predictions.size()); ++i) {
    const RankPrediction& p = predictions[i];
    text += fmt::format(
        "{:>4} {:>4} {:>4} {:>8.3f} s {:>8.3f} s {:>8.3f} s {:>7.2f} GB {:>7.1f} GB {:>4.0f} %{}\n",
        p.degrees.sp, p.degrees.cfg, p.degrees.ep, p.seconds, p.compute, p.exchange, p.bytes_sent / 1e9,
        p.weight_bytes / 1e9, 100 * p.efficiency,
        bytes_a_gpu > 0 && p.weight_bytes > bytes_a_gpu ? "  does not fit" : "");
  }
  return text;
}

}  // namespace magi
