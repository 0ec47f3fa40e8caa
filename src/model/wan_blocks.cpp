// SPDX-License-Identifier: Apache-2.0
#include "model/wan_blocks.h"

#include <algorithm>

namespace magi::wan {
namespace {

Tensor norm(Ops& ops, const Tensor& x, const Tensor& gamma, Activation activation) {
  return ops.channel_norm(
      x, {.kind = ChannelNorm::Kind::l2, .eps = 1e-12f, .gamma = gamma, .activation = activation});
}

/// A copy: a view would keep the whole of x alive.
Tensor last_frames(Ops& ops, const Tensor& x, std::int64_t count) {
  count = std::min(count, x.dim(0));
  return ops.cast(x.rows(x.dim(0) - count, count), x.dtype());
}

/// Stored with the trailing axes of a convolution's per-channel factor: [C,1,1] or [C,1,1,1].
Tensor load_gamma(const WeightLoader& w, const std::string& tensor, std::int64_t channels, std::size_t rank) {
  Shape shape(rank, 1);
  shape[0] = channels;
  return w.ops().upload(w.host(tensor, shape).reshape({channels}));
}

/// A 1×1 convolution as a matrix.
LinearWeight load_pointwise(const WeightLoader& w, const std::string& layer, std::int64_t out,
                            std::int64_t in) {
  const Tensor weight = w.stored(layer + ".weight", {out, in, 1, 1}).reshape({out, in});
  return w.ops().pack_linear(weight, 1, DType::f32, w.host(layer + ".bias", {out}));
}

Tensor run(Ops& ops, const AttentionBlock& attention, Tensor x) {
  const std::int64_t frames = x.dim(0), pixels = x.dim(1) * x.dim(2), channels = x.dim(3);
  const Tensor n = norm(ops, x, attention.gamma, Activation::none).reshape({frames * pixels, channels});
  std::vector<RowRange> samples;
  for (std::int64_t t = 0; t < frames; ++t) samples.push_back({t * pixels, (t + 1) * pixels});
  AttentionOptions options;
  options.heads = options.kv_heads = 1;
  options.head_dim = channels;
  const Tensor mixed = ops.attention(ops.linear(n, attention.qkv), samples, options);
  ops.add(x, ops.linear(mixed, attention.proj).reshape(x.shape()));
  return x;
}

}  // namespace

Tensor History::causal_conv(Ops& ops, Tensor x, const ConvWeight& conv) {
  const auto [kt, kh, kw] = conv.kernel;
  ConvOptions options;
  options.pad_front = options.pad_back = {0, kh / 2, kw / 2};
  if (kt > 1) {
    Tensor& past = past_[&conv];
    options.pad_front[0] = kt - 1 - (past.defined() ? past.dim(0) : 0);
    if (past.defined()) x = ops.concat_time(past, x);
    past = last_frames(ops, x, kt - 1);
  }
  return ops.conv(x, conv, options);
}

Tensor History::halve_time(Ops& ops, Tensor x, const ConvWeight& conv) {
  Tensor& past = past_[&conv];
  const bool first = !past.defined();
  if (!first) x = ops.concat_time(past, x);
  past = last_frames(ops, x, 1);
  if (first) return x;
  ConvOptions options;
  options.stride = {2, 1, 1};
  return ops.conv(x, conv, options);
}

std::int64_t channels_of(const WeightLoader& w, const std::string& tensor) {
  const Shape& shape = w.shape_of(tensor);
  require(!shape.empty() && shape[0] > 0 && shape[0] <= 65536,
          "tensor {} has the shape {}, expected channels first", tensor, to_string(shape));
  return shape[0];
}

ResidualBlock load_residual(const WeightLoader& w, std::int64_t in) {
  const std::int64_t out = channels_of(w, "residual.2.weight");
  ResidualBlock block{load_gamma(w, "residual.0.gamma", in, 4),
                      load_gamma(w, "residual.3.gamma", out, 4),
                      w.conv("residual.2", {out, in, 3, 3, 3}),
                      w.conv("residual.6", {out, out, 3, 3, 3}),
                      {},
                      out};
  if (in != out) block.shortcut = w.conv("shortcut", {out, in, 1, 1, 1});
  return block;
}

std::vector<ResidualBlock> load_residuals(const WeightLoader& w, std::int64_t& channels) {
  std::vector<ResidualBlock> blocks;
  for (std::size_t i = 0;; ++i) {
    const WeightLoader block = w.in(std::to_string(i));
    if (!block.has("residual.2.weight")) return blocks;
    blocks.push_back(load_residual(block, channels));
    channels = blocks.back().out;
  }
}

Middle load_middle(const WeightLoader& w, std::int64_t channels) {
  const WeightLoader attention = w.in("1");
  return {load_residual(w.in("0"), channels),
          load_residual(w.in("2"), channels),
          {load_gamma(attention, "norm.gamma", channels, 3),
           load_pointwise(attention, "to_qkv", 3 * channels, channels),
           load_pointwise(attention, "proj", channels, channels)}};
}

Head load_head(const WeightLoader& w, std::int64_t channels, std::int64_t out) {
  return {load_gamma(w, "0.gamma", channels, 4), w.conv("2", {out, channels, 3, 3, 3})};
}

Tensor run(Ops& ops, const ResidualBlock& block, History& history, Tensor x) {
  Tensor h = norm(ops, x, block.gamma1, Activation::silu);
  h = history.causal_conv(ops, std::move(h), block.conv1);
  h = norm(ops, h, block.gamma2, Activation::silu);
  h = history.causal_conv(ops, std::move(h), block.conv2);
  if (block.shortcut) x = ops.conv(x, *block.shortcut, {});
  ops.add(h, x);
  return h;
}

Tensor run(Ops& ops, const Middle& middle, History& history, Tensor x) {
  x = run(ops, middle.before, history, std::move(x));
  x = run(ops, middle.attention, std::move(x));
  return run(ops, middle.after, history, std::move(x));
}

Tensor run(Ops& ops, const Head& head, History& history, Tensor x) {
  x = norm(ops, x, head.gamma, Activation::silu);
  return history.causal_conv(ops, std::move(x), head.conv);
}

}  // namespace magi::wan
