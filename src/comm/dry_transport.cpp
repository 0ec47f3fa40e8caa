// SPDX-License-Identifier: Apache-2.0
#include "comm/dry_transport.h"

#include <cstdint>

namespace magi {
namespace {

/// Holds its parts as long as one that travels does: they are scratch memory.
class DryExchange final : public Exchange {
 public:
  DryExchange(std::vector<Part> send, std::vector<Part> receive)
      : send_(std::move(send)), receive_(std::move(receive)) {}
  void wait(double) override {
    send_.clear();
    receive_.clear();
  }

 private:
  std::vector<Part> send_, receive_;
};

class DryWindow final : public Window {
 public:
  DryWindow(Device device, std::size_t bytes) : device_(device), bytes_(bytes) {}
  /// Addresses of nothing, but apart from each other.
  std::byte* on(int rank) const override {
    return reinterpret_cast<std::byte*>((static_cast<std::uintptr_t>(rank) + 1) << 40);
  }
  std::size_t bytes() const override { return bytes_; }
  Device device() const override { return device_; }
  void close() override {}

 private:
  Device device_;
  std::size_t bytes_;
};

}  // namespace

std::unique_ptr<Exchange> DryTransport::start(std::vector<Part> send, std::vector<Part> receive,
                                              const std::string&) {
  return std::make_unique<DryExchange>(std::move(send), std::move(receive));
}

std::shared_ptr<Window> DryTransport::make_window(std::size_t bytes) {
  window_bytes_ += bytes;
  return std::make_shared<DryWindow>(device_, bytes);
}

}  // namespace magi
