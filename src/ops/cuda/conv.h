// SPDX-License-Identifier: Apache-2.0
// Convolutions of the CUDA backend as implicit matrix products: rows are output cells, columns output
// channels, K runs over taps and input channels; inputs are gathered while the product runs. An output's bits
// depend on the inputs under its kernel alone. Everything is enqueued on `stream`; launch errors throw Error.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace magi::cuda {

/// Input channels of a packed bf16 weight are padded with zeros to a multiple of this, and its rows too.
inline constexpr int kConvPad = 32;

/// The output channel in row n of a packed bf16 weight: inside 32 rows, thread q of a quad then holds the 8
/// neighbours 8q…8q+7 of a result of mma or wgmma instead of four separate pairs.
constexpr int conv_channel(int n) {
  return (n & ~31) | ((n & 6) << 2) | ((n >> 2) & 6) | (n & 1);
}

/// A convolution's axes are t, h, w; sizes in cells. Transposed: along w alone.
struct ConvShape {
  int in_size[3], out_size[3], kernel[3], stride[3], dilation[3], pad[3];
  int in, out;       ///< channels
  int in_pad, rows;  ///< of the packed weight [taps, rows, in_pad]; f32: [taps, in_pad, rows]
  bool transposed;
};

struct ConvArgs {
  ConvShape shape;
  const void* x;       ///< [t,h,w,in]
  const void* weight;  ///< packed; depthwise: [taps, out] f32
  const float* bias;   ///< [out] or null
  void* y;             ///< [t,h,w,out]
};

/// Any shape, any architecture from sm_80. bf16: tensor cores through mma.sync; f32: plain f32 arithmetic.
void conv_portable(const ConvArgs& args, DType dtype, cudaStream_t stream);

/// One group a channel.
void conv_depthwise(const ConvArgs& args, DType dtype, cudaStream_t stream);

/// Whether the Hopper kernel takes it: bf16, compute capability 9.0, neither stride nor dilation, input
/// channels a multiple of 8, x 16-byte aligned.
bool conv_sm90_takes(const ConvArgs& args, DType dtype);
void conv_sm90(const ConvArgs& args, cudaStream_t stream);

}  // namespace magi::cuda
