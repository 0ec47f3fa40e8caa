// SPDX-License-Identifier: Apache-2.0
// What turns video latents into frames; the turbo decoder and the full Wan decoder are interchangeable.
#pragma once

#include <functional>

#include "comm/group.h"
#include "core/tensor.h"
#include "ops/ops.h"

namespace magi {

/// Takes finished frames in order, a few at a time: u8 [t,H,W,3] on the host. May throw to stop the decoding.
using FrameSink = std::function<void(const Tensor& frames)>;

class VideoDecoder {
 public:
  virtual ~VideoDecoder() = default;

  /// latent [48,T,H,W] (a leading axis of 1 is fine), f32 on the host, normalised → 4(T−1)+1 frames of
  /// 16H×16W. Scratch memory follows the window that is decoded at once, not the clip. With a counting arena
  /// the sink is not called. Over several ranks, which all have the latent, rank 0's sink gets the frames of
  /// one rank, bit for bit, and the others' none; where ranks cannot share the work, rank 0 does it alone and
  /// the others do not wait.
  void decode(Ops& ops, const Tensor& latent, const FrameSink& sink, const Group& ranks = {}) const;

  /// The same before rounding to pixels, nominally in [−1,1] but not clamped: f32 [4(T−1)+1, 16H, 16W, 3];
  /// undefined with a counting arena.
  Tensor decode_f32(Ops& ops, const Tensor& latent) const;

 protected:
  /// Frames [t,H',W',3] in the decoder's dtype, where the backend computes.
  using ChunkSink = std::function<void(const Tensor& frames)>;
  /// latent: de-normalised, f32 [T,H,W,48] on the host.
  virtual void decode_chunks(Ops& ops, const Tensor& latent, const ChunkSink& sink) const = 0;
  /// Over several ranks.
  virtual void decode_shared(Ops& ops, const Tensor& latent, const FrameSink& sink, const Group& ranks) const;

 private:
  void decode_alone(Ops& ops, const Tensor& latent, const FrameSink& sink) const;
};

}  // namespace magi
