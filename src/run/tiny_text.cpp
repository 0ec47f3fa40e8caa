// SPDX-License-Identifier: Apache-2.0
// The tiny root's text encoder and its byte-level tokenizer.
#include <nlohmann/json.hpp>

#include "run/tiny_weights.h"

namespace magi {
namespace {

constexpr std::int64_t kLayers = 6, kHidden = 64, kFfn = 128, kHeads = 4, kKvHeads = 2, kHeadDim = 32;
constexpr std::int64_t kKeyHeads = 2, kValueHeads = 4, kKeyDim = 16, kValueDim = 16, kConvKernel = 4;
constexpr std::int64_t kByteTokens = 256, kVocabulary = 320;

// Frequent pairs, so that ordinary English takes fewer tokens than bytes.
constexpr const char* kMerges[] = {
    "Ġ t",  "h e", "Ġt he", "i n",  "Ġ a",   "Ġ s",  "r e", "o n", "e r", "Ġ w", "Ġ f", "n d", "o u", "i t",
    "e n",  "a n", "Ġ c",   "in g", "Ġa nd", "Ġ o",  "i s", "e s", "a t", "o r", "a r", "Ġ m", "Ġ b", "e d",
    "Ġo f", "s t", "l l",   "Ġ i",  "Ġ p",   "Ġ in", "Ġ d", "Ġ l", "a s", "a l", "l e", "c h"};

bool full_attention(std::int64_t layer) {
  return layer % 4 == 3;
}

/// The byte-level alphabet: printable bytes stand for themselves, the others for code points from 256 on.
std::string byte_symbol(int byte) {
  const auto printable = [](int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += !printable(b);
  }
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
}

void mixer(WeightMaker& w, const std::string& layer, std::int64_t index) {
  if (full_attention(index)) {
    const std::string a = layer + "self_attn.";
    w.linear(a + "q_proj", 2 * kHeads * kHeadDim, kHidden);
    w.linear(a + "k_proj", kKvHeads * kHeadDim, kHidden);
    w.linear(a + "v_proj", kKvHeads * kHeadDim, kHidden);
    w.linear(a + "o_proj", kHidden, kHeads * kHeadDim);
    w.normal(a + "q_norm.weight", {kHeadDim}, 0.05f);
    w.normal(a + "k_norm.weight", {kHeadDim}, 0.05f);
    return;
  }
  const std::string a = layer + "linear_attn.";
  const std::int64_t channels = 2 * kKeyHeads * kKeyDim + kValueHeads * kValueDim;
  w.normal(a + "dt_bias", {kValueHeads}, 0.5f);
  w.normal(a + "A_log", {kValueHeads}, 0.5f);
  w.normal(a + "conv1d.weight", {channels, 1, kConvKernel}, 0.5f);
  w.normal(a + "norm.weight", {kValueDim}, 0.05f, 1);
  w.linear(a + "in_proj_qkv", channels, kHidden);
  w.linear(a + "in_proj_z", kValueHeads * kValueDim, kHidden);
  w.linear(a + "in_proj_b", kValueHeads, kHidden);
  w.linear(a + "in_proj_a", kValueHeads, kHidden);
  w.linear(a + "out_proj", kHidden, kValueHeads * kValueDim);
}

}  // namespace

nlohmann::json tiny_text_encoder_config() {
  nlohmann::json types = nlohmann::json::array();
  for (std::int64_t i = 0; i < kLayers; ++i)
    types.push_back(full_attention(i) ? "full_attention" : "linear_attention");
  return {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
          {"model_type", "qwen3_5"},
          {"text_config",
           {{"vocab_size", kVocabulary},
            {"hidden_size", kHidden},
            {"intermediate_size", kFfn},
            {"num_hidden_layers", kLayers},
            {"num_attention_heads", kHeads},
            {"num_key_value_heads", kKvHeads},
            {"head_dim", kHeadDim},
            {"rms_norm_eps", 1e-6},
            {"rope_parameters",
             {{"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}, {"rope_type", "default"}}},
            {"linear_conv_kernel_dim", kConvKernel},
            {"linear_key_head_dim", kKeyDim},
            {"linear_value_head_dim", kValueDim},
            {"linear_num_key_heads", kKeyHeads},
            {"linear_num_value_heads", kValueHeads},
            {"layer_types", types}}}};
}

nlohmann::json tiny_tokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object(), merges = nlohmann::json::array();
  for (int byte = 0; byte < kByteTokens; ++byte) vocabulary[byte_symbol(byte)] = byte;
  for (const std::string merge : kMerges) {
    std::string joined = merge;
    joined.erase(joined.find(' '), 1);
    vocabulary.emplace(joined, vocabulary.size());
    merges.push_back(merge);
  }
  const nlohmann::json end{
      {"id", kVocabulary - 1}, {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false},       {"normalized", false},        {"special", true}};
  const char* words =
      "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const nlohmann::json split{
      {"type", "Split"}, {"pattern", {{"Regex", words}}}, {"behavior", "Isolated"}, {"invert", false}};
  const nlohmann::json bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
  return {{"version", "1.0"},
          {"added_tokens", {end}},
          {"normalizer", {{"type", "NFC"}}},
          {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
          {"decoder", bytes},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}, {"ignore_merges", false}}}};
}

NamedTensors tiny_text_encoder(NoiseGenerator& noise) {
  WeightMaker w(noise);
  w.normal("model.language_model.embed_tokens.weight", {kVocabulary, kHidden}, 1);
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = "model.language_model.layers." + std::to_string(i) + ".";
    mixer(w, layer, i);
    w.linear(layer + "mlp.gate_proj", kFfn, kHidden);
    w.linear(layer + "mlp.up_proj", kFfn, kHidden);
    w.linear(layer + "mlp.down_proj", kHidden, kFfn);
    w.normal(layer + "input_layernorm.weight", {kHidden}, 0.05f);
    w.normal(layer + "post_attention_layernorm.weight", {kHidden}, 0.05f);
  }
  return w.take();
}

}  // namespace magi
