// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/conv.h"

#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace magi {
namespace {

std::int64_t taps_of(const ConvWeight& w) {
  return w.kernel[0] * w.kernel[1] * w.kernel[2];
}

std::int64_t padded(std::int64_t n) {
  return (n + cuda::kConvPad - 1) / cuda::kConvPad * cuda::kConvPad;
}

/// The layouts of conv.h from [out, in, taps] (transposed: [in, out, taps]).
template <typename T>
Tensor packed(const Tensor& weight, const ConvWeight& w) {
  const std::int64_t taps = taps_of(w), rows = padded(w.out), columns = padded(w.in);
  const Tensor values = weight.to(w.dtype);
  const T* from = values.data<T>();
  Tensor result = Tensor::zeros(w.dtype, {taps, rows, columns});
  T* to = result.data<T>();
#pragma omp parallel for
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t channel = w.dtype == DType::bf16 ? cuda::conv_channel(static_cast<int>(row)) : row;
    if (channel >= w.out) continue;
    for (std::int64_t c = 0; c < w.in; ++c)
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        const std::int64_t source = w.transposed ? c * w.out + channel : channel * w.in + c;
        const std::int64_t place =
            w.dtype == DType::bf16 ? (tap * rows + row) * columns + c : (tap * columns + c) * rows + row;
        to[place] = from[source * taps + tap];
      }
  }
  return result;
}

Tensor packed_depthwise(const Tensor& weight, const ConvWeight& w) {
  const std::int64_t taps = taps_of(w);
  const Tensor values = weight.to(w.dtype).to(DType::f32);
  Tensor result = Tensor::empty(DType::f32, {taps, w.out});
  for (std::int64_t c = 0; c < w.out; ++c)
    for (std::int64_t tap = 0; tap < taps; ++tap)
      result.data<float>()[tap * w.out + c] = values.data<float>()[c * taps + tap];
  return result;
}

}  // namespace

ConvWeight CudaOps::pack_conv(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                              DType dtype) {
  ConvWeight w = checks::conv_weight(weight, bias, depthwise, transposed, dtype);
  require(w.out < (1 << 24) && w.in < (1 << 24) && taps_of(w) < (1 << 24),
          "pack_conv: weight {} is too large for the GPU's kernels", to_string(weight.shape()));
  if (w.bias.defined()) w.bias = upload(w.bias);
  if (arena().counts_only()) {
    w.data = depthwise ? allocate(DType::f32, {taps_of(w), w.out})
                       : allocate(dtype, {taps_of(w), padded(w.out), padded(w.in)});
    return w;
  }
  w.data = upload(depthwise             ? packed_depthwise(weight, w)
                  : dtype == DType::f32 ? packed<float>(weight, w)
                                        : packed<bf16>(weight, w));
  return w;
}

void CudaOps::do_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) {
  if (y.numel() == 0) return;
  cuda::ConvArgs args{};
  cuda::ConvShape& shape = args.shape;
  const std::int64_t most = (std::int64_t{1} << 31) - 1024;
  require(x.numel() / w.in < most && y.numel() / w.out < most && x.dim(2) < most / 2 && y.dim(2) < most / 2,
          "conv: {} → {} is too large for the GPU's kernels; decode in smaller chunks", to_string(x.shape()),
          to_string(y.shape()));
  for (std::size_t axis = 0; axis < 3; ++axis) {
    shape.in_size[axis] = static_cast<int>(x.shape()[axis]);
    shape.out_size[axis] = static_cast<int>(y.shape()[axis]);
    shape.kernel[axis] = static_cast<int>(w.kernel[axis]);
    shape.stride[axis] = static_cast<int>(options.stride[axis]);
    shape.dilation[axis] = static_cast<int>(options.dilation[axis]);
    shape.pad[axis] = static_cast<int>(options.pad_front[axis]);
  }
  shape.in = static_cast<int>(w.in);
  shape.out = static_cast<int>(w.out);
  shape.in_pad = static_cast<int>(padded(w.in));
  shape.rows = static_cast<int>(padded(w.out));
  shape.transposed = w.transposed;
  args.x = x.raw();
  args.weight = w.data.raw();
  args.bias = w.bias.defined() ? w.bias.data<float>() : nullptr;
  args.y = y.raw();
  if (w.depthwise)
    cuda::conv_depthwise(args, x.dtype(), stream());
  else if (cuda::conv_sm90_takes(args, x.dtype()))
    cuda::conv_sm90(args, stream());
  else
    cuda::conv_portable(args, x.dtype(), stream());
}

}  // namespace magi
