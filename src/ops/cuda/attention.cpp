// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/attention.h"

#include <algorithm>

namespace magi::cuda {

bool results_aligned(const AttentionArgs& args, std::uintptr_t bytes) {
  const auto aligned = [&](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; };
  return aligned(args.out) && std::all_of(args.later.data, args.later.data + args.later.count, aligned);
}

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
