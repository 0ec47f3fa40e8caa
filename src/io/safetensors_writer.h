// SPDX-License-Identifier: Apache-2.0
// Safetensors files that are larger than memory: the header first, then the tensors' bytes in pieces.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "io/atomic_file.h"
#include "io/native_manifest.h"

namespace magi {

struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::size_t bytes() const { return static_cast<std::size_t>(numel(shape)) * size_of(dtype); }
};

/// The header of a file with these tensors one after the other, filled up with spaces so that the first one
/// begins at a multiple of `align` (of 8 at least). Throws Error for names given twice.
std::string safetensors_header(const std::vector<TensorEntry>& tensors,
                               const std::map<std::string, std::string>& metadata, std::size_t align);

/// Written beside the target and renamed by commit(). Tensors begin at a page; each at a multiple of the
/// largest power of two, up to a page, that divides its own size and those before it: sort them by that.
class SafetensorsWriter {
 public:
  static constexpr std::size_t kAlign = 4096;

  SafetensorsWriter(const std::filesystem::path& file, const std::vector<TensorEntry>& tensors,
                    const std::map<std::string, std::string>& metadata);
  /// The next bytes of the tensors, in their order.
  void write(const void* data, std::size_t bytes);
  /// Throws Error unless every tensor was written.
  NativeFile commit();

 private:
  std::string name_;
  AtomicFile out_;
  FileHash hash_;
  std::size_t expected_ = 0, written_ = 0;  ///< bytes of the file
};

}  // namespace magi
