// SPDX-License-Identifier: Apache-2.0
#include "bench/backend.h"

#include <unistd.h>

#include <fstream>
#include <thread>

#include "ops/devices.h"

namespace magi {
namespace {

constexpr std::size_t kLoadingScratch = std::size_t{256} << 20;
constexpr std::size_t kReserve = std::size_t{3} << 30;  // for libraries' workspaces and a step's inputs

std::size_t host_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != line.npos)
      return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

CudaDeviceInfo cuda_device(Device device) {
  const std::vector<CudaDeviceInfo> devices = cuda_devices();
  require(device.index < static_cast<int>(devices.size()),
          "{}: this program sees {} CUDA devices; choose another or use --device cpu", to_string(device),
          devices.size());
  return devices[static_cast<std::size_t>(device.index)];
}

Arena scratch(Device device, std::size_t bytes) {
  return device.kind == Device::Kind::cpu ? Arena::on_host(bytes) : make_cuda_arena(device.index, bytes);
}

}  // namespace

// Host scratch is address space: pages are taken when they are written.
Backend::Backend(Device device)
    : arena_(std::make_unique<Arena>(
          scratch(device, device.kind == Device::Kind::cpu ? 2 * host_memory() : kLoadingScratch))),
      ops_(make_ops(*arena_)) {}

void Backend::take_scratch(std::optional<std::size_t> bytes) {
  const Device device = ops_->device();
  if (device.kind == Device::Kind::cpu) return;
  if (bytes) {
    auto arena = std::make_unique<Arena>(scratch(device, *bytes));
    ops_->use_arena(*arena);
    arena_ = std::move(arena);
    return;
  }
  const std::size_t free = cuda_device(device).free_bytes;
  require(free > kReserve + kLoadingScratch, "{}: {} MiB are free beside the weights, too few to compute in",
          to_string(device), free >> 20);
  auto arena = std::make_unique<Arena>(scratch(device, free - kReserve));
  ops_->use_arena(*arena);
  arena_ = std::move(arena);
}

std::size_t Backend::device_peak_bytes() const {
  const Device device = ops_->device();
  if (device.kind == Device::Kind::cpu) return 0;
  const CudaDeviceInfo info = cuda_device(device);
  return info.memory_bytes - info.free_bytes - arena_->capacity_bytes() + arena_->peak_bytes();
}

std::string Backend::describe(Device device) {
  if (device.kind == Device::Kind::cpu)
    return fmt::format("{}, {} threads", processor_name(), std::thread::hardware_concurrency());
  const CudaDeviceInfo info = cuda_device(device);
  return fmt::format("{}, {} GiB, sm_{}", info.name, info.memory_bytes >> 30, info.sm);
}

}  // namespace magi
