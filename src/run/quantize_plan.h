// SPDX-License-Identifier: Apache-2.0
// What a native root will hold: files, their tensors in order, and where each one's numbers come from.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "io/safetensors_writer.h"
#include "io/tensor_store.h"
#include "ops/nvfp4.h"
#include "run/components.h"

namespace magi {

struct QuantizeFormat {
  bool pack_experts = true;        ///< else bf16
  bool pack_text_encoder = false;  ///< its linear layers
};

struct PlannedTensor {
  enum class Kind : std::uint8_t {
    numbers,      ///< converted to the entry's dtype
    experts,      ///< a layer's experts in four bits: source names the prefix of W_gate, W_up, W_down
    matrix,       ///< a linear layer's weight in four bits
    matrix_scale  ///< its scale
  } kind = Kind::numbers;
  TensorEntry entry;
  std::string source;
  std::size_t source_bytes = 0;
  Nvfp4Layout layout{};  ///< of experts
};

struct PlannedFile {
  std::string name;  ///< relative to the root
  std::shared_ptr<const TensorStore> store;
  std::vector<PlannedTensor> tensors;  ///< in the file's order
  std::size_t source_bytes() const;
  std::size_t bytes() const;  ///< without the header
};

struct CarriedFile {
  std::string name;
  std::filesystem::path from;
  std::size_t bytes = 0;
};

struct QuantizePlan {
  std::vector<PlannedFile> files;
  std::vector<CarriedFile> carried;
  std::vector<std::pair<std::string, std::string>> texts;  ///< name, content
  std::vector<std::string> left_out;                       ///< optional parts that the root lacks
};

/// Runs the models' loaders without data. Throws Error for a root that is native already, for parts that
/// text-to-video needs and the root lacks, and for tensors that are missing or misshapen.
QuantizePlan plan_quantize(const CheckpointRoot& root, const QuantizeFormat& format);

}  // namespace magi
