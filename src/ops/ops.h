// SPDX-License-Identifier: Apache-2.0
// The one list of what hardware must do. Public functions check shapes, allocate the result from the arena
// and call the backend's implementation (the protected virtual functions); a backend adds no checks of its
// own. The CPU backend is plain and is the oracle; others must agree with it. Matrices that are read may have
// a row pitch; results have none (but gated products and what is given as y to be filled). With a counting
// arena only shapes are worked out: no implementation is called.
//
// Notation: N rows (tokens), D hidden size, S residual streams, H heads, E experts a head. "Work dtype" is
// f32 or bf16. Row independence: a row's bits depend on that row alone (and, in attention, on its keys),
// never on how many rows are computed with it, on threads or on their number.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/arena.h"
#include "core/segments.h"
#include "core/tensor.h"
#include "ops/transfer.h"
#include "ops/window.h"

namespace magi {

// ---------------------------------------------------------------- weights, in a backend's own layout

/// Matrices of a linear layer, y = x·Wᵀ (+ bias). With groups = 3 the rows of each modality use their own
/// matrix.
struct LinearWeight {
  int groups = 1;
  std::int64_t out = 0;
  std::int64_t in = 0;
  DType dtype = DType::f32;  ///< compute dtype of the product: inputs are of this dtype
  Tensor data;               ///< layout is the backend's
  Tensor bias;               ///< [groups·out] f32, or undefined
};

/// Per-head experts, E(z) = swiglu7(z·W_gate, z·W_up)·W_down.
struct ExpertWeight {
  std::int64_t heads = 0;
  std::int64_t experts = 0;  ///< a head
  std::int64_t dim = 0;      ///< d_head
  std::int64_t hidden = 0;   ///< d_expert
  DType dtype = DType::f32;
  Tensor gate, up, down;  ///< layout is the backend's
  /// u8 [heads, Nvfp4Layout::head_bytes()]: four-bit experts (ops/nvfp4.h), the same bytes on every backend;
  /// gate, up and down are undefined then.
  Tensor nvfp4;
};

/// Weights of a convolution over [T,H,W,C] (1-D data: T = H = 1). Kernel [kt,kh,kw]; `depthwise` has one
/// group a channel.
struct ConvWeight {
  std::int64_t out = 0;
  std::int64_t in = 0;
  std::array<std::int64_t, 3> kernel{1, 1, 1};
  bool depthwise = false;
  bool transposed = false;
  DType dtype = DType::f32;
  Tensor data;  ///< layout is the backend's
  Tensor bias;  ///< [out] f32, or undefined
};

/// RMS norm weights [groups·D] f32 (groups 1 or 3), applied as x·rsqrt(mean x² + eps)·(1 + w).
struct NormWeight {
  int groups = 1;
  Tensor weight;
  float eps = 1e-6f;
};

/// One mHC site of one layer (model.md section 4).
struct MhcWeight {
  NormWeight norm;  ///< over S·D
  Tensor phi;       ///< [S·D, 2S+S²] f32
  Tensor alpha;     ///< [3] f32: pre, post, res
  Tensor bias;      ///< [2S+S²] f32: pre | post | res
};

// ---------------------------------------------------------------- options

/// What happens to a linear layer's output. The gated ones take interleaved columns (even gate, odd linear)
/// and halve the width: swiglu7(a,b) with a ≤ 7, |b| ≤ 7: a·σ(1.702a)·(b+1); silu_gate(a,b) = silu(a)·b.
/// `add` is linear_add's.
enum class Epilogue : std::uint8_t { none, swiglu7, silu_gate, add };
constexpr bool is_gated(Epilogue e) {
  return e == Epilogue::swiglu7 || e == Epilogue::silu_gate;
}

enum class Activation : std::uint8_t { none, relu, silu };

/// Coefficients of an mHC site, for its streams: h_pre [N,S], h_post [N,S], h_res [N,S,S], rounded to the
/// work dtype.
struct MhcCoefficients {
  Tensor pre, post, res;
};

struct AttentionOptions {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  float scale = 0;      ///< of q·kᵀ; 0 means 1/√head_dim
  bool causal = false;  ///< within each sample
  Tensor sinks;         ///< [n_sink, heads] f32 extra logits with zero values, or undefined
  Tensor gate;          ///< logits; output × σ(gate): [N, heads] or [N, heads·head_dim], or undefined
};

/// Tensors that a result's rows may be spread over.
inline constexpr std::size_t kRowParts = 64;

/// Where some kv heads go with their query heads: q | k | v, side by side.
struct HeadPart {
  Tensor to;  ///< [N, (query heads + 2·count)·head_dim], maybe columns of a larger matrix
  std::int64_t first = 0, count = 0;  ///< kv heads
};

/// Chosen experts: index [N,H,k] i32 (0…E−1 within the head, by falling score), weight [N,H,k] f32.
struct Routing {
  Tensor index, weight;
};

struct ConvOptions {
  std::array<std::int64_t, 3> stride{1, 1, 1};
  std::array<std::int64_t, 3> dilation{1, 1, 1};
  std::array<std::int64_t, 3> pad_front{0, 0,
                                        0};  ///< zeros before t,h,w; transposed: outputs dropped at the front
  std::array<std::int64_t, 3> pad_back{0, 0, 0};
};

/// Normalisation over channels. rms: x·rsqrt(mean x² + eps); l2: x/max(‖x‖₂, eps)·√C·gamma.
struct ChannelNorm {
  enum class Kind : std::uint8_t { rms, l2 } kind = Kind::rms;
  float eps = 1e-8f;
  Tensor gamma;  ///< [C] f32, l2 only
  Activation activation = Activation::none;
};

/// Called before and after each operation with its cost; profilers and benchmarks attach here. With a
/// counting arena too, where nothing happens in between.
struct OpCost {
  std::string_view name;
  double flops = 0;
  double bytes = 0;
};
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const OpCost& cost) = 0;
  virtual void end() = 0;
};

/// Times of points in a backend's work, for profilers. Marking waits for nothing.
class OpClock {
 public:
  virtual ~OpClock() = default;
  virtual void mark() = 0;
  /// Milliseconds from the first mark to each, once all the work before the last one is done.
  virtual std::vector<double> milliseconds() = 0;
};

// ---------------------------------------------------------------- the operations

class Ops {
 public:
  explicit Ops(Arena& arena) : arena_(&arena) {}
  virtual ~Ops() = default;

  /// Results come from here and go back to it with their last view.
  Arena& arena() { return *arena_; }
  void use_arena(Arena& arena) { arena_ = &arena; }
  void observe(OpObserver* observer) { observer_ = observer; }
  Device device() const { return arena_->device(); }
  /// What the backend holds on its device outside of the arena: weights and uploaded tensors, now and at most
  /// so far. A dry run counts as the real one would. On the host nobody counts: 0.
  struct Held {
    std::size_t bytes = 0, peak_bytes = 0;
  };
  virtual Held held() const { return {}; }
  /// Reads the host's clock, which is right for backends that work while they are called.
  virtual std::unique_ptr<OpClock> make_clock();
  /// The CUDA stream that everything goes through (a cudaStream_t), for transports of device memory; else
  /// null.
  virtual void* native_stream() const { return nullptr; }

  // -- moving weights and data to where the backend wants them (outside of steps)

  /// weight [groups·out, in] of any float dtype on the host → the backend's layout in `dtype`. bias
  /// [groups·out] or {}.
  virtual LinearWeight pack_linear(const Tensor& weight, int groups, DType dtype,
                                   const Tensor& bias = {}) = 0;
  /// W_gate, W_up [heads·experts, dim, hidden], W_down [heads·experts, hidden, dim] on the host
  /// (input-major).
  virtual ExpertWeight pack_experts(const Tensor& gate, const Tensor& up, const Tensor& down,
                                    std::int64_t heads, DType dtype) = 0;
  /// Experts whose `nvfp4` lies on the host → where the backend computes.
  ExpertWeight upload_experts(ExpertWeight host);
  /// weight as PyTorch stores it: conv [out, in/groups, k…], transposed [in, out, k…], 1 to 3 kernel axes.
  virtual ConvWeight pack_conv(const Tensor& weight, const Tensor& bias, bool depthwise, bool transposed,
                               DType dtype) = 0;
  /// Host tensor → device memory that lives as long as the tensor (f32 stays f32, …). On the CPU: itself.
  virtual Tensor upload(const Tensor& host) = 0;
  /// Device tensor → host memory; waits for the device. Zeros under a counting arena.
  virtual Tensor download(const Tensor& device) = 0;
  /// The same into memory of tensor.bytes() at `host`.
  virtual void download_to(const Tensor& tensor, std::byte* host);
  /// Overwrites `destination` (arena or uploaded memory) with a host tensor of the same shape and dtype.
  virtual void copy_in(Tensor destination, const Tensor& host) = 0;
  /// Slots of device memory to stream weights through; null where the host's memory is the device's.
  virtual std::unique_ptr<Transfer> make_transfer(int slots, std::size_t slot_bytes);
  /// Host memory that copies to the device can run from beside all else (page-locked for a GPU), 64-byte
  /// aligned.
  virtual std::shared_ptr<std::byte> host_memory(std::size_t bytes);

  // -- transformer

  /// x [N, in] (pitch fine) → [N, out], gated [N, out/2], line_pitch (lines.h) apart. `segments` chooses the
  /// matrix where groups = 3. The product accumulates in f32, bias is added in f32; result in `out_dtype`.
  Tensor linear(const Tensor& x, const LinearWeight& w, const Segments& segments, DType out_dtype,
                Epilogue epilogue = Epilogue::none);
  /// Same, one matrix for all rows, result in x's dtype.
  Tensor linear(const Tensor& x, const LinearWeight& w, Epilogue epilogue = Epilogue::none);
  /// Same, into y [N, out] (rows or columns of a larger tensor; f32 or bf16).
  void linear_into(Tensor y, const Tensor& x, const LinearWeight& w);
  /// add(y, linear(x, w, segments, y's dtype)) without the tensor in between (whose rounding a library's
  /// product may leave out): y [N, out] is of x's dtype or f32. Weights have no bias.
  void linear_add(Tensor y, const Tensor& x, const LinearWeight& w, const Segments& segments);

  /// x [N, D] → [N, D] in `out_dtype`; computed in f32.
  Tensor rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, DType out_dtype);

  /// Rows of `table` [V, D] chosen by ids [N] i32 → [N, D].
  Tensor embed(const Tensor& table, const Tensor& ids);

  /// Overwrites channels 0…C'−1 of x [N, C] (f32 or bf16) by features [2, C'] f32: row 1 for noised segments,
  /// row 0 for others.
  void set_time_features(Tensor x, const Tensor& features, const Segments& segments);

  /// x in another float dtype, or a copy in the same one.
  Tensor cast(const Tensor& x, DType dtype);

  /// to ← from: matrices of one shape and dtype; either may be columns of a larger one.
  void copy(Tensor to, const Tensor& from);

  /// a ← a + b; a may be f32 while b is bf16. Shapes equal.
  void add(Tensor a, const Tensor& b);

  /// One mHC site (`state` is allocated where undefined): (1) where `branch` [N,D] is given, streams [N,S,D]
  /// ← h_res·streams + h_post ⊗ branch with the coefficients in `state`; (2) the new site's coefficients go
  /// to `state`; (3) returns RMSNorm(Σ h_pre·streams, pre_norm) [N,D] in the work dtype. Mixing accumulates
  /// in f32, streams are stored in the work dtype.
  Tensor mhc_site(Tensor streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                  const NormWeight& pre_norm, const Segments& segments);
  /// Step (1) alone: after the last layer.
  void mhc_finish(Tensor streams, const Tensor& branch, const MhcCoefficients& state);

  /// RMS norm over head_dim of the q and k heads (weights [groups·head_dim]), then rotary: the first 2·half
  /// dims are rotated in halves by rope [N, 2·half] f32 = [sin | cos]. In place on qkv [N, (heads +
  /// 2·kv_heads)·head_dim]; or into `parts`, which take all heads in order (qkv is undefined afterwards).
  void qk_norm_rope(Tensor qkv, std::int64_t heads, std::int64_t kv_heads, const NormWeight& q_norm,
                    const NormWeight& k_norm, const Tensor& rope, const Segments& segments,
                    std::span<const HeadPart> parts = {});

  /// softmax(q·kᵀ·scale)·v within each sample; qkv as above → [N, heads·head_dim]. Query head h uses kv head
  /// ⌊h·kv_heads/heads⌋. Sinks and gate as in AttentionOptions.
  Tensor attention(const Tensor& qkv, std::span<const RowRange> samples, const AttentionOptions& options);
  /// The same into y, which takes the rows in order, one tensor after another: [n_i, heads·head_dim] each,
  /// with one pitch. At most kRowParts tensors.
  void attention_into(const Tensor& qkv, std::span<const RowRange> samples, const AttentionOptions& options,
                      std::span<const Tensor> y);

  /// The refiner's windows (window.h): q [n, heads·head_dim], the rows of `window.blocks`; kv [m, 2·kv_heads·
  /// head_dim], k heads then v heads, of the video rows `window.keys`, then of every audio and text row. A
  /// query attends the video rows of the blocks within `radius` and all that are not video. → y [n,
  /// heads·head_dim], rows of a larger tensor. Sinks and gate as in AttentionOptions, n rows.
  void window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                        const AttentionOptions& options, Tensor y);

  /// Attention of q [n, heads·head_dim] over each range of kv's rows [m, 2·kv_heads·head_dim] alone, neither
  /// normalised nor gated, for merge_attention → [n, parts, heads, head_dim + 2] f32: with s =
  /// q·k·scale·log₂e and top the highest s (or one not far below it), Σ 2^(s−top)·v, top, Σ 2^(s−top). Parts
  /// are not empty.
  Tensor attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                            const AttentionOptions& options);
  /// Attention from its partial results, at most 128 tensors of them: merged in the order given, one after
  /// another; how they are spread over tensors shows nowhere. Sinks and gate as the options say → y [n,
  /// heads·head_dim], rows of a larger tensor.
  void merge_attention(std::span<const Tensor> partials, const AttentionOptions& options, Tensor y);

  /// z [N, H·d] → the k largest of σ(gate_h·z_h) + bias a head; weight = σ of the chosen / max(Σ, 1e-12) ·
  /// scale. gate [H·E, d] f32, bias [H·E] f32; scores in f32.
  Routing route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                std::int64_t top_k, float scale);
  /// Σ over the chosen experts of weight·E(z), f32 in the order of choice, → [N, H·d] in z's dtype.
  Tensor experts(const Tensor& z, const Routing& routing, const ExpertWeight& w);
  /// The same into y, which takes the rows as attention_into's does: [n_i, H·d] each.
  void experts_into(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                    std::span<const Tensor> y);

  // -- text encoder (Gated DeltaNet)

  /// Depthwise causal convolution over rows, then SiLU: x [N, C], weight [C, k] f32 → [N, C].
  Tensor causal_conv_silu(const Tensor& x, const Tensor& weight);
  /// Gated delta rule over rows. qkv [N, 2·key_heads·d_k + value_heads·d_v]; decay_input, beta_input [N,
  /// value_heads]; a_log, dt_bias [value_heads] f32. q, k are L2-normalised, q scaled by 1/√d_k; β =
  /// σ(beta_input); per row and head g = −exp(a_log)·softplus(decay_input + dt_bias). State in f32, in
  /// chunks. → [N, value_heads·d_v].
  Tensor gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                          const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                          std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim);
  /// RMS norm of each head with plain weight [d] f32, times SiLU(z): x, z [N, heads·d] → [N, heads·d].
  Tensor gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps);

  // -- decoders and encoders: activations are channels-last, [T,H,W,C]

  /// Convolution; see ConvOptions. Transposed ones use stride and pad only on the last axis.
  Tensor conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options);
  /// Repeats the first frame `front` times before and the last `back` times after.
  Tensor replicate_time(const Tensor& x, std::int64_t front, std::int64_t back);
  /// Frames of a, then those of b: [T,H,W,C] and [T',H,W,C], equal dtypes → [T+T',H,W,C].
  Tensor concat_time(const Tensor& a, const Tensor& b);
  Tensor channel_norm(const Tensor& x, const ChannelNorm& norm);
  /// x + sin²(x·exp(alpha))/(exp(beta) + 1e-9) per channel; alpha, beta [C] f32.
  Tensor snake(const Tensor& x, const Tensor& alpha, const Tensor& beta);
  /// Nearest ×2 in h and w.
  Tensor upsample_nearest(const Tensor& x);
  /// Channel halves become alternate frames: [T,H,W,2C] → [2T,H,W,C].
  Tensor interleave_time(const Tensor& x);
  /// [T,H,W,p·p·C] → [T,p·H,p·W,C]; channel index (c·p + r)·p + q → row p·h+q, column p·w+r.
  Tensor unpatchify(const Tensor& x, std::int64_t patch);
  /// Inverse of unpatchify.
  Tensor patchify(const Tensor& x, std::int64_t patch);
  /// ⌊255·clamp(x/2 + ½, 0, 1)⌋ → u8.
  Tensor to_pixels(const Tensor& x);
  Tensor tanh(const Tensor& x);

 protected:
  // Bytes of scratch that a backend's implementation of an operation needs for the length of the call, beside
  // the result. They are taken from the arena before the call, under a counting arena too: scratch() is where
  // they are.
  virtual std::int64_t linear_scratch(const Tensor& x, const LinearWeight& w, const Segments& segments,
                                      Epilogue epilogue, const Tensor& y) const;
  virtual std::int64_t mhc_scratch(const Tensor& streams, const MhcWeight& w) const;
  virtual std::int64_t route_scratch(const Tensor& z, const Tensor& gate, std::int64_t heads,
                                     std::int64_t top_k) const;
  virtual std::int64_t experts_scratch(const Tensor& z, const Routing& routing, const ExpertWeight& w) const;
  virtual std::int64_t delta_rule_scratch(std::int64_t rows, std::int64_t value_heads, std::int64_t key_dim,
                                          std::int64_t value_dim) const;
  void* scratch() { return scratch_; }

  virtual void do_linear(const Tensor& x, const LinearWeight& w, const Segments& segments, Epilogue epilogue,
                         Tensor& y) = 0;
  virtual void do_rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, Tensor& y) = 0;
  virtual void do_embed(const Tensor& table, const Tensor& ids, Tensor& y) = 0;
  virtual void do_set_time_features(Tensor& x, const Tensor& features, const Segments& segments) = 0;
  virtual void do_cast(const Tensor& x, Tensor& y) = 0;
  virtual void do_copy(Tensor& to, const Tensor& from) = 0;
  virtual void do_add(Tensor& a, const Tensor& b) = 0;
  virtual void do_mhc_site(Tensor& streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                           const NormWeight& pre_norm, const Segments& segments, Tensor& n) = 0;
  virtual void do_mhc_finish(Tensor& streams, const Tensor& branch, const MhcCoefficients& state) = 0;
  virtual void do_qk_norm_rope(Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                               const NormWeight& q_norm, const NormWeight& k_norm, const Tensor& rope,
                               const Segments& segments, std::span<const HeadPart> parts) = 0;
  /// For backends that work in place: `parts` ← the heads of qkv.
  void copy_heads(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                  std::span<const HeadPart> parts);
  virtual void do_attention(const Tensor& qkv, std::span<const RowRange> samples,
                            const AttentionOptions& options, std::span<const Tensor> y) = 0;
  virtual void do_window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                                   const AttentionOptions& options, Tensor& y) = 0;
  virtual void do_attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                                     const AttentionOptions& options, Tensor& partials) = 0;
  virtual void do_merge_attention(std::span<const Tensor> partials, const AttentionOptions& options,
                                  Tensor& y) = 0;
  virtual void do_route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                        std::int64_t top_k, float scale, Routing& routing) = 0;
  virtual void do_experts(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                          std::span<const Tensor> y) = 0;
  virtual void do_causal_conv_silu(const Tensor& x, const Tensor& weight, Tensor& y) = 0;
  virtual void do_gated_delta_rule(const Tensor& qkv, const Tensor& decay_input, const Tensor& beta_input,
                                   const Tensor& a_log, const Tensor& dt_bias, std::int64_t key_heads,
                                   std::int64_t value_heads, std::int64_t key_dim, std::int64_t value_dim,
                                   Tensor& y) = 0;
  virtual void do_gated_rms_norm(const Tensor& x, const Tensor& z, const Tensor& weight, float eps,
                                 Tensor& y) = 0;
  virtual void do_conv(const Tensor& x, const ConvWeight& w, const ConvOptions& options, Tensor& y) = 0;
  virtual void do_replicate_time(const Tensor& x, std::int64_t front, std::int64_t back, Tensor& y) = 0;
  virtual void do_channel_norm(const Tensor& x, const ChannelNorm& norm, Tensor& y) = 0;
  virtual void do_snake(const Tensor& x, const Tensor& alpha, const Tensor& beta, Tensor& y) = 0;
  virtual void do_upsample_nearest(const Tensor& x, Tensor& y) = 0;
  virtual void do_interleave_time(const Tensor& x, Tensor& y) = 0;
  virtual void do_unpatchify(const Tensor& x, std::int64_t patch, Tensor& y) = 0;
  virtual void do_patchify(const Tensor& x, std::int64_t patch, Tensor& y) = 0;
  virtual void do_to_pixels(const Tensor& x, Tensor& y) = 0;
  virtual void do_tanh(const Tensor& x, Tensor& y) = 0;

 private:
  /// Takes the scratch and calls the implementation between the observer's begin and end; under a counting
  /// arena the scratch is all.
  void run(const OpCost& cost, const std::function<void()>& implementation, std::int64_t scratch_bytes = 0);

  Arena* arena_;
  OpObserver* observer_ = nullptr;
  void* scratch_ = nullptr;
};

/// The CPU backend. Threads: OpenMP's current number.
std::unique_ptr<Ops> make_cpu_ops(Arena& arena);

}  // namespace magi
