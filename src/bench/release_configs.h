// SPDX-License-Identifier: Apache-2.0
// Sizes of the released decoders, whose readers have no defaults of their own (model.md section 6).
#pragma once

#include <nlohmann/json.hpp>

namespace magi {

inline nlohmann::json release_turbo_config() {
  return {{"decoder_block_out_channels", {64, 128, 256, 512}},
          {"decoder_layers_per_block", {2, 2, 2, 3, 3}},
          {"decoder_spatio_temporal_scaling", {false, true, true, true}},
          {"decoder_spatio_only", {false, true, false, false}},
          {"patch_size", 2},
          {"use_unpatchify", true},
          {"first_chunk_size", 7},
          {"step_size", 7}};
}

inline nlohmann::json release_audio_config() {
  const nlohmann::json decoder{
      {"channels", 128},   {"c_mults", {1, 2, 4, 8, 16}}, {"strides", {2, 4, 4, 8, 8}}, {"latent_dim", 64},
      {"out_channels", 2}, {"use_snake", true},           {"final_tanh", false}};
  return {
      {"sample_rate", 44100},
      {"model", {{"pretransform", {{"config", {{"decoder", {{"type", "oobleck"}, {"config", decoder}}}}}}}}}};
}

}  // namespace magi
