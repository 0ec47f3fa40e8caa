// SPDX-License-Identifier: Apache-2.0
// Clusters: blocks that run at once and reach each other's shared memory (PTX ISA, 9.7.9 and 9.7.13). Only
// for code compiled for sm_90a.
#pragma once

#include "ops/cuda/sm90.cuh"

namespace magi::sm90 {

/// Which block of its cluster the caller is in.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// All threads of all blocks of the cluster meet here.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory");
}

/// Arrives at block `rank`'s barrier, which lies where `barrier` lies in this block. Without a scope wider
/// than the block: that would become device-wide fences, and reads by wgmma are done once it has been waited
/// for.
__device__ __forceinline__ void barrier_arrive_at(unsigned rank, std::uint64_t* barrier) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}

/// `word` to where `to` lies in block `rank`, its bytes counted at the barrier there.
__device__ __forceinline__ void send_word(unsigned rank, int* to, std::uint64_t* barrier, int word) {
  asm volatile(
      "{\n.reg .b32 there, at;\n"
      "mapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 at, %1, %2;\n"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [at];\n}" ::"r"(
          shared_address(to)),
      "r"(shared_address(barrier)), "r"(rank), "r"(word)
      : "memory");
}

/// load_box into the same place of every block in `blocks` (a bit each), completing on the barrier of each.
__device__ __forceinline__ void load_box_to(std::uint16_t blocks, const CUtensorMap* map,
                                            std::uint64_t* barrier, void* to, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, "
      "%4}], [%2], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "h"(blocks)
      : "memory");
}

}  // namespace magi::sm90
