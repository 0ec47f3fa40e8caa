// SPDX-License-Identifier: Apache-2.0
// What the preview and the refiner share: adapters between latents and hidden states, attention, the dense
// MLP.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "model/parallel.h"
#include "model/tokens.h"
#include "model/weight_loader.h"
#include "ops/ops.h"

namespace magi {

class ConfigNode;

struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t q_size() const { return heads * head_dim; }
  std::int64_t qkv_size() const { return (heads + 2 * kv_heads) * head_dim; }
};

struct AttentionWeights {
  NormWeight norm;
  LinearWeight gate;  ///< undefined data: no gate
  LinearWeight qkv, proj;
  NormWeight q_norm, k_norm;
  Tensor sinks;  ///< [n_sink, heads] f32, or undefined
};

struct DenseMlpWeights {
  LinearWeight up, down;
};

struct LatentChannels {
  std::int64_t video = 48, audio = 64, text = 5120;
};

struct AdapterWeights {
  LinearWeight video_in, audio_in, text_in;  ///< to `width`, f32
  NormWeight video_norm, audio_norm;         ///< over `width`
  LinearWeight video_out, audio_out;         ///< to the latent channels, f32
  Tensor rotary_bands;                       ///< host
};

/// A branch's velocity: video [C,T,H,W], audio [A, C']; host memory, f32.
struct Velocity {
  Tensor video, audio;
};
/// The same where the backend computes: video cells [T·H·W, C] in the sequence's order, audio [A, C'].
struct VelocityCells {
  Tensor video, audio;
};

/// Intermediate results by name, for tests and for looking inside a model.
using Probe = std::function<void(std::string_view name, const Tensor& value)>;

/// From an `arch_config`: `head_dim`, which divides `hidden`, and `num_query_groups` (otherwise `kv_heads`;
/// absent: one for each head).
AttentionShape read_attention_shape(const ConfigNode& arch, std::int64_t hidden, std::int64_t head_dim,
                                    std::optional<std::int64_t> kv_heads);
/// From an `arch_config`; the defaults are the release's.
LatentChannels read_latent_channels(const ConfigNode& arch);
/// Whether a configured list of layers names `layer`.
bool contains(const std::vector<std::int64_t>& layers, std::int64_t layer);

/// `width`: hidden size times residual streams.
AdapterWeights load_adapters(const WeightLoader& root, const LatentChannels& channels, std::int64_t width,
                             std::int64_t rotary_bands);
AttentionWeights load_attention(const WeightLoader& layer, int groups, std::int64_t hidden,
                                const AttentionShape& shape, std::int64_t sinks, bool gated);
DenseMlpWeights load_dense_mlp(const WeightLoader& layer, int groups, std::int64_t hidden,
                               std::int64_t intermediate);

/// The inputs of a denoising problem that stay the same over its steps, where the backend computes.
struct SequenceOnDevice {
  struct Branch {
    Tensor text;                                    ///< [L, C]
    std::vector<std::pair<Tensor, Tensor>> images;  ///< figure token [1, C], cells [h·w, C]
  };
  std::vector<Branch> branches;
  RowRange rows;      ///< of the sequence, that this rank works on: n of N
  Segments segments;  ///< of those rows
  Tensor rope;        ///< [n, 6·nb]
  Landings landings;  ///< of the exchanges between ranks
};
SequenceOnDevice upload_sequence(Ops& ops, const PackedSequence& sequence, RowRange rows,
                                 const Tensor& rotary_bands);

/// Video cells [T·H·W, C] and audio [A, C'] shared by all branches, with the constant inputs → hidden states
/// [n, width].
Tensor embed_tokens(Ops& ops, const AdapterWeights& w, const PackedSequence& sequence,
                    const SequenceOnDevice& inputs, const Tensor& video, const Tensor& audio, DType dtype);

/// Hidden states [n, width] → each branch's velocity, gathered from all ranks.
std::vector<VelocityCells> project_velocity(Ops& ops, const AdapterWeights& w, const PackedSequence& sequence,
                                            const SequenceOnDevice& inputs, const Tensor& hidden,
                                            const Parallel& parallel = {});

/// qkv as the product left it → with q/k norm and rotary, in place or into parts for other ranks.
using FinishHeads = std::function<void(const Tensor& qkv, std::span<const HeadPart> parts)>;

/// n [N, D], normalised → [N, heads·head_dim], what the layer's projection takes: qkv, `attend` (which calls
/// `finish` before it attends; gated where the layer has a gate).
Tensor attended_heads(Ops& ops, const AttentionWeights& w, const AttentionShape& shape, const Tensor& n,
                      const Tensor& rope, const Segments& segments,
                      const std::function<Tensor(const Tensor& qkv, const AttentionOptions&,
                                                 const FinishHeads& finish)>& attend);

}  // namespace magi
