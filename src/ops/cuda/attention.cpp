// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/attention.h"

namespace magi::cuda {

void attention(const AttentionArgs& args, cudaStream_t stream) {
  attention_sm90_takes(args) ? attention_sm90(args, stream) : attention_portable(args, stream);
}

void window_attention(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  attention_sm90_takes(args) ? window_attention_sm90(args, window, stream)
                             : window_attention_portable(args, window, stream);
}

void attention_partials(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                        cudaStream_t stream) {
  attention_sm90_takes(args) ? attention_partials_sm90(args, parts, partials, stream)
                             : attention_partials_portable(args, parts, partials, stream);
}

}  // namespace magi::cuda
