// SPDX-License-Identifier: Apache-2.0
// Public side of the operations of the text encoder's recurrence and of the decoders: checks, result, cost.
#include <algorithm>

#include "ops/checks.h"
#include "ops/ops.h"

namespace magi {
namespace {

/// [T,H,W,C], contiguous, f32 or bf16.
void check_grid(std::string_view op, const Tensor& x) {
  checks::tensor(op, "x", x, {-1, -1, -1, -1}, true);
  checks::work_dtype(op, "x", x);
}

/// Length of one axis after a convolution.
std::int64_t conv_length(const ConvWeight& w, const ConvOptions& o, std::size_t axis, std::int64_t length) {
  const std::int64_t stride = o.stride[axis], dilation = o.dilation[axis], kernel = w.kernel[axis];
  const std::int64_t front = o.pad_front[axis], back = o.pad_back[axis];
  require(stride > 0 && dilation > 0 && kernel > 0 && front >= 0 && back >= 0,
          "conv: axis {}: kernel {}, stride {}, dilation {}, padding {} and {}", axis, kernel, stride,
          dilation, front, back);
  constexpr std::int64_t kMost = std::int64_t{1} << 20;  // keeps the products below in range
  require(std::max({stride, dilation, kernel, front, back}) <= kMost && length <= kMost * kMost,
          "conv: axis {}: length {}, kernel {}, stride {}, dilation {} or padding {} and {} beyond reason",
          axis, length, kernel, stride, dilation, front, back);
  const std::int64_t reach = dilation * (kernel - 1) + 1;
  const bool transposed = w.transposed && axis == 2;
  require(!w.transposed || axis == 2 || (kernel == 1 && stride == 1 && front == 0 && back == 0),
          "conv: a transposed convolution works on the last axis only");
  const std::int64_t out = transposed ? (length - 1) * stride + reach - front - back
                                      : (length + front + back - reach) / stride + 1;
  require(out > 0 && (transposed || length + front + back >= reach),
          "conv: axis {}: {} elements are too few for a kernel that reaches over {}", axis, length, reach);
  return out;
}

}  // namespace

Tensor Ops::causal_conv_silu(const Tensor& x, const Tensor& weight) {
  checks::tensor("causal_conv_silu", "x", x, {-1, -1});
  checks::work_dtype("causal_conv_silu", "x", x);
  checks::f32("causal_conv_silu", "weight", weight, {x.dim(1), -1});
  Tensor y = arena().alloc(x.dtype(), x.shape());
  run({"causal_conv_silu", 2.0 * static_cast<double>(x.numel() * weight.dim(1)), checks::bytes({&x, &y})},
      [&] { do_causal_conv_silu(x, weight, y); });
  return y;
}

Tensor Ops::gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                             const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                             std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim) {
  const std::string_view op = "gated_delta_rule";
  require(key_heads > 0 && value_heads % key_heads == 0 && value_heads > 0 && key_dim > 0 && value_dim > 0,
          "{}: {} value heads of {} over {} key heads of {}, expected a positive multiple", op, value_heads,
          value_dim, key_heads, key_dim);
  checks::tensor(op, "qkv", qkv, {-1, 2 * key_heads * key_dim + value_heads * value_dim});
  checks::work_dtype(op, "qkv", qkv);
  const std::int64_t n = qkv.dim(0);
  checks::tensor(op, "decay_input", decay_input, {n, value_heads});
  checks::work_dtype(op, "decay_input", decay_input);
  checks::tensor(op, "beta_input", beta_input, {n, value_heads});
  checks::work_dtype(op, "beta_input", beta_input);
  checks::f32(op, "a_log", a_log, {value_heads});
  checks::f32(op, "dt_bias", dt_bias, {value_heads});
  Tensor y = arena().alloc(qkv.dtype(), {n, value_heads * value_dim});
  run(
      {op, 8.0 * static_cast<double>(n * value_heads * key_dim * value_dim), checks::bytes({&qkv, &y})},
      [&] {
        do_gated_delta_rule(qkv, decay_input, beta_input, a_log, dt_bias, key_heads, value_heads, key_dim,
                            value_dim, y);
      },
      delta_rule_scratch(n, value_heads, key_dim, value_dim));
  return y;
}

Tensor Ops::gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps) {
  checks::tensor("gated_rms_norm", "x", x, {-1, -1});
  checks::work_dtype("gated_rms_norm", "x", x);
  checks::tensor("gated_rms_norm", "z", z, x.shape());
  checks::dtype("gated_rms_norm", "z", z, {x.dtype()});
  checks::f32("gated_rms_norm", "weight", weight, {-1});
  require(weight.dim(0) > 0 && x.dim(1) % weight.dim(0) == 0,
          "gated_rms_norm: width {} is no multiple of a head's {} channels", x.dim(1), weight.dim(0));
  Tensor y = arena().alloc(x.dtype(), x.shape());
  run({"gated_rms_norm", 8.0 * static_cast<double>(x.numel()), checks::bytes({&x, &z, &y})},
      [&] { do_gated_rms_norm(x, z, weight, eps, y); });
  return y;
}

Tensor Ops::conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options) {
  check_grid("conv", x);
  checks::dtype("conv", "x", x, {w.dtype});
  require(x.dim(3) == w.in, "conv: x has {} channels, the weight {}", x.dim(3), w.in);
  require(!w.depthwise || w.out == w.in, "conv: a depthwise weight of {} channels gives {}", w.in, w.out);
  Shape shape(4);
  double taps = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    shape[axis] = conv_length(w, options, axis, x.shape()[axis]);
    taps *= static_cast<double>(w.kernel[axis]);
  }
  shape[3] = w.out;
  Tensor y = arena().alloc(x.dtype(), shape);
  const double cells = static_cast<double>(w.transposed ? x.numel() / w.in : y.numel() / w.out);
  const double flops =
      2.0 * cells * taps * static_cast<double>(w.out) * static_cast<double>(w.depthwise ? 1 : w.in);
  run({"conv", flops, checks::bytes({&x, &w.data, &y})}, [&] { do_conv(x, w, options, y); });
  return y;
}

Tensor Ops::replicate_time(const Tensor& x, std::int64_t front, std::int64_t back) {
  check_grid("replicate_time", x);
  require(front >= 0 && back >= 0 && x.dim(0) > 0, "replicate_time: {} and {} copies around {} frames", front,
          back, x.dim(0));
  Tensor y = arena().alloc(x.dtype(), {x.dim(0) + front + back, x.dim(1), x.dim(2), x.dim(3)});
  run({"replicate_time", 0, checks::bytes({&x, &y})}, [&] { do_replicate_time(x, front, back, y); });
  return y;
}

Tensor Ops::concat_time(const Tensor& a, const Tensor& b) {
  check_grid("concat_time", a);
  check_grid("concat_time", b);
  checks::dtype("concat_time", "b", b, {a.dtype()});
  checks::tensor("concat_time", "b", b, {-1, a.dim(1), a.dim(2), a.dim(3)});
  Tensor y = arena().alloc(a.dtype(), {a.dim(0) + b.dim(0), a.dim(1), a.dim(2), a.dim(3)});
  run({"concat_time", 0, checks::bytes({&a, &b, &y})}, [&] {
    Tensor front = y.rows(0, a.dim(0)), back = y.rows(a.dim(0), b.dim(0));
    do_cast(a, front);
    do_cast(b, back);
  });
  return y;
}

Tensor Ops::channel_norm(const Tensor& x, const ChannelNorm& norm) {
  check_grid("channel_norm", x);
  if (norm.kind == ChannelNorm::Kind::l2) checks::f32("channel_norm", "gamma", norm.gamma, {x.dim(3)});
  Tensor y = arena().alloc(x.dtype(), x.shape());
  run({"channel_norm", 8.0 * static_cast<double>(x.numel()), checks::bytes({&x, &y})},
      [&] { do_channel_norm(x, norm, y); });
  return y;
}

Tensor Ops::snake(const Tensor& x, const Tensor& alpha, const Tensor& beta) {
  check_grid("snake", x);
  checks::f32("snake", "alpha", alpha, {x.dim(3)});
  checks::f32("snake", "beta", beta, {x.dim(3)});
  Tensor y = arena().alloc(x.dtype(), x.shape());
  run({"snake", 8.0 * static_cast<double>(x.numel()), checks::bytes({&x, &y})},
      [&] { do_snake(x, alpha, beta, y); });
  return y;
}

Tensor Ops::upsample_nearest(const Tensor& x) {
  check_grid("upsample_nearest", x);
  Tensor y = arena().alloc(x.dtype(), {x.dim(0), 2 * x.dim(1), 2 * x.dim(2), x.dim(3)});
  run({"upsample_nearest", 0, checks::bytes({&x, &y})}, [&] { do_upsample_nearest(x, y); });
  return y;
}

Tensor Ops::interleave_time(const Tensor& x) {
  check_grid("interleave_time", x);
  require(x.dim(3) % 2 == 0, "interleave_time: {} channels cannot be halved", x.dim(3));
  Tensor y = arena().alloc(x.dtype(), {2 * x.dim(0), x.dim(1), x.dim(2), x.dim(3) / 2});
  run({"interleave_time", 0, checks::bytes({&x, &y})}, [&] { do_interleave_time(x, y); });
  return y;
}

Tensor Ops::unpatchify(const Tensor& x, std::int64_t patch) {
  check_grid("unpatchify", x);
  require(patch > 0 && x.dim(3) % (patch * patch) == 0, "unpatchify: {} channels are no multiple of {}²",
          x.dim(3), patch);
  Tensor y =
      arena().alloc(x.dtype(), {x.dim(0), patch * x.dim(1), patch * x.dim(2), x.dim(3) / (patch * patch)});
  run({"unpatchify", 0, checks::bytes({&x, &y})}, [&] { do_unpatchify(x, patch, y); });
  return y;
}

Tensor Ops::patchify(const Tensor& x, std::int64_t patch) {
  check_grid("patchify", x);
  require(patch > 0 && x.dim(1) % patch == 0 && x.dim(2) % patch == 0, "patchify: {}×{} is no multiple of {}",
          x.dim(1), x.dim(2), patch);
  Tensor y =
      arena().alloc(x.dtype(), {x.dim(0), x.dim(1) / patch, x.dim(2) / patch, x.dim(3) * patch * patch});
  run({"patchify", 0, checks::bytes({&x, &y})}, [&] { do_patchify(x, patch, y); });
  return y;
}

Tensor Ops::to_pixels(const Tensor& x) {
  require(x.defined() && x.contiguous(), "to_pixels: x must be contiguous");
  checks::work_dtype("to_pixels", "x", x);
  Tensor y = arena().alloc(DType::u8, x.shape());
  run({"to_pixels", 3.0 * static_cast<double>(x.numel()), checks::bytes({&x, &y})},
      [&] { do_to_pixels(x, y); });
  return y;
}

Tensor Ops::tanh(const Tensor& x) {
  require(x.defined() && x.contiguous(), "tanh: x must be contiguous");
  checks::work_dtype("tanh", "x", x);
  Tensor y = arena().alloc(x.dtype(), x.shape());
  run({"tanh", 8.0 * static_cast<double>(x.numel()), checks::bytes({&x, &y})}, [&] { do_tanh(x, y); });
  return y;
}

}  // namespace magi
