// SPDX-License-Identifier: Apache-2.0
#include "model/dit.h"

#include <algorithm>

#include "io/config.h"

namespace magi {
namespace {

constexpr std::int64_t kLargest = 1 << 20;  // of any size in a configuration

}  // namespace

AttentionShape read_attention_shape(const ConfigNode& arch, std::int64_t hidden, std::int64_t head_dim,
                                    std::optional<std::int64_t> kv_heads) {
  AttentionShape shape;
  shape.head_dim = arch.integer("head_dim", head_dim, 8, 4096);
  require(hidden % shape.head_dim == 0 && shape.head_dim % 8 == 0,
          "{}: hidden_size {} must be a multiple of head_dim {}, and that of 8", arch.where("head_dim"),
          hidden, shape.head_dim);
  shape.heads = hidden / shape.head_dim;
  shape.kv_heads = arch.integer("num_query_groups", kv_heads.value_or(shape.heads), 1, kLargest);
  require(shape.heads % shape.kv_heads == 0, "{}: {} heads do not divide into {} query groups",
          arch.where("num_query_groups"), shape.heads, shape.kv_heads);
  return shape;
}

LatentChannels read_latent_channels(const ConfigNode& arch) {
  LatentChannels channels;
  channels.video = arch.integer("video_in_channels", channels.video, 1, kLargest);
  channels.audio = arch.integer("audio_in_channels", channels.audio, 1, kLargest);
  channels.text = arch.integer("text_in_channels", channels.text, 1, kLargest);
  return channels;
}

bool contains(const std::vector<std::int64_t>& layers, std::int64_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

AdapterWeights load_adapters(const WeightLoader& root, const LatentChannels& channels, std::int64_t width,
                             std::int64_t rotary_band_count) {
  const WeightLoader pre = root.in("pre_adapter");
  const WeightLoader post = root.in("post_adapter");
  AdapterWeights w;
  w.video_in = pre.linear_f32("video_embedder", width, channels.video, true);
  w.audio_in = pre.linear_f32("audio_embedder", width, channels.audio, true);
  w.text_in = pre.linear_f32("text_embedder", width, channels.text, true);
  w.video_norm = post.norm("final_norm_video", 1, width);
  w.audio_norm = post.norm("final_norm_audio", 1, width);
  w.video_out = post.linear_f32("final_linear_video", channels.video, width, false);
  w.audio_out = post.linear_f32("final_linear_audio", channels.audio, width, false);
  w.rotary_bands =
      pre.has("rope.bands") ? pre.host("rope.bands", {rotary_band_count}) : rotary_bands(rotary_band_count);
  return w;
}

AttentionWeights load_attention(const WeightLoader& layer, int groups, std::int64_t hidden,
                                const AttentionShape& shape, std::int64_t sinks, bool gated) {
  const WeightLoader in = layer.in("attention");
  AttentionWeights w;
  w.norm = in.norm("pre_norm", groups, hidden);
  if (gated) w.gate = in.linear("linear_g", groups, shape.heads, hidden);
  w.qkv = in.linear("linear_qkv", groups, shape.qkv_size(), hidden);
  w.proj = in.linear("linear_proj", groups, hidden, shape.q_size());
  w.q_norm = in.norm("q_norm", groups, shape.head_dim);
  w.k_norm = in.norm("k_norm", groups, shape.head_dim);
  if (sinks > 0) w.sinks = in.tensor("sinks", {sinks, shape.heads});
  return w;
}

DenseMlpWeights load_dense_mlp(const WeightLoader& layer, int groups, std::int64_t hidden,
                               std::int64_t intermediate) {
  const WeightLoader in = layer.in("mlp");
  return {in.linear("up_gate_proj", groups, 2 * intermediate, hidden),
          in.linear("down_proj", groups, hidden, intermediate)};
}

SequenceOnDevice upload_sequence(Ops& ops, const PackedSequence& sequence, RowRange rows,
                                 const Tensor& rotary_bands) {
  SequenceOnDevice inputs;
  inputs.rows = rows;
  inputs.segments = clip(sequence.segments, rows);
  inputs.rope = ops.upload(rotary_table(sequence.coordinates.rows(rows.first, rows.size()), rotary_bands));
  for (const Conditioning& branch : sequence.branches) {
    SequenceOnDevice::Branch& on_device = inputs.branches.emplace_back();
    on_device.text = ops.upload(branch.text);
    for (const ReferenceImage& image : branch.images)
      on_device.images.emplace_back(ops.upload(image.figure_token.reshape({1, image.figure_token.numel()})),
                                    ops.upload(cells_from_latent(image.latent)));
  }
  return inputs;
}

Tensor embed_tokens(Ops& ops, const AdapterWeights& w, const PackedSequence& sequence,
                    const SequenceOnDevice& inputs, const Tensor& video, const Tensor& audio, DType dtype) {
  Tensor hidden = ops.arena().alloc(dtype, {inputs.rows.size(), w.video_in.out});
  std::int64_t row = 0;
  const auto append = [&](const Tensor& x, const LinearWeight& weight) {
    const RowRange own = intersect({row, row + x.dim(0)}, inputs.rows);
    if (own.size() > 0)
      ops.linear_into(hidden.rows(own.first - inputs.rows.first, own.size()),
                      x.rows(own.first - row, own.size()), weight);
    row += x.dim(0);
  };
  for (const SequenceOnDevice::Branch& branch : inputs.branches) {
    append(video, w.video_in);
    append(audio, w.audio_in);
    append(branch.text, w.text_in);
    for (const auto& [figure_token, cells] : branch.images) {
      append(figure_token, w.text_in);
      append(cells, w.video_in);
    }
  }
  require(row == sequence.rows(), "inputs of {} rows for a sequence of {}", row, sequence.rows());
  return hidden;
}

std::vector<VelocityCells> project_velocity(Ops& ops, const AdapterWeights& w, const PackedSequence& sequence,
                                            const SequenceOnDevice& inputs, const Tensor& hidden,
                                            const Parallel& parallel) {
  std::vector<Parallel::Gathered> outputs;  // of each branch: video, audio
  const auto project = [&](const Segment& segment, const NormWeight& norm, const LinearWeight& out) {
    const RowRange covers{segment.first, segment.first + segment.rows};
    outputs.push_back({ops.arena().alloc(DType::f32, {segment.rows, out.out}), covers});
    const RowRange own = intersect(covers, inputs.rows);
    if (own.size() == 0) return;
    const Tensor rows = hidden.rows(own.first - inputs.rows.first, own.size());
    ops.linear_into(outputs.back().data.rows(own.first - covers.first, own.size()),
                    ops.rms_norm(rows, norm, {}, DType::f32), out);
  };
  for (std::size_t first : sequence.first_segments) {
    project(sequence.segments[first], w.video_norm, w.video_out);
    project(sequence.segments[first + 1], w.audio_norm, w.audio_out);
  }
  parallel.gather_rows(sequence.segments, outputs);

  std::vector<VelocityCells> velocities;
  for (std::size_t i = 0; i < outputs.size(); i += 2)
    velocities.push_back({outputs[i].data, outputs[i + 1].data});
  return velocities;
}

Tensor attended_heads(Ops& ops, const AttentionWeights& w, const AttentionShape& shape, const Tensor& n,
                      const Tensor& rope, const Segments& segments,
                      const std::function<Tensor(const Tensor& qkv, const AttentionOptions&,
                                                 const FinishHeads& finish)>& attend) {
  AttentionOptions options;
  options.heads = shape.heads;
  options.kv_heads = shape.kv_heads;
  options.head_dim = shape.head_dim;
  options.sinks = w.sinks;
  if (w.gate.data.defined()) options.gate = ops.linear(n, w.gate, segments, n.dtype());
  const Tensor qkv = ops.linear(n, w.qkv, segments, n.dtype());
  const auto finish = [&](const Tensor& heads, std::span<const HeadPart> parts) {
    ops.qk_norm_rope(heads, shape.heads, shape.kv_heads, w.q_norm, w.k_norm, rope, segments, parts);
  };
  return attend(qkv, options, finish);
}

}  // namespace magi
