// SPDX-License-Identifier: Apache-2.0
#include "model/video_decoder.h"

#include <algorithm>

#include "model/latent_stats.h"
#include "model/tokens.h"

namespace magi {
namespace {

/// [48,T,H,W] normalised → [T,H,W,48] as the decoders take it.
Tensor decoder_input(const Tensor& latent) {
  require((latent.rank() == 4 || (latent.rank() == 5 && latent.dim(0) == 1)) &&
              latent.dim(-4) == kLatentChannels && latent.numel() > 0,
          "video decoder: latent is {}, expected [{},T,H,W]", to_string(latent.shape()), kLatentChannels);
  Tensor cells = cells_from_latent(latent);
  denormalise_latent(cells);
  return cells.reshape({latent.dim(-3), latent.dim(-2), latent.dim(-1), kLatentChannels});
}

}  // namespace

void VideoDecoder::decode(Ops& ops, const Tensor& latent, const FrameSink& sink, const Group& ranks) const {
  const Tensor input = decoder_input(latent);
  ranks.alone() ? decode_alone(ops, input, sink) : decode_shared(ops, input, sink, ranks);
}

void VideoDecoder::decode_alone(Ops& ops, const Tensor& latent, const FrameSink& sink) const {
  decode_chunks(ops, latent, [&](const Tensor& frames) {
    const Tensor pixels = ops.to_pixels(frames);
    if (!ops.arena().counts_only()) sink(ops.download(pixels));
  });
}

void VideoDecoder::decode_shared(Ops& ops, const Tensor& latent, const FrameSink& sink,
                                 const Group& ranks) const {
  if (ranks.rank() == 0) decode_alone(ops, latent, sink);
}

Tensor VideoDecoder::decode_f32(Ops& ops, const Tensor& latent) const {
  Tensor video;
  std::int64_t done = 0;
  decode_chunks(ops, decoder_input(latent), [&](const Tensor& frames) {
    if (ops.arena().counts_only()) return;
    const Tensor chunk = ops.download(frames).to(DType::f32);
    if (!video.defined())
      video =
          Tensor::empty(DType::f32, {4 * (latent.dim(-3) - 1) + 1, chunk.dim(1), chunk.dim(2), chunk.dim(3)});
    const auto values = chunk.values<float>();
    std::copy(values.begin(), values.end(), video.rows(done, chunk.dim(0)).data<float>());
    done += chunk.dim(0);
  });
  return video;
}

}  // namespace magi
