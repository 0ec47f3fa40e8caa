// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/attention_sm90.cuh"
#include "ops/cuda/hopper.h"

namespace magi::cuda {
namespace {

// The fastest of the shapes in bench/cuda/attention_bench.cu (docs/performance.md, "Attention on Hopper"). A
// window's query tile is a block of 128 rows, and a run of five blocks is five tiles of 128 keys.
using Full = HopperAttention<AttentionShape<80, 3, 2>>;
using Window = HopperAttention<AttentionShape<128, 2, 2, WindowWalk>>;
using Parts = HopperAttention<AttentionShape<128, 2, 2, PartWalk>>;

bool aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

void require_taken(const AttentionArgs& args) {
  require(attention_sm90_takes(args),
          "the Hopper attention kernel does not take head size {} or this layout on this device",
          args.head_dim);
}

}  // namespace

bool attention_sm90_takes(const AttentionArgs& args) {
  return on_hopper() && args.is_bf16 && args.head_dim == 128 && args.kv_heads > 0 &&
         args.heads % args.kv_heads == 0 && args.scale > 0 && !args.causal && !args.gate_channels &&
         args.q_pitch % 8 == 0 && aligned(args.q, 16) && args.kv_pitch % 8 == 0 && aligned(args.kv, 16) &&
         args.out_pitch % 8 == 0 && results_aligned(args, 16);
}

void attention_sm90(const AttentionArgs& args, cudaStream_t stream) {
  require_taken(args);
  attention_launch<Full>(args, stream);
}

void window_attention_sm90(const AttentionArgs& args, const WindowOptions& window, cudaStream_t stream) {
  require_taken(args);
  window_attention_launch<Window>(args, window, stream);
}

void attention_partials_sm90(const AttentionArgs& args, std::span<const RowRange> parts, float* partials,
                             cudaStream_t stream) {
  require_taken(args);
  attention_partials_launch<Parts>(args, parts, partials, stream);
}

}  // namespace magi::cuda
