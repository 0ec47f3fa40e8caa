// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace magi {

/// SHA-256 over bytes that arrive in pieces.
class Sha256 {
 public:
  Sha256();
  void add(const void* data, std::size_t bytes);
  void add(const Tensor& tensor) { add(tensor.raw(), tensor.bytes()); }
  /// Lower-case hexadecimal of everything added.
  std::string hex() const;

 private:
  std::shared_ptr<void> state_;
};

std::string sha256_of(std::string_view bytes);
std::string sha256_of(const Tensor& tensor);

}  // namespace magi
