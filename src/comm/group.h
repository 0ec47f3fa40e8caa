// SPDX-License-Identifier: Apache-2.0
// Ranks are a value: code takes a Group and calls its collectives. A group of one rank copies, or does
// nothing.
#pragma once

#include <cstdint>
#include <memory>

#include "core/tensor.h"

namespace magi {

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Block r of `send` goes to rank r; block r of `receive` comes from rank r. Blocks are equal: numel /
  /// size().
  virtual void all_to_all(const Tensor& send, Tensor receive) = 0;
  /// receive [size()·rows, …] ← every rank's send [rows, …], in rank order.
  virtual void all_gather(const Tensor& send, Tensor receive) = 0;
  /// Every rank's tensor becomes that of rank `root`.
  virtual void broadcast(Tensor tensor, int root) = 0;
  /// True on every rank when `value` is true on any.
  virtual bool any(bool value) = 0;
  virtual void barrier() = 0;
  /// Bytes that this rank sent to others since the group was made.
  virtual std::int64_t bytes_sent() const = 0;
};

/// A group of one rank.
std::unique_ptr<Group> make_solo_group();

}  // namespace magi
