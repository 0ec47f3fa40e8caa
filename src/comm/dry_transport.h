// SPDX-License-Identifier: Apache-2.0
// One rank's side of a run whose other ranks are not there, for dry runs: nothing travels, every exchange is
// over at once, windows have no memory.
#pragma once

#include "comm/group.h"

namespace magi {

class DryTransport final : public Transport {
 public:
  DryTransport(int rank, int size, Device device) : rank_(rank), size_(size), device_(device) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Exchange> start(std::vector<Part> send, std::vector<Part> receive,
                                  const std::string& what) override;
  void copy(Tensor, const Tensor&) override {}
  /// Of this rank's pieces of all windows that were made.
  std::size_t window_bytes() const { return window_bytes_; }

 private:
  std::shared_ptr<Window> make_window(std::size_t bytes) override;

  int rank_, size_;
  Device device_;
  std::size_t window_bytes_ = 0;
};

}  // namespace magi
