// SPDX-License-Identifier: Apache-2.0
#include "bench/bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/backend.h"
#include "bench/ranks.h"
#include "bench/workload.h"
#include "core/memory_ledger.h"
#include "io/atomic_file.h"
#include "ops/devices.h"

namespace magi {
namespace {

constexpr std::array<std::string_view, 5> kModels{"preview", "refiner", "text", "turbo", "audio"};
constexpr std::int64_t kMaxSide = 8192, kMaxSteps = 1000, kMaxTextTokens = 1 << 20;

struct Preset {
  std::string_view name;
  std::int64_t width, height, refined_width, refined_height;
};
constexpr std::array<Preset, 3> kPresets{
    {{"272p", 448, 256, 448, 256}, {"540p", 896, 512, 896, 512}, {"1080p", 896, 512, 1920, 1088}}};

void check_options(const BenchOptions& o) {
  require(o.steps > kDroppedSteps && o.steps <= kMaxSteps,
          "bench: {} steps, expected {} to {}: the first {} do not count", o.steps, kDroppedSteps + 1,
          kMaxSteps, kDroppedSteps);
  const std::int64_t tokens = o.text_tokens.value_or(1);
  require(tokens > 0 && tokens <= kMaxTextTokens, "bench: {} text tokens, expected 1 to {}", tokens,
          kMaxTextTokens);
  require(o.distinct > 0, "bench: {} distinct layers, expected at least 1", o.distinct);
  require(
      !o.vram_bytes || (o.model == BenchModel::preview && o.device.kind == Device::Kind::cuda && !o.weights),
      "bench: --vram streams the random preview's layers to a GPU; drop it, or choose --synthetic --device "
      "cuda");
}

void require_finite_result(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.dtype() == DType::f32)
      for (const float v : tensor.values<float>())
        require(std::isfinite(v), "bench: the result is not finite; the times mean nothing");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

/// What is computed in: the audio decoder knows f32 alone.
DType dtype_of(const BenchOptions& o) {
  return o.model == BenchModel::audio ? DType::f32 : o.dtype;
}

StreamResult stream_result(const Placement& placement, const TransferTimes& times, std::int64_t steps) {
  StreamResult r;
  r.streamed_layers = placement.count(Place::host);
  r.resident_layers = placement.count(Place::device);
  r.gigabytes_a_second = static_cast<double>(times.bytes) / times.copy_ms / 1e6;
  r.copy_seconds = times.copy_ms / 1e3 / static_cast<double>(steps);
  r.stall_seconds = times.stall_ms / 1e3 / static_cast<double>(steps);
  return r;
}

std::string weights_text(const BenchOptions& o) {
  if (o.weights) return o.weights->string();
  if (o.model == BenchModel::turbo || o.model == BenchModel::audio) return "random weights";
  const std::string text = fmt::format(
      "random weights, {} distinct a kind of layer, shared by all layers of the kind", o.distinct);
  return o.model == BenchModel::preview ? fmt::format("{}; experts {}", text, name_of(o.experts)) : text;
}

bool of_many_ranks(const BenchOptions& o) {
  return o.world && !o.world->alone();
}

Parallel parallel_of(const BenchOptions& o, Ops& ops) {
  require(o.model == BenchModel::preview || o.model == BenchModel::refiner,
          "bench: only the preview's and the refiner's steps are shared between ranks");
  Parallel parallel(data_group(*o.world, ops), choose_degrees(o.world->size(), o.degrees));
  parallel.set_windows(o.windows);
  parallel.set_head_groups(o.head_groups);
  parallel.set_expert_overlap(o.expert_overlap);
  return parallel;
}

/// The steps, their times and what they computed, of all ranks.
void time_steps(const BenchOptions& options, const Workload& workload, const Parallel& parallel,
                Progress& progress, BenchResult& result) {
  const bool many = of_many_ranks(options);
  progress.stage("steps", options.steps);
  const std::vector<Tensor> last = workload.run(options.steps, [&](double seconds) {
    progress.check();
    result.seconds.push_back(seconds);
    if (many) options.world->set_stage(fmt::format("step {}", result.seconds.size() + 1));
    if (static_cast<std::int64_t>(result.seconds.size()) == kDroppedSteps)
      parallel.all().transport().reset_traffic();
    progress.advance(static_cast<std::int64_t>(result.seconds.size()));
  });
  require_finite_result(last);
  if (many) {
    result.ranks = gather_rank_reports(*options.world, parallel.all(), workload.share, result.seconds,
                                       options.steps - kDroppedSteps);
    if (options.world->rank() == 0) result.seconds = slowest(result.ranks);
  }
  const std::vector<double> counted(result.seconds.begin() + kDroppedSteps, result.seconds.end());
  result.mean = std::accumulate(counted.begin(), counted.end(), 0.0) / static_cast<double>(counted.size());
  result.median = median(counted);
  result.digest = options.digest(last);
}

}  // namespace

std::string fnv1a(const std::vector<Tensor>& result) {
  std::uint64_t hash = 14695981039346656037u;
  for (const Tensor& tensor : result) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
    for (std::size_t i = 0; i < tensor.bytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  }
  return fmt::format("fnv1a:{:016x}", hash);
}

BenchModel bench_model(std::string_view name) {
  const auto found = std::find(kModels.begin(), kModels.end(), name);
  require(found != kModels.end(), "bench: there is no \"{}\"; choose one of {}", name,
          fmt::join(kModels, ", "));
  return static_cast<BenchModel>(found - kModels.begin());
}

std::string_view name_of(BenchModel model) {
  return kModels.at(static_cast<std::size_t>(model));
}

ClipSize clip_size(const BenchOptions& o) {
  const auto preset =
      std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& p) { return p.name == o.preset; });
  require(preset != kPresets.end(), "bench: there is no preset \"{}\"; choose 272p, 540p or 1080p", o.preset);
  const bool refined =
      o.model == BenchModel::refiner || (o.model == BenchModel::turbo && o.preset == "1080p");
  ClipSize clip;
  clip.width = o.width.value_or(refined ? preset->refined_width : preset->width);
  clip.height = o.height.value_or(refined ? preset->refined_height : preset->height);
  for (const std::int64_t side : {clip.width, clip.height})
    require(side >= 16 && side <= kMaxSide && side % 16 == 0,
            "bench: a clip of {}x{}; sides are multiples of 16 up to {}", clip.width, clip.height, kMaxSide);
  require(o.seconds >= 0.02 && o.seconds <= 60, "bench: {} seconds, expected 0.02 to 60", o.seconds);
  clip.audio_latents = std::max<std::int64_t>(1, std::llrint(25 * o.seconds));
  clip.latents = (clip.audio_latents - 1) / 8 + 1;
  if (refined) clip.latents = 2 * clip.latents - 1;
  return clip;
}

Device device_of_rank(const BenchOptions& o) {
  Device device = o.device;
  if (o.world && device.kind == Device::Kind::cuda) device.index += o.world->local_rank();
  return device;
}

BenchResult run_bench(const BenchOptions& options, Progress& progress) {
  check_options(options);
  if (options.trace) const AtomicFile writable(*options.trace);
  BenchResult result;
  Backend backend(device_of_rank(options));
  Parallel parallel;
  if (of_many_ranks(options)) {
    parallel = parallel_of(options, backend.ops());
    result.degrees = parallel.degrees();
  }
  if (options.vram_bytes) MemoryLedger::of(backend.ops().device()).set_limit(*options.vram_bytes);
  progress.stage("weights", 1);
  const auto start = std::chrono::steady_clock::now();
  const Workload workload = make_workload(backend.ops(), options, parallel, progress);
  backend.take_scratch(workload.scratch_bytes);
  result.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.sizes = workload.sizes;

  time_steps(options, workload, parallel, progress, result);
  if (workload.take_transfer_times)
    result.streamed = stream_result(workload.placement, workload.take_transfer_times(), options.steps);

  if (options.operations || options.trace) {
    progress.stage("profiled step", 1);
    OpProfiler profiler(backend.ops());
    workload.run(1, [](double) {});
    result.profile = profiler.finish();
  }
  result.scratch_bytes = backend.arena().peak_bytes();
  result.device_bytes = backend.device_peak_bytes();
  if (options.trace)
    write_trace(*result.profile, fmt::format("{} step", name_of(options.model)), *options.trace);
  return result;
}

nlohmann::json to_json(const BenchOptions& o, const BenchResult& r) {
  nlohmann::json j{{"model", name_of(o.model)},
                   {"device", to_string(o.device)},
                   {"device_name", Backend::describe(o.device)},
                   {"dtype", name_of(dtype_of(o))},
                   {"weights", weights_text(o)},
                   {"sizes", r.sizes},
                   {"step_seconds", r.seconds},
                   {"dropped_steps", kDroppedSteps},
                   {"mean_seconds", r.mean},
                   {"median_seconds", r.median},
                   {"digest", r.digest},
                   {"load_seconds", r.load_seconds},
                   {"scratch_bytes", r.scratch_bytes},
                   {"device_peak_bytes", r.device_bytes}};
  if (!r.ranks.empty()) {
    j["degrees"] = {{"sp", r.degrees.sp}, {"cfg", r.degrees.cfg}, {"ep", r.degrees.ep}};
    j["ranks"] = r.ranks;
  }
  if (r.streamed)
    j["streamed"] = {{"resident_layers", r.streamed->resident_layers},
                     {"streamed_layers", r.streamed->streamed_layers},
                     {"link_gigabytes_a_second", r.streamed->gigabytes_a_second},
                     {"copy_seconds_a_step", r.streamed->copy_seconds},
                     {"stall_seconds_a_step", r.streamed->stall_seconds}};
  if (!o.weights) j["distinct_layers"] = o.distinct;
  if (o.model == BenchModel::preview) j["experts"] = name_of(o.experts);
  if (r.profile) {
    j["profiled_step_ms"] = r.profile->milliseconds;
    j["operations"] = json_of(totals_by_operation(*r.profile));
    j["shapes"] = json_of(totals_by_cost(*r.profile));
  }
  return j;
}

void write_json(const BenchOptions& o, const BenchResult& r, const std::filesystem::path& file) {
  const std::string text = to_json(o, r).dump(2) + "\n";
  AtomicFile out(file);
  out.write(text.data(), text.size());
  out.commit();
}

std::string to_text(const BenchOptions& o, const BenchResult& r) {
  std::string text = fmt::format("{} on {} ({}), {}, {}\n", name_of(o.model), to_string(o.device),
                                 Backend::describe(o.device), name_of(dtype_of(o)), r.sizes.dump());
  text += fmt::format("{}; ready after {:.1f} s\n", weights_text(o), r.load_seconds);
  for (std::size_t i = 0; i < r.seconds.size(); ++i)
    text += fmt::format("step {:<3} {:>10.4f} s{}\n", i + 1, r.seconds[i],
                        static_cast<std::int64_t>(i) < kDroppedSteps ? "  (does not count)" : "");
  text += fmt::format("mean {:.4f} s, median {:.4f} s; scratch {:.2f} GB; result {}\n", r.mean, r.median,
                      static_cast<double>(r.scratch_bytes) / 1e9, r.digest);
  if (r.device_bytes > 0)
    text += fmt::format("device memory at most {:.2f} GiB\n", static_cast<double>(r.device_bytes) / 0x1p30);
  if (r.streamed)
    text += fmt::format(
        "{} layers resident, {} streamed: {:.1f} GB/s over the link, {:.3f} s of copies a step, of which "
        "{:.3f} s "
        "held up the computation ({:.1f} % overlapped)\n",
        r.streamed->resident_layers, r.streamed->streamed_layers, r.streamed->gigabytes_a_second,
        r.streamed->copy_seconds, r.streamed->stall_seconds,
        100 * (1 - r.streamed->stall_seconds / r.streamed->copy_seconds));
  if (!r.ranks.empty())
    text += fmt::format("{} ranks, sp {} cfg {} ep {}", r.ranks.size(), r.degrees.sp, r.degrees.cfg,
                        r.degrees.ep) +
            ranks_table(r.ranks, r.mean, o.alone_seconds);
  if (r.profile && o.operations)
    text += fmt::format("\none more step, each operation timed: {:.2f} ms\n{}", r.profile->milliseconds,
                        table_of(*r.profile));
  return text;
}

}  // namespace magi
