// SPDX-License-Identifier: Apache-2.0
#include "model/refiner.h"

#include <algorithm>

namespace magi {

Velocity Refiner::forward(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                          const Tensor& video, const Tensor& audio, DType dtype) const {
  const Segments& segments = sequence.segments;
  Tensor x = embed_tokens(ops, adapters_, sequence, inputs, video, audio, dtype);
  for (int i = 0; i < layers_->count(); ++i) {
    const Lease<RefinerLayer> layer = layers_->layer(i);
    {
      const Tensor n = ops.rms_norm(x, layer->attention.norm, segments, dtype);
      Tensor y = attention(ops, *layer, n, sequence, inputs);
      if (layer->attention_post_norm) y = ops.rms_norm(y, *layer->attention_post_norm, segments, dtype);
      ops.add(x, y);
    }
    const Tensor n = ops.rms_norm(x, layer->mlp_norm, segments, dtype);
    Tensor y = dense_mlp(ops, layer->mlp, n, segments);
    if (layer->mlp_post_norm) y = ops.rms_norm(y, *layer->mlp_post_norm, segments, DType::f32);
    if (x.dtype() != DType::f32) x = ops.cast(x, DType::f32);  // the residual is f32 from the first MLP on
    ops.add(x, y);
  }
  return project_velocity(ops, adapters_, sequence, inputs, x).front();
}

Tensor Refiner::attention(Ops& ops, const RefinerLayer& layer, const Tensor& n,
                          const PackedSequence& sequence, const SequenceOnDevice& inputs) const {
  const std::array<std::int64_t, 3> cells{sequence.grid.t, sequence.grid.h, sequence.grid.w};
  const BlockGrid grid(cells, config_.block);
  // A layer without windows has one that reaches everything.
  const auto window =
      WindowOptions::whole(cells, config_.block, layer.windowed ? config_.radius : grid.counts());
  const auto attend = [&](const Tensor& qkv, const AttentionOptions& options) {
    const std::int64_t q_size = config_.attention.q_size(), video = sequence.grid.cells();
    const Tensor q = qkv.columns(0, q_size), kv = qkv.columns(q_size, qkv.dim(1) - q_size);
    const RowRange others{video, qkv.dim(0)};
    const auto of = [&](RowRange rows) {
      AttentionOptions part = options;
      if (options.gate.defined()) part.gate = options.gate.rows(rows.first, rows.size());
      return part;
    };
    Tensor y = ops.arena().alloc(qkv.dtype(), {qkv.dim(0), q_size});
    ops.window_attention(q.rows(0, video), kv, window, of({0, video}), y.rows(0, video));
    if (others.size() == 0) return y;
    std::vector<RowRange> parts;
    for (const RowRange& blocks : window_parts(grid.size())) parts.push_back(grid.rows(blocks));
    parts.push_back(others);
    const Tensor partials[] = {
        ops.attention_partials(q.rows(others.first, others.size()), kv, parts, of(others))};
    ops.merge_attention(partials, of(others), y.rows(others.first, others.size()));
    return y;
  };
  return attention_branch(ops, layer.attention, config_.attention, n, inputs.rope, sequence.segments, attend);
}

std::vector<std::int32_t> block_order(LatentGrid grid, const std::array<std::int64_t, 3>& block) {
  std::vector<std::int32_t> order;
  order.reserve(static_cast<std::size_t>(grid.cells()));
  for (std::int64_t t0 = 0; t0 < grid.t; t0 += block[0])
    for (std::int64_t h0 = 0; h0 < grid.h; h0 += block[1])
      for (std::int64_t w0 = 0; w0 < grid.w; w0 += block[2])
        for (std::int64_t t = t0; t < std::min(t0 + block[0], grid.t); ++t)
          for (std::int64_t h = h0; h < std::min(h0 + block[1], grid.h); ++h)
            for (std::int64_t w = w0; w < std::min(w0 + block[2], grid.w); ++w)
              order.push_back(static_cast<std::int32_t>((t * grid.h + h) * grid.w + w));
  return order;
}

RefinerRun::RefinerRun(Ops& ops, const Refiner& model, LatentGrid grid, std::int64_t audio_rows,
                       const Tensor& text, DType dtype)
    : ops_(ops),
      model_(model),
      sequence_(pack(grid, audio_rows, {Conditioning{text, {}}}, block_order(grid, model.config().block))),
      dtype_(dtype),
      inputs_(upload_sequence(ops, sequence_, {0, sequence_.rows()}, model.adapters().rotary_bands)) {}

Velocity RefinerRun::velocity(const Tensor& latent, const Tensor& audio) {
  const std::int64_t channels = model_.config().channels.audio;
  const Tensor audio_rows = audio.defined() ? audio.reshape({sequence_.audio_rows, channels})
                                            : Tensor::empty(DType::f32, {0, channels});
  return model_.forward(ops_, sequence_, inputs_,
                        ops_.upload(cells_from_latent(latent, sequence_.video_order)),
                        ops_.upload(audio_rows), dtype_);
}

}  // namespace magi
