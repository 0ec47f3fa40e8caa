// SPDX-License-Identifier: Apache-2.0
#include "model/latent_passage.h"

namespace magi {

Tensor LatentPassage::staging(const Shape& shape) {
  const std::size_t bytes = static_cast<std::size_t>(numel(shape)) * sizeof(float);
  if (bytes > bytes_) {
    memory_ = {};
    memory_ = ops_.host_memory(bytes);
    bytes_ = bytes;
  }
  return Tensor::view(memory_.get(), DType::f32, shape, memory_);
}

Tensor LatentPassage::to_cells(const Tensor& latent, const std::vector<std::int32_t>& order) {
  const Shape shape = cells_shape(latent);
  Tensor cells = ops_.arena().alloc(DType::f32, shape);
  if (ops_.arena().counts_only()) return cells;
  if (ops_.device().kind == Device::Kind::cpu) {
    cells_from_latent(latent, order, cells);
    return cells;
  }
  Tensor host = staging(shape);
  cells_from_latent(latent, order, host);
  ops_.copy_in(cells, host);
  return cells;
}

Tensor LatentPassage::to_host(const Tensor& cells, LatentGrid grid, const std::vector<std::int32_t>& order) {
  Tensor latent = latents_.empty(DType::f32, {cells.dim(1), grid.t, grid.h, grid.w});
  if (ops_.arena().counts_only()) return latent;
  if (ops_.device().kind == Device::Kind::cpu) {
    latent_from_cells(cells, order, latent);
    return latent;
  }
  const Tensor host = staging(cells.shape());
  ops_.download_to(cells, memory_.get());
  latent_from_cells(host, order, latent);
  return latent;
}

}  // namespace magi
