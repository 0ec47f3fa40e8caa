// SPDX-License-Identifier: Apache-2.0
// Linear layers on Hopper that are one kernel, whatever follows the product and however many weight groups.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace magi::cuda {

/// Whether the Hopper kernel takes it: a gated epilogue or several weight groups, bf16 throughout, no bias,
/// inputs a multiple of 8 and columns of 16 (whole 16-byte pieces), rows of x and y 16-byte aligned, compute
/// capability 9.0 of device `device`.
bool linear_sm90_takes(const Tensor& x, const LinearWeight& w, Epilogue epilogue, const Tensor& y,
                       int device);

/// y = epilogue(x·Wᵀ) as `linear` of ops.h; w.data [groups·out, in], with a pitch. A row's bits depend on
/// that row alone. `counter`: a word on the device, zero before and after, of this stream alone. Enqueued on
/// `stream`; launch errors throw Error.
void linear_sm90(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                 Tensor& y, int* counter, cudaStream_t stream);

}  // namespace magi::cuda
