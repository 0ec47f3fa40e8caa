// SPDX-License-Identifier: Apache-2.0
// How latents, text and reference images become one packed sequence (spec: model.md section 3).
#pragma once

#include <cstdint>
#include <vector>

#include "core/segments.h"
#include "core/tensor.h"

namespace magi {

struct LatentGrid {
  std::int64_t t = 0, h = 0, w = 0;
  std::int64_t cells() const { return t * h * w; }
  bool operator==(const LatentGrid&) const = default;
};

/// A reference image: its latent [C,1,h,w] and the feature of its figure token [text channels].
struct ReferenceImage {
  Tensor latent;
  Tensor figure_token;
};

/// What one guidance branch is conditioned on. Host memory, f32.
struct Conditioning {
  Tensor text;  ///< [L, text channels]; L may be 0
  std::vector<ReferenceImage> images;
};

/// The layout of a denoising problem: constant over its steps. Each branch is one sample: video, audio, text,
/// then for each image its figure token (text modality) and its cells (video modality).
struct PackedSequence {
  LatentGrid grid;
  std::int64_t audio_rows = 0;
  std::vector<Conditioning> branches;
  Segments segments;
  std::vector<std::size_t> first_segments;  ///< of each branch, in `segments`
  Tensor coordinates;                       ///< [N, 9] f32: t,h,w, T,H,W, refT,refH,refW
  std::vector<std::int32_t>
      video_order;  ///< video row i of a branch is this cell of the grid; empty: raster order

  std::int64_t rows() const { return row_count(segments); }
};

/// Branches share grid, audio length and the order of the video rows (see PackedSequence::video_order).
PackedSequence pack(LatentGrid grid, std::int64_t audio_rows, std::vector<Conditioning> branches,
                    std::vector<std::int32_t> video_order = {});

/// coordinates [N,9], bands [nb] → [N, 6·nb] = sin(3nb) | cos(3nb), axes t,h,w.
Tensor rotary_table(const Tensor& coordinates, const Tensor& bands);

/// 10000^(−k/nb), k < nb.
Tensor rotary_bands(std::int64_t count);

/// [cos(1000τ·f) | sin(1000τ·f)], f_j = 10000^(−j/half), `channels` = 2·half values.
std::vector<float> time_features(float tau, std::int64_t channels);

/// [C,T,H,W] (a leading 1 axis is fine) → [T·H·W, C], in raster order or in `order`.
Tensor cells_from_latent(const Tensor& latent, const std::vector<std::int32_t>& order = {});
/// [T·H·W, C] → [C,T,H,W].
Tensor latent_from_cells(const Tensor& cells, LatentGrid grid, const std::vector<std::int32_t>& order = {});
/// The same into memory that is there: `cells` of cells_shape(latent), `latent` [C,T,H,W], contiguous.
void cells_from_latent(const Tensor& latent, const std::vector<std::int32_t>& order, Tensor& cells);
void latent_from_cells(const Tensor& cells, const std::vector<std::int32_t>& order, Tensor& latent);
/// [T·H·W, C] of a latent [C,T,H,W] (a leading 1 axis is fine).
Shape cells_shape(const Tensor& latent);

}  // namespace magi
