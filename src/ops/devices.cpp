// SPDX-License-Identifier: Apache-2.0
#include "ops/devices.h"

#include <charconv>

namespace magi {

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {Device::Kind::cuda, 0};
  Device device{Device::Kind::cuda, -1};
  if (text.starts_with("cuda:")) {
    const auto [end, failure] = std::from_chars(text.data() + 5, text.data() + text.size(), device.index);
    if (failure != std::errc() || end != text.data() + text.size()) device.index = -1;
  }
  require(device.index >= 0, "there is no device \"{}\"; choose cpu, cuda or cuda:0, cuda:1, …", text);
  return device;
}

std::string to_string(Device device) {
  return device.kind == Device::Kind::cpu ? "cpu" : fmt::format("cuda:{}", device.index);
}

std::unique_ptr<Ops> make_ops(Arena& arena) {
  return arena.device().kind == Device::Kind::cuda ? make_cuda_ops(arena) : make_cpu_ops(arena);
}

}  // namespace magi
