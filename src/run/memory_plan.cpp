// SPDX-License-Identifier: Apache-2.0
#include "run/memory_plan.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/memory_ledger.h"
#include "ops/devices.h"
#include "run/part_cache.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
/// What stays free for others where no budget is given.
constexpr std::size_t kLeftFree = 512 * kMiB;
/// Latents, texts and what the small parts of the program hold.
constexpr std::size_t kHostMargin = 64 * kMiB;

std::size_t less(std::size_t a, std::size_t b) {
  return a > b ? a - b : 0;
}

/// What the process holds beside its tensors: code, libraries, and what they took by the first call.
std::size_t base_bytes() {
  static const std::size_t base = [] {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("VmRSS:"))
        return less(std::stoull(line.substr(6)) * 1024, MemoryLedger::of({}).used_bytes());
    return std::size_t{0};
  }();
  return base;
}

std::string device_name(Device device) {
  if (device.kind == Device::Kind::cpu) return {};
  const auto devices = cuda_devices();
  const auto index = static_cast<std::size_t>(device.index);
  return index < devices.size() ? devices[index].name : "NVIDIA H200";
}

std::string place_text(const StagePlan& stage) {
  const Placement& p = stage.placement;
  const std::size_t layers = stage.memory.layer_bytes.size();
  if (layers == 0) return "resident";
  if (!p.streams()) return fmt::format("{} layers resident", layers);
  std::string text;
  const auto part = [&](int count, const char* how) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, how);
  };
  part(p.count(Place::device), "layers resident");
  part(p.count(Place::host), "streamed from host memory");
  part(p.count(Place::disk), "read from disk each pass");
  return text;
}

/// "5.1 s", "2 h 10 min", "15.5 days".
std::string seconds_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.3g} s", seconds);
  const double minutes = std::round(seconds / 60);
  if (minutes < 100) return fmt::format("{:.0f} min", minutes);
  if (minutes < 48 * 60)
    return fmt::format("{:.0f} h {:.0f} min", std::floor(minutes / 60), std::fmod(minutes, 60));
  return fmt::format("{:.3g} days", minutes / (24 * 60));
}

std::string time_text(const StagePlan& stage) {
  const StepTime& t = stage.step;
  std::string text = fmt::format("{}{}", seconds_text(t.seconds), stage.steps > 1 ? " a step" : "");
  if (stage.steps > 1) text += fmt::format(" x {}", stage.steps);
  if (t.copy_seconds > 0 || t.disk_seconds > 0)
    text += fmt::format(" (compute {:.3g}, copies {:.3g}, disk {:.3g})", t.compute_seconds, t.copy_seconds,
                        t.disk_seconds);
  return text;
}

}  // namespace

MemoryLimits memory_limits(const EngineOptions& options) {
  MemoryLimits limits;
  limits.host_given = options.ram_bytes.has_value();
  const int sharing = options.world ? options.world->local_size() : 1;
  limits.host = options.ram_bytes ? less(*options.ram_bytes, base_bytes())
                                  : MemoryLedger::of({}).used_bytes() + less(available_bytes({}), kLeftFree) /
                                                                            static_cast<std::size_t>(sharing);
  if (options.device.kind == Device::Kind::cpu) return limits;
  limits.device_given = options.vram_bytes.has_value();
  limits.device = options.vram_bytes ? less(*options.vram_bytes, kDeviceOverhead)
                                     : MemoryLedger::of(options.device).used_bytes() +
                                           less(available_bytes(options.device), kLeftFree);
  return limits;
}

void enforce(const MemoryLimits& limits, Device device) {
  if (limits.host_given) MemoryLedger::of({}).set_limit(limits.host);
  if (limits.device_given) MemoryLedger::of(device).set_limit(limits.device);
}

StagePlan plan_stage(const StageMemory& memory, const MemoryLimits& limits, Device device,
                     std::size_t loading_bytes) {
  StagePlan plan;
  plan.memory = memory;
  const std::string name(name_of(memory.stage));
  const auto& layers = memory.layer_bytes;
  const std::size_t in_layers = std::accumulate(layers.begin(), layers.end(), std::size_t{0});
  const std::size_t others = memory.bytes() - in_layers;
  const bool on_host = device.kind == Device::Kind::cpu;
  const std::size_t limit = on_host ? less(limits.host, kHostMargin) : limits.device;
  require(others <= limit,
          "{}: {} are needed beside the layers' weights, {} may be used: allow more with {}, or make a "
          "smaller or shorter clip",
          name, memory_text(others), memory_text(limit), on_host ? "--ram" : "--vram");
  if (!layers.empty()) {
    const std::size_t largest = *std::max_element(layers.begin(), layers.end());
    LayerRoom room;
    room.device = limit - others;
    room.host_computes = on_host;
    room.host = on_host ? 0 : less(limits.host, kHostMargin);
    room.loading = loading_bytes;
    room.packing = 2 * largest;
    plan.placement = place_layers(name + " model", layers, room);
    plan.placement.reading_threads = std::max(1, omp_get_max_threads() / 2);
  }
  const Placement& p = plan.placement;
  const bool reads = p.count(Place::disk) > 0;
  const std::size_t computing =
      others + slots_bytes(p) + (p.layers.empty() ? in_layers : bytes_at(p, Place::device, layers));
  plan.streamed_bytes = bytes_at(p, Place::host, layers);
  plan.read_bytes = bytes_at(p, Place::disk, layers);
  if (on_host) {
    plan.host_bytes = computing + (reads ? loading_bytes : 0);
  } else {
    plan.device_bytes = computing;
    plan.host_bytes = plan.streamed_bytes + (reads ? slots_bytes(p) + loading_bytes : 0);
  }
  return plan;
}

MemoryPlan plan_memory(const CheckpointRoot& root, const Request& request, const EngineOptions& options) {
  MemoryPlan plan;
  plan.device = options.device;
  plan.device_name = device_name(options.device);
  plan.limits = memory_limits(options);
  const DeviceRates rates = device_rates(plan.device_name, request.dtype, omp_get_max_threads());
  plan.basis = rates.basis;
  StageSizes sizes;
  if (root.has_files()) sizes = stage_sizes(Tokenizer::load(root.text_encoder() / "tokenizer.json"), request);
  for (const Stage stage : stages_of(request)) {
    const StageMemory memory = stage_memory(stage, root, request, sizes, options);
    const std::size_t loading = largest_stored_layer(stage, root);
    try {
      StagePlan& s = plan.stages.emplace_back(plan_stage(memory, plan.limits, options.device, loading));
      s.steps = static_cast<int>(stage == Stage::preview   ? request.steps
                                 : stage == Stage::refiner ? request.refiner_steps
                                                           : 1);
      s.step = predict_step(memory.work, rates, s.placement, memory.layer_bytes,
                            stage == Stage::refiner || stage == Stage::text ? 2 : 1);
    } catch (const Error& e) {
      plan.impossible.emplace_back(e.what());
    }
  }
  return plan;
}

std::string to_text(const MemoryPlan& plan) {
  const bool on_host = plan.device.kind == Device::Kind::cpu;
  std::string text = to_string(plan.device);
  if (!on_host)
    text += fmt::format(" ({}); {} {} for weights and scratch", plan.device_name,
                        plan.limits.device_given ? "its budget leaves" : "it has free",
                        memory_text(plan.limits.device));
  text += fmt::format("; host memory {} {}\n", plan.limits.host_given ? "budget" : "free",
                      memory_text(plan.limits.host));
  std::size_t most = 0;
  for (const StagePlan& s : plan.stages) most = std::max(most, s.memory.bytes());
  const bool small = most < (std::size_t{1} << 30);
  const auto size = [&](std::size_t bytes) { return static_cast<double>(bytes) / (small ? 0x1p20 : 0x1p30); };
  if (!plan.stages.empty())
    text += fmt::format("{:<8} {:>9} {:>8} {:>9} {:>9} {:>9}  {}\n", small ? "MiB" : "GiB", "weights",
                        "inputs", "scratch", "device", "host", "layers");
  double total = 0;
  for (const StagePlan& s : plan.stages) {
    text += fmt::format("{:<8} {:>9.2f} {:>8.2f} {:>9.2f} {:>9.2f} {:>9.2f}  {}\n", name_of(s.memory.stage),
                        size(s.memory.weight_bytes), size(s.memory.input_bytes), size(s.memory.scratch_bytes),
                        size(s.device_bytes), size(s.host_bytes), place_text(s));
    text += fmt::format("{:<8} {}\n", "", time_text(s));
    total += s.step.seconds * s.steps;
  }
  for (const std::string& why : plan.impossible) text += fmt::format("does not fit: {}\n", why);
  if (!plan.impossible.empty()) return text;
  text += fmt::format(
      "stages take turns, each one's weights are released before the next's; about {} of "
      "computing in all ({})\n",
      seconds_text(total), plan.basis);
  return text;
}

nlohmann::json to_json(const MemoryPlan& plan) {
  nlohmann::json j{{"device", to_string(plan.device)},
                   {"device_name", plan.device_name},
                   {"limits",
                    {{"device_bytes", plan.limits.device},
                     {"device_given", plan.limits.device_given},
                     {"host_bytes", plan.limits.host},
                     {"host_given", plan.limits.host_given}}},
                   {"basis", plan.basis},
                   {"stages", nlohmann::json::array()},
                   {"impossible", plan.impossible}};
  for (const StagePlan& s : plan.stages) {
    const int layers = static_cast<int>(s.memory.layer_bytes.size());
    const int elsewhere = s.placement.count(Place::host) + s.placement.count(Place::disk);
    j["stages"].push_back({{"name", name_of(s.memory.stage)},
                           {"weight_bytes", s.memory.weight_bytes},
                           {"input_bytes", s.memory.input_bytes},
                           {"scratch_bytes", s.memory.scratch_bytes},
                           {"device_bytes", s.device_bytes},
                           {"host_bytes", s.host_bytes},
                           {"slot_bytes", slots_bytes(s.placement)},
                           {"layers",
                            {{"resident", layers - elsewhere},
                             {"streamed", s.placement.count(Place::host)},
                             {"from_disk", s.placement.count(Place::disk)}}},
                           {"streamed_bytes", s.streamed_bytes},
                           {"read_bytes", s.read_bytes},
                           {"steps", s.steps},
                           {"step_seconds", s.step.seconds},
                           {"compute_seconds", s.step.compute_seconds},
                           {"copy_seconds", s.step.copy_seconds},
                           {"disk_seconds", s.step.disk_seconds}});
  }
  return j;
}

}  // namespace magi
