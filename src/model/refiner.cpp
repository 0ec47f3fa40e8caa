// SPDX-License-Identifier: Apache-2.0
#include "model/refiner.h"

#include <algorithm>

#include "model/to_device.h"

namespace magi {
namespace {

std::array<std::int64_t, 3> sizes_of(const LatentGrid& grid) {
  return {grid.t, grid.h, grid.w};
}

/// Residual x ← x + y·Wᵀ, the product normed in between where the layer has a norm there.
void add_product(Ops& ops, const Tensor& x, const Tensor& y, const LinearWeight& w, const Segments& segments,
                 const std::optional<NormWeight>& post_norm) {
  if (!post_norm) return ops.linear_add(x, y, w, segments);
  const Tensor product = ops.linear(y, w, segments, y.dtype());
  ops.add(x, ops.rms_norm(product, *post_norm, segments, x.dtype()));
}

}  // namespace

VelocityCells Refiner::forward(Ops& ops, const PackedSequence& sequence, const SequenceOnDevice& inputs,
                               const RefinerRows& rows, const Tensor& video, const Tensor& audio,
                               DType dtype) const {
  const Segments& segments = inputs.segments;
  Tensor x = embed_tokens(ops, adapters_, sequence, inputs, video, audio, dtype);
  for (int i = 0; i < layers_->count(); ++i) {
    const Lease<RefinerLayer> layer = layers_->layer(i);
    {
      const Tensor n = ops.rms_norm(x, layer->attention.norm, segments, dtype);
      add_product(ops, x, heads(ops, *layer, n, sequence, inputs, rows), layer->attention.proj, segments,
                  layer->attention_post_norm);
    }
    Tensor n = ops.rms_norm(x, layer->mlp_norm, segments, dtype);
    const Tensor inner = ops.linear(n, layer->mlp.up, segments, dtype, Epilogue::swiglu7);
    n = {};
    if (x.dtype() != DType::f32) x = ops.cast(x, DType::f32);  // the residual is f32 from the first MLP on
    add_product(ops, x, inner, layer->mlp.down, segments, layer->mlp_post_norm);
  }
  return project(ops, sequence, rows, x);
}

Tensor Refiner::heads(Ops& ops, const RefinerLayer& layer, const Tensor& n, const PackedSequence& sequence,
                      const SequenceOnDevice& inputs, const RefinerRows& rows) const {
  // A layer without windows has one that reaches everything.
  const auto radius =
      layer.windowed ? config_.radius : BlockGrid(sizes_of(sequence.grid), config_.block).counts();
  const auto attend = [&](const Tensor& qkv, const AttentionOptions& options, const FinishHeads& finish) {
    finish(qkv, {});
    return rows.attention(ops, qkv, options, radius);
  };
  return attended_heads(ops, layer.attention, config_.attention, n, inputs.rope, inputs.segments, attend);
}

VelocityCells Refiner::project(Ops& ops, const PackedSequence& sequence, const RefinerRows& rows,
                               const Tensor& x) const {
  const auto one = [&](const Segment& segment, const NormWeight& norm, const LinearWeight& out) {
    const RowRange covers{segment.first, segment.first + segment.rows}, own = intersect(covers, rows.rows());
    const Tensor result = ops.arena().alloc(DType::f32, {segment.rows, out.out});
    if (own.size() > 0)
      ops.linear_into(result.rows(own.first - covers.first, own.size()),
                      ops.rms_norm(x.rows(own.first - rows.rows().first, own.size()), norm, {}, DType::f32),
                      out);
    rows.gather(result, covers);
    return result;
  };
  return {one(sequence.segments[0], adapters_.video_norm, adapters_.video_out),
          one(sequence.segments[1], adapters_.audio_norm, adapters_.audio_out)};
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
                       const Tensor& text, DType dtype, const Parallel& parallel)
    : ops_(ops),
      model_(model),
      parallel_(parallel),
      sequence_(pack(grid, audio_rows, {Conditioning{text, {}}}, block_order(grid, model.config().block))),
      dtype_(dtype),
      rows_(sizes_of(grid), model.config().block, sequence_.rows(), parallel.sequence()),
      inputs_(upload_sequence(ops, sequence_, rows_.rows(), model.adapters().rotary_bands)),
      passage_(ops) {}

Tensor RefinerRun::cells_of(const Tensor& latent) {
  return passage_.to_cells(latent, sequence_.video_order);
}

Tensor RefinerRun::latent_of(const Tensor& cells) {
  return passage_.to_host(cells, sequence_.grid, sequence_.video_order);
}

VelocityCells RefinerRun::forward(const Tensor& cells, const Tensor& audio) {
  const std::int64_t channels = model_.config().channels.audio;
  const Tensor audio_rows = audio.defined() ? audio.reshape({sequence_.audio_rows, channels})
                                            : Tensor::empty(DType::f32, {0, channels});
  return model_.forward(ops_, sequence_, inputs_, rows_, cells, to_device(ops_, audio_rows, DType::f32),
                        dtype_);
}

Velocity RefinerRun::velocity(const Tensor& latent, const Tensor& audio) {
  const VelocityCells v = forward(cells_of(latent), audio);
  return {latent_of(v.video), ops_.download(v.audio)};
}

std::pair<Tensor, Tensor> RefinerRun::guided(RefinerRun& text, RefinerRun& null_text, const Tensor& latent,
                                             const std::function<void()>& between) {
  const Parallel& parallel = text.parallel_;
  const Tensor cells = text.cells_of(latent);
  if (parallel.degrees().cfg == 1) {
    const Tensor first = text.latent_of(text.forward(cells, {}).video);
    if (between) between();
    return {first, text.latent_of(null_text.forward(cells, {}).video)};
  }
  // Each half computes its branch; a rank swaps results with its counterpart in the other half.
  const int sp = parallel.degrees().sp, me = parallel.all().rank();
  const bool has_text = computes_text(parallel);
  const Tensor own = (has_text ? text : null_text).forward(cells, {}).video;
  const Tensor other = text.ops_.arena().alloc(own.dtype(), own.shape());
  const int counterpart = has_text ? me + sp : me - sp;
  parallel.all().exchange({{counterpart, own}}, {{counterpart, other}}, "guidance");
  return {text.latent_of(has_text ? own : other), text.latent_of(has_text ? other : own)};
}

double RefinerRun::rows_share(const RefinerRun& text, const RefinerRun& null_text) {
  std::int64_t held = 0;
  if (computes_text(text.parallel_)) held += text.rows().size();
  if (computes_null(text.parallel_)) held += null_text.rows().size();
  return static_cast<double>(held) / static_cast<double>(text.sequence_.rows() + null_text.sequence_.rows());
}

}  // namespace magi
