// SPDX-License-Identifier: Apache-2.0
// Public side of the transformer's operations: checks, result, cost. The text encoder's recurrence and the
// decoders' operations are in ops_decoders.cpp.
#include "ops/ops.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops/checks.h"
#include "ops/lines.h"
#include "ops/nvfp4.h"

namespace magi {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxTopK = 64;

/// Heads, sinks, and gate for `rows` queries, of all kinds of attention.
void check_attention(std::string_view op, std::int64_t rows, const AttentionOptions& o) {
  require(o.heads > 0 && o.kv_heads > 0 && o.heads % o.kv_heads == 0,
          "{}: {} heads over {} kv heads, expected a positive multiple", op, o.heads, o.kv_heads);
  require(o.head_dim > 0 && o.head_dim <= kMaxHeadDim, "{}: head_dim {}, expected 1 to {}", op, o.head_dim,
          kMaxHeadDim);
  if (o.sinks.defined()) checks::f32(op, "sinks", o.sinks, {-1, o.heads});
  if (o.gate.defined()) {
    const bool per_head = o.gate.rank() == 2 && o.gate.dim(1) == o.heads;
    checks::tensor(op, "gate", o.gate, {rows, per_head ? o.heads : o.heads * o.head_dim});
    checks::work_dtype(op, "gate", o.gate);
  }
}

/// The same, and queries and keys that lie apart.
void check_attention(std::string_view op, const Tensor& q, const Tensor& kv, const AttentionOptions& o) {
  check_attention(op, q.defined() && q.rank() == 2 ? q.dim(0) : 0, o);
  require(!o.causal, "{}: causal is for plain attention only", op);
  checks::tensor(op, "q", q, {-1, o.heads * o.head_dim});
  checks::work_dtype(op, "q", q);
  checks::tensor(op, "kv", kv, {-1, 2 * o.kv_heads * o.head_dim});
  checks::dtype(op, "kv", kv, {q.dtype()});
}

/// Rows of a larger tensor, for attention's results.
void check_attention_result(std::string_view op, const Tensor& y, std::int64_t rows,
                            const AttentionOptions& o) {
  checks::tensor(op, "y", y, {rows, o.heads * o.head_dim}, true);
  checks::work_dtype(op, "y", y);
}

/// A result of so many rows, spread over tensors.
void check_row_parts(std::string_view op, std::span<const Tensor> y, std::int64_t rows, std::int64_t columns,
                     DType dtype) {
  require(!y.empty() && y.size() <= kRowParts, "{}: {} tensors for the result, expected 1 to {}", op,
          y.size(), kRowParts);
  std::int64_t there = 0;
  for (const Tensor& part : y) {
    checks::tensor(op, "y", part, {-1, columns});
    checks::dtype(op, "y", part, {dtype});
    require(part.pitch() == y[0].pitch(), "{}: results with row pitches {} and {}", op, y[0].pitch(),
            part.pitch());
    there += part.dim(0);
  }
  require(there == rows, "{}: {} rows for the result of {}", op, there, rows);
}

void check_coefficients(std::string_view op, const MhcCoefficients& c, DType dtype, std::int64_t n,
                        std::int64_t s) {
  checks::tensor(op, "h_pre", c.pre, {n, s}, true);
  checks::tensor(op, "h_post", c.post, {n, s}, true);
  checks::tensor(op, "h_res", c.res, {n, s, s}, true);
  for (const Tensor* t : {&c.pre, &c.post, &c.res}) checks::dtype(op, "a coefficient", *t, {dtype});
}

class HostClock final : public OpClock {
 public:
  void mark() override { marks_.push_back(std::chrono::steady_clock::now()); }
  std::vector<double> milliseconds() override {
    std::vector<double> times;
    for (const auto& mark : marks_)
      times.push_back(std::chrono::duration<double, std::milli>(mark - marks_.front()).count());
    return times;
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> marks_;
};

}  // namespace

std::unique_ptr<OpClock> Ops::make_clock() {
  return std::make_unique<HostClock>();
}

void Ops::download_to(const Tensor& tensor, std::byte* host) {
  const Tensor copy = download(tensor);
  std::memcpy(host, copy.raw(), copy.bytes());
}

std::unique_ptr<Transfer> Ops::make_transfer(int, std::size_t) {
  return nullptr;
}

std::shared_ptr<std::byte> Ops::host_memory(std::size_t bytes) {
  const auto memory = std::make_shared<Tensor>(Tensor::empty(DType::u8, {static_cast<std::int64_t>(bytes)}));
  return {memory, static_cast<std::byte*>(memory->raw())};
}

void Ops::run(const OpCost& cost, const std::function<void()>& implementation, std::int64_t scratch_bytes) {
  Tensor scratch = scratch_bytes > 0 ? arena_->alloc(DType::u8, {scratch_bytes}) : Tensor();
  scratch_ = scratch.raw();
  if (observer_) observer_->begin(cost);
  if (!arena_->counts_only()) implementation();
  if (observer_) observer_->end();
}

// Backends that work with little of their own.
std::int64_t Ops::linear_scratch(const Tensor&, const LinearWeight&, const Segments&, Epilogue,
                                 const Tensor&) const {
  return 0;
}
std::int64_t Ops::mhc_scratch(const Tensor&, const MhcWeight&) const {
  return 0;
}
std::int64_t Ops::route_scratch(const Tensor&, const Tensor&, std::int64_t, std::int64_t) const {
  return 0;
}
std::int64_t Ops::experts_scratch(const Tensor&, const Routing&, const ExpertWeight&) const {
  return 0;
}
std::int64_t Ops::delta_rule_scratch(std::int64_t, std::int64_t, std::int64_t, std::int64_t) const {
  return 0;
}

Tensor Ops::linear(const Tensor& x, const LinearWeight& w, const Segments& segments, DType out_dtype,
                   Epilogue epilogue) {
  checks::tensor("linear", "x", x, {-1, w.in});
  checks::dtype("linear", "x", x, {w.dtype});
  require(checks::is_float(out_dtype), "linear: result dtype {}, expected f32 or bf16", name_of(out_dtype));
  checks::segments("linear", segments, x.dim(0), w.groups);
  const bool gated = is_gated(epilogue);
  require(epilogue != Epilogue::add, "linear: linear_add is what adds to a tensor");
  require(!gated || w.out % 2 == 0, "linear: a gated epilogue needs an even number of columns, not {}",
          w.out);
  Tensor y =
      gated ? arena().alloc(out_dtype, {x.dim(0), line_pitch(w.out / 2, out_dtype)}).columns(0, w.out / 2)
            : arena().alloc(out_dtype, {x.dim(0), w.out});
  const double flops =
      2.0 * static_cast<double>(x.dim(0)) * static_cast<double>(w.in) * static_cast<double>(w.out);
  run(
      {"linear", flops, checks::bytes({&x, &w.data, &y})}, [&] { do_linear(x, w, segments, epilogue, y); },
      linear_scratch(x, w, segments, epilogue, y));
  return y;
}

Tensor Ops::linear(const Tensor& x, const LinearWeight& w, Epilogue epilogue) {
  require(w.groups == 1, "linear: {} weight groups need segments", w.groups);
  return linear(x, w, {}, x.dtype(), epilogue);
}

void Ops::linear_into(Tensor y, const Tensor& x, const LinearWeight& w) {
  require(w.groups == 1, "linear_into: {} weight groups, expected one", w.groups);
  checks::tensor("linear_into", "x", x, {-1, w.in});
  checks::dtype("linear_into", "x", x, {w.dtype});
  checks::tensor("linear_into", "y", y, {x.dim(0), w.out});
  checks::work_dtype("linear_into", "y", y);
  const double flops =
      2.0 * static_cast<double>(x.dim(0)) * static_cast<double>(w.in) * static_cast<double>(w.out);
  run(
      {"linear", flops, checks::bytes({&x, &w.data, &y})}, [&] { do_linear(x, w, {}, Epilogue::none, y); },
      linear_scratch(x, w, {}, Epilogue::none, y));
}

void Ops::linear_add(Tensor y, const Tensor& x, const LinearWeight& w, const Segments& segments) {
  checks::tensor("linear_add", "x", x, {-1, w.in});
  checks::dtype("linear_add", "x", x, {w.dtype});
  checks::tensor("linear_add", "y", y, {x.dim(0), w.out}, true);
  checks::dtype("linear_add", "y", y, {w.dtype, DType::f32});
  checks::segments("linear_add", segments, x.dim(0), w.groups);
  require(!w.bias.defined(), "linear_add: weights with a bias, expected none");
  const double flops =
      2.0 * static_cast<double>(x.dim(0)) * static_cast<double>(w.in) * static_cast<double>(w.out);
  run(
      {"linear", flops, checks::bytes({&x, &w.data, &y, &y})},
      [&] { do_linear(x, w, segments, Epilogue::add, y); }, linear_scratch(x, w, segments, Epilogue::add, y));
}

Tensor Ops::rms_norm(const Tensor& x, const NormWeight& w, const Segments& segments, DType out_dtype) {
  checks::tensor("rms_norm", "x", x, {-1, -1});
  checks::work_dtype("rms_norm", "x", x);
  require(checks::is_float(out_dtype), "rms_norm: result dtype {}, expected f32 or bf16", name_of(out_dtype));
  checks::norm("rms_norm", w, x.dim(1));
  checks::segments("rms_norm", segments, x.dim(0), w.groups);
  Tensor y = arena().alloc(out_dtype, x.shape());
  run({"rms_norm", 4.0 * static_cast<double>(x.numel()), checks::bytes({&x, &y})},
      [&] { do_rms_norm(x, w, segments, y); });
  return y;
}

Tensor Ops::embed(const Tensor& table, const Tensor& ids) {
  checks::tensor("embed", "table", table, {-1, -1});
  checks::work_dtype("embed", "table", table);
  checks::tensor("embed", "ids", ids, {-1}, true);
  checks::dtype("embed", "ids", ids, {DType::i32});
  if (ids.device().kind == Device::Kind::cpu && ids.raw()) {
    for (const std::int32_t id : ids.values<std::int32_t>()) {
      require(id >= 0 && id < table.dim(0), "embed: id {} is outside of the table's {} rows", id,
              table.dim(0));
    }
  }
  Tensor y = arena().alloc(table.dtype(), {ids.dim(0), table.dim(1)});
  run({"embed", 0, 2 * checks::bytes({&y})}, [&] { do_embed(table, ids, y); });
  return y;
}

void Ops::set_time_features(Tensor x, const Tensor& features, const Segments& segments) {
  checks::tensor("set_time_features", "x", x, {-1, -1}, true);
  checks::work_dtype("set_time_features", "x", x);
  checks::f32("set_time_features", "features", features, {2, -1});
  require(features.dim(1) <= x.dim(1), "set_time_features: {} features do not fit into {} channels",
          features.dim(1), x.dim(1));
  checks::segments("set_time_features", segments, x.dim(0), kModalities);
  run({"set_time_features", 0, 4.0 * static_cast<double>(x.dim(0) * features.dim(1))},
      [&] { do_set_time_features(x, features, segments); });
}

Tensor Ops::cast(const Tensor& x, DType dtype) {
  require(x.defined() && (x.contiguous() || x.rank() == 2), "cast: x must be a dense tensor");
  checks::work_dtype("cast", "x", x);
  require(checks::is_float(dtype), "cast: result dtype {}, expected f32 or bf16", name_of(dtype));
  Tensor y = arena().alloc(dtype, x.shape());
  run({"cast", 0, checks::bytes({&x, &y})}, [&] { do_cast(x, y); });
  return y;
}

void Ops::copy(Tensor to, const Tensor& from) {
  checks::tensor("copy", "from", from, {-1, -1});
  checks::tensor("copy", "to", to, from.shape());
  checks::work_dtype("copy", "from", from);
  checks::dtype("copy", "to", to, {from.dtype()});
  run({"copy", 0, 2 * checks::bytes({&from})}, [&] { do_copy(to, from); });
}

void Ops::add(Tensor a, const Tensor& b) {
  require(a.defined() && a.contiguous(), "add: a must be contiguous");
  checks::tensor("add", "b", b, a.shape());
  checks::work_dtype("add", "a", a);
  checks::work_dtype("add", "b", b);
  require(a.dtype() == b.dtype() || a.dtype() == DType::f32, "add: cannot add f32 to bf16 in place");
  run({"add", static_cast<double>(a.numel()), checks::bytes({&a, &a, &b})}, [&] { do_add(a, b); });
}

Tensor Ops::mhc_site(Tensor streams, const Tensor& branch, MhcCoefficients& state, const MhcWeight& w,
                     const NormWeight& pre_norm, const Segments& segments) {
  checks::tensor("mhc_site", "streams", streams, {-1, -1, -1}, true);
  checks::work_dtype("mhc_site", "streams", streams);
  const DType dtype = streams.dtype();
  const std::int64_t n = streams.dim(0), s = streams.dim(1), d = streams.dim(2);
  const std::int64_t columns = 2 * s + s * s;
  if (branch.defined()) {
    checks::tensor("mhc_site", "branch", branch, {n, d});
    checks::dtype("mhc_site", "branch", branch, {dtype});
    check_coefficients("mhc_site", state, dtype, n, s);
  }
  checks::norm("mhc_site", w.norm, s * d);
  checks::f32("mhc_site", "phi", w.phi, {s * d, columns});
  checks::f32("mhc_site", "alpha", w.alpha, {3});
  checks::f32("mhc_site", "bias", w.bias, {columns});
  checks::norm("mhc_site", pre_norm, d);
  checks::segments("mhc_site", segments, n, std::max(w.norm.groups, pre_norm.groups));
  if (!state.pre.defined()) {
    state = {arena().alloc(dtype, {n, s}), arena().alloc(dtype, {n, s}), arena().alloc(dtype, {n, s, s})};
  }
  check_coefficients("mhc_site", state, dtype, n, s);
  Tensor y = arena().alloc(dtype, {n, d});
  run(
      {"mhc_site", 2.0 * static_cast<double>(n * s * d * (columns + s + 1)),
       checks::bytes({&streams, branch.defined() ? &streams : &branch, &branch, &y})},
      [&] { do_mhc_site(streams, branch, state, w, pre_norm, segments, y); }, mhc_scratch(streams, w));
  return y;
}

void Ops::mhc_finish(Tensor streams, const Tensor& branch, const MhcCoefficients& state) {
  checks::tensor("mhc_finish", "streams", streams, {-1, -1, -1}, true);
  checks::work_dtype("mhc_finish", "streams", streams);
  checks::tensor("mhc_finish", "branch", branch, {streams.dim(0), streams.dim(2)});
  checks::dtype("mhc_finish", "branch", branch, {streams.dtype()});
  check_coefficients("mhc_finish", state, streams.dtype(), streams.dim(0), streams.dim(1));
  run({"mhc_finish", 2.0 * static_cast<double>(streams.numel() * (streams.dim(1) + 1)),
       checks::bytes({&streams, &streams, &branch})},
      [&] { do_mhc_finish(streams, branch, state); });
}

void Ops::qk_norm_rope(Tensor qkv, std::int64_t heads, std::int64_t kv_heads, const NormWeight& q_norm,
                       const NormWeight& k_norm, const Tensor& rope, const Segments& segments,
                       std::span<const HeadPart> parts) {
  require(heads > 0 && kv_heads > 0, "qk_norm_rope: {} heads and {} kv heads, expected at least one", heads,
          kv_heads);
  checks::tensor("qk_norm_rope", "qkv", qkv, {-1, -1}, true);
  checks::work_dtype("qk_norm_rope", "qkv", qkv);
  const std::int64_t blocks = heads + 2 * kv_heads;
  require(qkv.dim(1) % blocks == 0, "qk_norm_rope: width {} is no multiple of {} heads", qkv.dim(1), blocks);
  const std::int64_t head_dim = qkv.dim(1) / blocks;
  checks::norm("qk_norm_rope", q_norm, head_dim);
  checks::norm("qk_norm_rope", k_norm, head_dim);
  checks::f32("qk_norm_rope", "rope", rope, {qkv.dim(0), -1});
  require(rope.dim(1) % 2 == 0 && rope.dim(1) <= head_dim,
          "qk_norm_rope: rope of width {}, expected an even number up to head_dim {}", rope.dim(1), head_dim);
  checks::segments("qk_norm_rope", segments, qkv.dim(0), std::max(q_norm.groups, k_norm.groups));
  std::int64_t next = 0;
  for (const HeadPart& p : parts) {
    require(p.first == next && p.count >= 0 && heads % kv_heads == 0,
            "qk_norm_rope: a part has kv heads from {} on, expected {}", p.first, next);
    next += p.count;
    checks::tensor("qk_norm_rope", "part", p.to, {qkv.dim(0), p.count * (heads / kv_heads + 2) * head_dim});
    checks::dtype("qk_norm_rope", "part", p.to, {qkv.dtype()});
  }
  require(parts.empty() || next == kv_heads, "qk_norm_rope: parts hold {} of {} kv heads", next, kv_heads);
  run({"qk_norm_rope", 8.0 * static_cast<double>(qkv.numel()), checks::bytes({&qkv, &qkv, &rope})},
      [&] { do_qk_norm_rope(qkv, heads, kv_heads, q_norm, k_norm, rope, segments, parts); });
}

void Ops::copy_heads(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     std::span<const HeadPart> parts) {
  const std::int64_t d = qkv.dim(1) / (heads + 2 * kv_heads), ratio = heads / kv_heads;
  for (const HeadPart& p : parts) {
    if (p.to.numel() == 0) continue;
    std::int64_t column = 0;
    const auto append = [&](std::int64_t first_head, std::int64_t count) {
      Tensor to = p.to.columns(column, count * d);
      do_copy(to, qkv.columns(first_head * d, count * d));
      column += count * d;
    };
    append(p.first * ratio, p.count * ratio);
    append(heads + p.first, p.count);
    append(heads + kv_heads + p.first, p.count);
  }
}

Tensor Ops::attention(const Tensor& qkv, std::span<const RowRange> samples, const AttentionOptions& options) {
  const Tensor y = arena().alloc(qkv.dtype(), {qkv.dim(0), options.heads * options.head_dim});
  attention_into(qkv, samples, options, {&y, 1});
  return y;
}

void Ops::attention_into(const Tensor& qkv, std::span<const RowRange> samples,
                         const AttentionOptions& options, std::span<const Tensor> y) {
  check_attention("attention", qkv.dim(0), options);
  checks::tensor("attention", "qkv", qkv, {-1, (options.heads + 2 * options.kv_heads) * options.head_dim});
  checks::work_dtype("attention", "qkv", qkv);
  std::int64_t next = 0;
  double pairs = 0;
  for (const RowRange& r : samples) {
    require(r.first == next && r.size() >= 0, "attention: a sample has rows {} to {}, expected a start at {}",
            r.first, r.end, next);
    next = r.end;
    pairs += static_cast<double>(r.size()) * static_cast<double>(r.size()) * (options.causal ? 0.5 : 1.0);
  }
  require(next == qkv.dim(0), "attention: samples hold {} rows, qkv {}", next, qkv.dim(0));
  check_row_parts("attention", y, qkv.dim(0), options.heads * options.head_dim, qkv.dtype());
  const double width = static_cast<double>(options.heads * options.head_dim);
  const double written = static_cast<double>(qkv.dim(0)) * width * static_cast<double>(size_of(qkv.dtype()));
  run({"attention", 4.0 * pairs * width, checks::bytes({&qkv}) + written},
      [&] { do_attention(qkv, samples, options, y); });
}

void Ops::window_attention(const Tensor& q, const Tensor& kv, const WindowOptions& window,
                           const AttentionOptions& options, Tensor y) {
  check_attention("window_attention", q, kv, options);
  const BlockGrid grid(window.grid, window.block);
  require(window.blocks.first >= 0 && window.blocks.first <= window.blocks.end &&
              window.blocks.end <= grid.size(),
          "window_attention: blocks {} to {} of {}", window.blocks.first, window.blocks.end, grid.size());
  double reach = 1;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    require(window.radius[axis] >= 0, "window_attention: axis {}: a radius of {}", axis, window.radius[axis]);
    reach *= std::min(
        static_cast<double>(window.grid[axis]),
        (2.0 * static_cast<double>(window.radius[axis]) + 1) * static_cast<double>(window.block[axis]));
  }
  const RowRange rows = grid.rows(window.blocks), needed = grid.reach(window.blocks, window.radius);
  require(q.dim(0) == rows.size(), "window_attention: blocks {} to {} have {} rows, q has {}",
          window.blocks.first, window.blocks.end, rows.size(), q.dim(0));
  require(window.keys.first <= needed.first && needed.end <= window.keys.end && window.keys.first >= 0 &&
              window.keys.size() <= kv.dim(0),
          "window_attention: keys of video rows {} to {} in {} rows, rows {} to {} are needed",
          window.keys.first, window.keys.end, kv.dim(0), needed.first, needed.end);
  check_attention_result("window_attention", y, q.dim(0), options);
  const double pairs =
      static_cast<double>(rows.size()) * (reach + static_cast<double>(kv.dim(0) - window.keys.size()));
  if (rows.size() == 0) return;
  run({"window_attention", 4.0 * pairs * static_cast<double>(options.heads * options.head_dim),
       checks::bytes({&q, &kv, &y})},
      [&] { do_window_attention(q, kv, window, options, y); });
}

Tensor Ops::attention_partials(const Tensor& q, const Tensor& kv, std::span<const RowRange> parts,
                               const AttentionOptions& options) {
  AttentionOptions plain = options;
  plain.sinks = plain.gate = {};
  check_attention("attention_partials", q, kv, plain);
  double pairs = 0;
  for (const RowRange& part : parts) {
    require(part.first >= 0 && part.size() > 0 && part.end <= kv.dim(0),
            "attention_partials: a part has rows {} to {} of {}", part.first, part.end, kv.dim(0));
    pairs += static_cast<double>(part.size()) * static_cast<double>(q.dim(0));
  }
  Tensor partials = arena().alloc(
      DType::f32, {q.dim(0), static_cast<std::int64_t>(parts.size()), options.heads, options.head_dim + 2});
  if (partials.numel() == 0) return partials;
  run({"attention_partials", 4.0 * pairs * static_cast<double>(options.heads * options.head_dim),
       checks::bytes({&q, &kv, &partials})},
      [&] { do_attention_partials(q, kv, parts, plain, partials); });
  return partials;
}

void Ops::merge_attention(std::span<const Tensor> partials, const AttentionOptions& options, Tensor y) {
  check_attention("merge_attention", y.dim(0), options);
  check_attention_result("merge_attention", y, y.dim(0), options);
  require(!partials.empty() && partials.size() <= 128, "merge_attention: {} tensors, expected 1 to 128",
          partials.size());
  double bytes = checks::bytes({&y});
  for (const Tensor& part : partials) {
    checks::f32("merge_attention", "partials", part, {y.dim(0), -1, options.heads, options.head_dim + 2});
    bytes += checks::bytes({&part});
  }
  if (y.dim(0) == 0) return;
  run({"merge_attention", 0, bytes}, [&] { do_merge_attention(partials, options, y); });
}

Routing Ops::route(const Tensor& z, const Tensor& gate, const Tensor& bias, std::int64_t heads,
                   std::int64_t top_k, float scale) {
  checks::tensor("route", "z", z, {-1, -1});
  checks::work_dtype("route", "z", z);
  require(heads > 0 && z.dim(1) % heads == 0, "route: width {} is no multiple of {} heads", z.dim(1), heads);
  checks::f32("route", "gate", gate, {-1, z.dim(1) / heads});
  checks::f32("route", "bias", bias, {gate.dim(0)});
  const std::int64_t experts = gate.dim(0) / heads;
  require(gate.dim(0) % heads == 0, "route: {} gate rows are no multiple of {} heads", gate.dim(0), heads);
  require(top_k > 0 && top_k <= std::min(experts, kMaxTopK), "route: top {} of {} experts, expected 1 to {}",
          top_k, experts, std::min(experts, kMaxTopK));
  const Shape shape{z.dim(0), heads, top_k};
  Routing routing{arena().alloc(DType::i32, shape), arena().alloc(DType::f32, shape)};
  run(
      {"route", 2.0 * static_cast<double>(z.numel() * experts), checks::bytes({&z, &gate})},
      [&] { do_route(z, gate, bias, heads, top_k, scale, routing); }, route_scratch(z, gate, heads, top_k));
  return routing;
}

ExpertWeight Ops::upload_experts(ExpertWeight host) {
  checks::tensor("upload_experts", "nvfp4", host.nvfp4, {host.heads, nvfp4_layout(host).head_bytes()}, true);
  checks::dtype("upload_experts", "nvfp4", host.nvfp4, {DType::u8});
  host.nvfp4 = upload(host.nvfp4);
  return host;
}

Tensor Ops::experts(const Tensor& z, const Routing& routing, const ExpertWeight& w) {
  const Tensor y = arena().alloc(z.dtype(), z.shape());
  experts_into(z, routing, w, {&y, 1});
  return y;
}

void Ops::experts_into(const Tensor& z, const Routing& routing, const ExpertWeight& w,
                       std::span<const Tensor> y) {
  checks::tensor("experts", "z", z, {-1, w.heads * w.dim});
  checks::dtype("experts", "z", z, {w.dtype});
  checks::tensor("experts", "routing index", routing.index, {z.dim(0), w.heads, -1}, true);
  checks::dtype("experts", "routing index", routing.index, {DType::i32});
  checks::f32("experts", "routing weight", routing.weight, routing.index.shape());
  check_row_parts("experts", y, z.dim(0), z.dim(1), z.dtype());
  const double flops =
      6.0 * static_cast<double>(routing.index.numel()) * static_cast<double>(w.dim * w.hidden);
  run(
      {"experts", flops, checks::bytes({&z, &w.gate, &w.up, &w.down, &w.nvfp4, &z})},  // y is as large as z
      [&] { do_experts(z, routing, w, y); }, experts_scratch(z, routing, w));
}

}  // namespace magi
