// SPDX-License-Identifier: Apache-2.0
#include "run/gpu_plan.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>

#include "io/checkpoint.h"
#include "run/stage_memory.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

/// A GPU's context, kernels and library workspaces, NCCL's among them.
constexpr double kOverhead = 2e9;
constexpr std::size_t kShown = 4;
constexpr double kBf16Bits = 16, kNvfp4Bits = 4.5;

double bits_of_experts(const CheckpointRoot& root, ExpertFormat format) {
  if (format == ExpertFormat::stored && root.has_files()) {
    const auto store = open_checkpoint(root.preview());
    for (const auto& [name, info] : store->entries())
      if (name.find(kPackedExperts) != name.npos) return kNvfp4Bits;
  }
  return format == ExpertFormat::nvfp4 ? kNvfp4Bits : kBf16Bits;
}

/// What the busiest rank holds beside weights, by a dry run.
class Scratch {
 public:
  Scratch(const CheckpointRoot& root, const Request& request, const StageSizes& sizes,
          const EngineOptions& options)
      : root_(root), request_(request), sizes_(sizes), options_(options) {}

  StageMemory memory(const DryRank& rank) const {
    return stage_memory(Stage::preview, root_, request_, sizes_, options_, rank);
  }
  double bytes(const RankPrediction& p, const std::vector<std::int64_t>& branch_rows) {
    const Degrees& d = p.degrees;
    const auto [known, added] = known_.try_emplace({d.sp, d.cfg, d.ep, p.windows});
    if (added) {
      // Of a half the first rank has the most; of the halves the longer one.
      const bool second = d.cfg == 2 && branch_rows.back() > branch_rows.front();
      const StageMemory m = memory({second ? d.sp : 0, d, p.windows});
      known->second = (options_.device.kind == Device::Kind::cpu ? kGpuScratch : 1) *
                          static_cast<double>(m.scratch_bytes) +
                      static_cast<double>(m.input_bytes + m.window_bytes);
    }
    return known->second;
  }

 private:
  const CheckpointRoot& root_;
  const Request& request_;
  const StageSizes& sizes_;
  const EngineOptions& options_;
  std::map<std::tuple<int, int, int, bool>, double> known_;
};

std::string degrees_text(const Degrees& d) {
  return fmt::format("--sp {} --cfg {} --ep {}", d.sp, d.cfg, d.ep);
}

std::string line_of(const GpuCount& count, const GpuChoice& c) {
  const RankPrediction& p = c.prediction;
  std::string text =
      fmt::format("{:>5} {:<11} {:>4} {:>4} {:>4} {:>9.3f} s {:>9.3f} s {:>5.0f} % {:>9.1f} GB", count.gpus,
                  count.network, p.degrees.sp, p.degrees.cfg, p.degrees.ep, p.seconds, p.exchange,
                  100 * p.efficiency, c.bytes / 1e9);
  if (&c == count.recommended()) text += "  recommended";
  if (c.is_default) text += "  without options";
  if (!c.fits) text += "  does not fit";
  return text + "\n";
}

}  // namespace

GpuPlan plan_gpus(const CheckpointRoot& root, const Request& request, const EngineOptions& options,
                  const std::vector<int>& gpus, const std::vector<std::string>& networks,
                  std::size_t bytes_a_gpu) {
  require(request.dtype == DType::bf16, "plan: times of many GPUs are known for bf16 alone");
  require(!gpus.empty() && !networks.empty(), "plan: no number of GPUs, or no network");
  for (const int n : gpus) require(n >= 1 && n <= kMostGpus, "plan: {} GPUs, expected 1 to {}", n, kMostGpus);
  StageSizes sizes;
  if (root.has_files()) sizes = stage_sizes(Tokenizer::load(root.text_encoder() / "tokenizer.json"), request);
  Scratch scratch(root, request, sizes, options);
  const PreviewConfig config = PreviewConfig::from(root.config());

  GpuPlan plan;
  plan.branch_rows = scratch.memory({}).branch_rows;
  plan.expert_bits = bits_of_experts(root, options.experts);
  plan.bytes_a_gpu = bytes_a_gpu;
  const double room = static_cast<double>(bytes_a_gpu) - kOverhead;
  plan.alone_seconds =
      predict_step(config, plan.branch_rows, {1, 1, 1}, network_named(networks.front()), plan.expert_bits)
          .seconds;
  for (const std::string& network : networks)
    for (const int n : gpus) {
      GpuCount& count = plan.counts.emplace_back();
      count.gpus = n;
      count.network = network;
      const double experts = expert_bytes(config, plan.expert_bits);
      const Degrees by_default = choose_degrees(n, {0, 0, 0}, experts, kExpertsShare * room);
      for (const RankPrediction& p :
           predict_all(config, plan.branch_rows, n, network_named(network), plan.expert_bits, 0)) {
        const double beside = scratch.bytes(p, plan.branch_rows), bytes = p.weight_bytes + beside;
        count.choices.push_back({p, beside, bytes, bytes <= room, p.degrees == by_default});
      }
      std::ranges::stable_partition(count.choices, &GpuChoice::fits);
    }
  return plan;
}

std::string to_text(const GpuPlan& plan) {
  std::string text = fmt::format(
      "a step of {} rows in bf16, {} bits an expert weight, {:.1f} GiB a GPU: {:.3f} s on one H200 that held "
      "it\n",
      fmt::join(plan.branch_rows, " + "), plan.expert_bits, static_cast<double>(plan.bytes_a_gpu) / (1 << 30),
      plan.alone_seconds);
  text += fmt::format("{:>5} {:<11} {:>4} {:>4} {:>4} {:>11} {:>11} {:>7} {:>12}\n", "GPUs", "network", "sp",
                      "cfg", "ep", "a step", "exchanges", "eff.", "a GPU holds");
  for (const GpuCount& count : plan.counts) {
    for (std::size_t i = 0; i < count.choices.size(); ++i)
      if (i < kShown || count.choices[i].is_default) text += line_of(count, count.choices[i]);
    if (!count.recommended())
      text += fmt::format("{:>5} {:<11} no choice fits; the smallest needs {:.1f} GB a GPU\n", count.gpus,
                          count.network,
                          std::ranges::min_element(count.choices, {}, &GpuChoice::bytes)->bytes / 1e9);
  }
  for (const GpuCount& count : plan.counts)
    if (const GpuChoice* best = count.recommended())
      text +=
          fmt::format("{} GPUs over {}: {}, {:.2f} times as fast as one\n", count.gpus, count.network,
                      degrees_text(best->prediction.degrees), plan.alone_seconds / best->prediction.seconds);
  return text;
}

nlohmann::json to_json(const GpuPlan& plan) {
  nlohmann::json j{{"branch_rows", plan.branch_rows},
                   {"expert_bits", plan.expert_bits},
                   {"bytes_a_gpu", plan.bytes_a_gpu},
                   {"alone_seconds", plan.alone_seconds},
                   {"counts", nlohmann::json::array()}};
  const auto degrees_json = [](const Degrees& d) {
    return nlohmann::json{{"sp", d.sp}, {"cfg", d.cfg}, {"ep", d.ep}};
  };
  for (const GpuCount& count : plan.counts) {
    nlohmann::json& c =
        j["counts"].emplace_back(nlohmann::json{{"gpus", count.gpus},
                                                {"network", count.network},
                                                {"scratch_bytes", count.choices.front().scratch_bytes},
                                                {"recommended", nullptr},
                                                {"choices", nlohmann::json::array()}});
    if (const GpuChoice* best = count.recommended())
      c["recommended"] = degrees_json(best->prediction.degrees);
    for (const GpuChoice& choice : count.choices) {
      const RankPrediction& p = choice.prediction;
      c["choices"].push_back({{"degrees", degrees_json(p.degrees)},
                              {"step_seconds", p.seconds},
                              {"compute_seconds", p.compute},
                              {"exchange_seconds", p.exchange},
                              {"bytes_sent", p.bytes_sent},
                              {"weight_bytes", p.weight_bytes},
                              {"scratch_bytes", choice.scratch_bytes},
                              {"bytes", choice.bytes},
                              {"efficiency", p.efficiency},
                              {"fits", choice.fits},
                              {"default", choice.is_default}});
    }
  }
  return j;
}

}  // namespace magi
