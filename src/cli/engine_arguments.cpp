// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_arguments.h"

#include <omp.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "ops/devices.h"
#include "run/compute_device.h"

namespace magi {
namespace {

constexpr int kMostThreads = 1024;  // with tens of thousands the OpenMP library dies or does not come back

}  // namespace

void add_threads_option(CLI::App& c) {
  c.add_option_function<int>(
       "--threads", [](const int& threads) { omp_set_num_threads(threads); }, "CPU threads (default: all)")
      ->check(CLI::Range(1, kMostThreads));
}

void limit_threads() {
  if (omp_get_max_threads() > kMostThreads) omp_set_num_threads(omp_get_num_procs());
}

std::size_t budget_bytes(double gib, const char* option) {
  require(gib >= 1.0 / 64 && gib <= 1e6, "{} {}: a budget is a number of GiB, at least 0.016", option, gib);
  return static_cast<std::size_t>(gib * (1 << 30));
}

EngineOptions EngineArguments::options(std::shared_ptr<World> world) const {
  EngineOptions options;
  options.device = !device.empty() ? parse_device(device) : vram ? parse_device("cuda") : default_device();
  require(!vram || options.device.kind == Device::Kind::cuda,
          "--vram: the CPU has none; --ram bounds its memory");
  require(
      !world || !world->alone() || std::max({degrees.sp, degrees.cfg, degrees.ep}) <= 1,
      "--sp, --cfg and --ep share a clip among ranks, and there is one rank: start several with mpirun, srun "
      "or torchrun (guidance scales are --cfg-video and --cfg-audio)");
  if (vram) options.vram_bytes = budget_bytes(*vram, "--vram");
  if (ram) options.ram_bytes = budget_bytes(*ram, "--ram");
  if (!experts.empty()) options.experts = expert_format(experts);
  options.degrees = degrees;
  if (world && options.device.kind == Device::Kind::cuda) options.device.index += world->local_rank();
  options.world = std::move(world);
  return options;
}

void add_engine_arguments(CLI::App& c, EngineArguments& a) {
  c.option_defaults()->group("Computing");
  c.add_option("--device", a.device,
               "Where to compute: cpu, cuda or cuda:N (default: the first GPU, else the CPU)")
      ->type_name("DEVICE");
  c.add_option("--experts", a.experts,
               "How expert weights are kept: bf16, nvfp4 (four bits, a quarter of the memory) or nvfp4-fake "
               "(those numbers as bf16); default: as the root has them")
      ->check(CLI::IsMember({"bf16", "nvfp4", "nvfp4-fake"}));
  c.add_option("--vram", a.vram,
               "GiB of the GPU's memory to stay within (default: what is free); layers that do not fit are "
               "streamed from host memory")
      ->type_name("GIB");
  c.add_option(
       "--ram", a.ram,
       "GiB of host memory to stay within (default: what is free); layers that do not fit are read from "
       "disk as they are needed")
      ->type_name("GIB");
  add_threads_option(c);
}

}  // namespace magi
