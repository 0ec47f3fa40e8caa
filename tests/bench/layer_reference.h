// SPDX-License-Identifier: Apache-2.0
// One layer of the preview in float64 for chosen rows, from the weights as they are stored; or, with every
// operation's result rounded to bf16, what plain bf16 arithmetic would give. Written down without the ops
// floor.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "model/preview.h"

namespace magi::layer_reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class Layer {
 public:
  /// `rounds`: results are rounded to bf16. Names are those of layer 0. `choices` [N, heads, k], where
  /// defined, are the experts to use.
  Layer(const PreviewConfig& config, const TensorStore& store, const Segments& segments, Tensor rope,
        bool rounds, Tensor choices)
      : c_(config), store_(store), rope_(std::move(rope)), rounds_(rounds), choices_(std::move(choices)) {
    for (const Segment& s : segments)
      for (std::int64_t r = 0; r < s.rows; ++r) modality_.push_back(static_cast<int>(s.modality));
  }

  /// Choices of the last call that were not among `choices`.
  std::int64_t other_choices() const { return other_choices_; }

  /// streams [N][S·D] before the layer → after it, at the `chosen` rows. One sample.
  Rows operator()(const Rows& streams, const std::vector<std::int64_t>& chosen) const {
    std::vector<std::int64_t> all(streams.size());
    std::iota(all.begin(), all.end(), 0);
    const bool grouped = c_.per_modality(0);
    const Site first = site(streams, all, "attn", "attention.pre_norm", grouped);
    Rows x = mixed(pick(streams, chosen), pick(first.post, chosen), pick(first.res, chosen),
                   attention(first.n, chosen, grouped));
    const Site second = site(x, chosen, "mlp", "mlp.pre_norm", grouped || c_.has_experts(0));
    const Rows branch = c_.has_experts(0) ? experts(second.n, chosen) : dense(second.n, chosen);
    return mixed(x, second.post, second.res, branch);
  }

 private:
  struct Site {
    Rows n, post, res;
  };

  double r(double v) const {
    return rounds_ ? static_cast<double>(static_cast<float>(static_cast<bf16>(static_cast<float>(v)))) : v;
  }
  static Rows pick(const Rows& rows, const std::vector<std::int64_t>& chosen) {
    Rows result;
    for (const std::int64_t row : chosen) result.push_back(rows[static_cast<std::size_t>(row)]);
    return result;
  }
  Tensor weight(const std::string& name, const Shape& shape) const {
    return store_.get("block.layers.0." + name, shape);
  }
  Row vector(const std::string& name, std::int64_t size) const {
    const Tensor t = weight(name, {size}).to(DType::f32);
    return {t.values<float>().begin(), t.values<float>().end()};
  }
  static double sigmoid(double v) { return 1 / (1 + std::exp(-v)); }

  /// x·Wᵀ; W [groups·out, in], the group is the row's modality.
  Rows linear(const Rows& x, const std::vector<std::int64_t>& rows, const std::string& name, int groups,
              std::int64_t out) const {
    const std::int64_t in = static_cast<std::int64_t>(x[0].size());
    const Tensor w = weight(name + ".weight", {groups * out, in}).to(DType::bf16);
    Rows y(x.size(), Row(static_cast<std::size_t>(out)));
#pragma omp parallel for schedule(dynamic, 16)
    for (std::int64_t o = 0; o < groups * out; ++o) {
      Row column(static_cast<std::size_t>(in));
      for (std::int64_t i = 0; i < in; ++i)
        column[static_cast<std::size_t>(i)] = static_cast<float>(w.data<bf16>()[o * in + i]);
      for (std::size_t n = 0; n < x.size(); ++n) {
        if (groups > 1 && modality_[static_cast<std::size_t>(rows[n])] != o / out) continue;
        y[n][static_cast<std::size_t>(o % out)] =
            r(std::inner_product(column.begin(), column.end(), x[n].begin(), 0.0));
      }
    }
    return y;
  }

  /// x·rsqrt(mean x² + 1e-6)·(1 + w), w of the row's group.
  static Row normed(const double* x, std::size_t size, const double* w) {
    const double scale =
        1 / std::sqrt(std::inner_product(x, x + size, x, 0.0) / static_cast<double>(size) + 1e-6);
    Row y(size);
    for (std::size_t i = 0; i < size; ++i) y[i] = x[i] * scale * (w[i] + 1);
    return y;
  }

  Site site(const Rows& streams, const std::vector<std::int64_t>& rows, const std::string& name,
            const std::string& pre_norm, bool pre_grouped) const {
    const std::size_t s = static_cast<std::size_t>(c_.streams), d = static_cast<std::size_t>(c_.hidden),
                      width = s * d;
    const std::size_t columns = 2 * s + s * s;
    const int groups = c_.per_modality(0) ? kModalities : 1, pre_groups = pre_grouped ? kModalities : 1;
    const Row norm = vector("mhc_norm.weight", groups * static_cast<std::int64_t>(width)),
              pre_weight = vector(pre_norm + ".weight", pre_groups * static_cast<std::int64_t>(d));
    const Tensor phi =
        weight("mhc_phi_fused_" + name, {c_.streams * c_.hidden, static_cast<std::int64_t>(columns)})
            .to(DType::f32);
    std::array<double, 3> alpha{};
    Row bias;
    for (int part = 0; part < 3; ++part) {
      const std::string kind = std::array{"pre_", "post_", "res_"}[static_cast<std::size_t>(part)] + name;
      alpha[static_cast<std::size_t>(part)] = vector("mhc_alpha_" + kind, 1)[0];
      const Tensor b =
          weight("mhc_bias_" + kind, part < 2 ? Shape{c_.streams} : Shape{c_.streams, c_.streams})
              .to(DType::f32);
      bias.insert(bias.end(), b.values<float>().begin(), b.values<float>().end());
    }
    Site result{Rows(streams.size()), Rows(streams.size()), Rows(streams.size())};
#pragma omp parallel for schedule(dynamic)
    for (std::size_t n = 0; n < streams.size(); ++n) {
      const auto group = static_cast<std::size_t>(modality_[static_cast<std::size_t>(rows[n])]);
      const Row x = normed(streams[n].data(), width, norm.data() + (groups > 1 ? group * width : 0));
      Row h(columns);
      for (std::size_t k = 0; k < width; ++k)
        for (std::size_t i = 0; i < columns; ++i)
          h[i] += x[k] * static_cast<double>(phi.data<float>()[k * columns + i]);
      for (std::size_t i = 0; i < columns; ++i)
        h[i] = alpha[i < s ? 0 : i < 2 * s ? 1 : 2] / std::sqrt(static_cast<double>(width)) * h[i] + bias[i];
      sinkhorn(h.data() + 2 * s, s);
      for (std::size_t i = 0; i < s; ++i) result.post[n].push_back(r(2 * sigmoid(h[s + i])));
      for (std::size_t i = 0; i < s * s; ++i) result.res[n].push_back(r(h[2 * s + i]));
      Row joined(d);
      for (std::size_t i = 0; i < d; ++i) {
        for (std::size_t j = 0; j < s; ++j) joined[i] += r(sigmoid(h[j])) * streams[n][j * d + i];
        joined[i] = r(joined[i]);
      }
      result.n[n] = normed(joined.data(), d, pre_weight.data() + (pre_groups > 1 ? group * d : 0));
      for (double& v : result.n[n]) v = r(v);
    }
    return result;
  }

  static void sinkhorn(double* v, std::size_t s) {
    for (std::size_t i = 0; i < s * s; ++i) v[i] = std::exp(v[i]);
    for (int half = 0; half < 40; ++half) {
      const std::size_t step = half % 2 == 0 ? s : 1, start = half % 2 == 0 ? 1 : s;
      for (std::size_t j = 0; j < s; ++j) {
        double total = 0;
        for (std::size_t i = 0; i < s; ++i) total += v[j * start + i * step];
        for (std::size_t i = 0; i < s; ++i) v[j * start + i * step] /= total;
      }
    }
  }

  Rows mixed(const Rows& streams, const Rows& post, const Rows& res, const Rows& branch) const {
    const auto s = static_cast<std::size_t>(c_.streams), d = static_cast<std::size_t>(c_.hidden);
    Rows result(streams.size(), Row(s * d));
    for (std::size_t n = 0; n < streams.size(); ++n)
      for (std::size_t to = 0; to < s; ++to)
        for (std::size_t i = 0; i < d; ++i) {
          double sum = r(post[n][to] * branch[n][i]);
          for (std::size_t from = 0; from < s; ++from)
            sum += res[n][to * s + from] * streams[n][from * d + i];
          result[n][to * d + i] = r(sum);
        }
    return result;
  }

  /// Norm and rotary of the heads from `first` on, in place.
  void norm_and_rotate(Rows& qkv, std::size_t first, const std::string& norm, bool grouped) const {
    const auto d = static_cast<std::size_t>(c_.attention.head_dim),
               half = static_cast<std::size_t>(rope_.dim(1) / 2);
    const Row w =
        vector("attention." + norm + ".weight", (grouped ? kModalities : 1) * c_.attention.head_dim);
#pragma omp parallel for
    for (std::size_t n = 0; n < qkv.size(); ++n) {
      const double* gain = w.data() + (grouped ? static_cast<std::size_t>(modality_[n]) * d : 0);
      const float* angles = rope_.data<float>() + n * 2 * half;
      for (std::size_t h = 0; h < static_cast<std::size_t>(c_.attention.heads); ++h) {
        double* x = qkv[n].data() + first + h * d;
        Row y = normed(x, d, gain);
        for (double& v : y) v = r(v);
        for (std::size_t i = 0; i < half; ++i) {
          const double sine = angles[i], cosine = angles[half + i], a = y[i], b = y[half + i];
          y[i] = r(a * cosine - b * sine);
          y[half + i] = r(b * cosine + a * sine);
        }
        std::copy(y.begin(), y.end(), x);
      }
    }
  }

  Rows attention(const Rows& n, const std::vector<std::int64_t>& chosen, bool grouped) const {
    const auto heads = static_cast<std::size_t>(c_.attention.heads),
               d = static_cast<std::size_t>(c_.attention.head_dim);
    const int groups = grouped ? kModalities : 1;
    std::vector<std::int64_t> all(n.size());
    std::iota(all.begin(), all.end(), 0);
    Rows qkv = linear(n, all, "attention.linear_qkv", groups, c_.attention.qkv_size());
    norm_and_rotate(qkv, 0, "q_norm", grouped);
    norm_and_rotate(qkv, heads * d, "k_norm", grouped);
    const Rows gate = linear(pick(n, chosen), chosen, "attention.linear_g", groups, c_.attention.heads);
    const Tensor sinks = weight("attention.sinks", {c_.sinks, c_.attention.heads}).to(DType::f32);
    Rows y(chosen.size(), Row(heads * d));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (std::size_t i = 0; i < chosen.size(); ++i)
      for (std::size_t h = 0; h < heads; ++h) {
        const double* q = qkv[static_cast<std::size_t>(chosen[i])].data() + h * d;
        Row p(n.size());
        for (std::size_t j = 0; j < n.size(); ++j)
          p[j] = std::inner_product(q, q + d, qkv[j].data() + (heads + h) * d, 0.0) /
                 std::sqrt(static_cast<double>(d));
        double most = *std::max_element(p.begin(), p.end()), total = 0;
        for (std::int64_t s = 0; s < c_.sinks; ++s)
          most = std::max<double>(most,
                                  sinks.data<float>()[s * c_.attention.heads + static_cast<std::int64_t>(h)]);
        for (std::int64_t s = 0; s < c_.sinks; ++s)
          total +=
              std::exp(sinks.data<float>()[s * c_.attention.heads + static_cast<std::int64_t>(h)] - most);
        for (double& v : p) total += v = std::exp(v - most);
        for (std::size_t e = 0; e < d; ++e) {
          double sum = 0;
          for (std::size_t j = 0; j < n.size(); ++j) sum += r(p[j] / total) * qkv[j][(2 * heads + h) * d + e];
          y[i][h * d + e] = r(r(sum) * r(sigmoid(gate[i][h])));
        }
      }
    return linear(y, chosen, "attention.linear_proj", groups, c_.hidden);
  }

  double swiglu7(double a, double b) const {
    a = std::min(a, 7.0), b = std::clamp(b, -7.0, 7.0);
    return r(r(a * r(sigmoid(1.702 * a))) * r(b + 1));
  }
  /// down(swiglu7(up(x))), the columns of `up` interleaved.
  Rows gated(const Rows& x, const std::vector<std::int64_t>& rows, const std::string& up,
             const std::string& down, int groups, std::int64_t hidden) const {
    const Rows both = linear(x, rows, up, groups, 2 * hidden);
    Rows inner(x.size(), Row(static_cast<std::size_t>(hidden)));
    for (std::size_t n = 0; n < x.size(); ++n)
      for (std::size_t i = 0; i < inner[n].size(); ++i)
        inner[n][i] = swiglu7(both[n][2 * i], both[n][2 * i + 1]);
    return linear(inner, rows, down, groups, c_.hidden);
  }
  Rows dense(const Rows& n, const std::vector<std::int64_t>& rows) const {
    return gated(n, rows, "mlp.up_gate_proj", "mlp.down_proj", c_.per_modality(0) ? kModalities : 1,
                 c_.intermediate);
  }

  Rows experts(const Rows& n, const std::vector<std::int64_t>& rows) const {
    const std::int64_t d = c_.moe_width / c_.moe_heads, hidden = c_.expert_hidden,
                       matrices = c_.moe_heads * c_.experts;
    const Rows z = linear(n, rows, "mlp.split_linear", 1, c_.moe_width);
    const Tensor router = weight("mlp.moe_mlp.gate", {matrices, d}).to(DType::f32);
    const Row bias = vector("mlp.moe_mlp.router.expert_bias_ema", matrices);
    const Tensor gate = weight("mlp.moe_mlp.W_gate", {matrices, d, hidden}),
                 up = weight("mlp.moe_mlp.W_up", {matrices, d, hidden}),
                 down = weight("mlp.moe_mlp.W_down", {matrices, hidden, d});
    Rows y(n.size(), Row(static_cast<std::size_t>(c_.moe_width)));
    std::int64_t other = 0;
#pragma omp parallel for schedule(dynamic) collapse(2) reduction(+ : other)
    for (std::size_t i = 0; i < n.size(); ++i)
      for (std::int64_t h = 0; h < c_.moe_heads; ++h) {
        const double* x = z[i].data() + h * d;
        Row score(static_cast<std::size_t>(c_.experts));
        for (std::int64_t e = 0; e < c_.experts; ++e) {
          const float* g = router.data<float>() + (h * c_.experts + e) * d;
          score[static_cast<std::size_t>(e)] = sigmoid(std::inner_product(x, x + d, g, 0.0));
        }
        std::vector<std::int64_t> order(score.size());
        std::iota(order.begin(), order.end(), 0);
        const auto biased = [&](std::int64_t e) {
          return score[static_cast<std::size_t>(e)] + bias[static_cast<std::size_t>(h * c_.experts + e)];
        };
        std::partial_sort(order.begin(), order.begin() + c_.top_k, order.end(),
                          [&](std::int64_t a, std::int64_t b) { return biased(a) > biased(b); });
        if (choices_.defined()) {
          const std::int32_t* given = choices_.data<std::int32_t>() + (rows[i] * c_.moe_heads + h) * c_.top_k;
          const std::int64_t known = std::count_if(
              order.begin(), order.begin() + c_.top_k,
              [&](std::int64_t e) { return std::find(given, given + c_.top_k, e) != given + c_.top_k; });
          other += c_.top_k - known;
          std::copy_n(given, c_.top_k, order.begin());
        }
        double total = 0;
        for (std::int64_t k = 0; k < c_.top_k; ++k)
          total += score[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])];
        Row sum(static_cast<std::size_t>(d));
        for (std::int64_t k = 0; k < c_.top_k; ++k) {
          const std::int64_t e = order[static_cast<std::size_t>(k)], m = h * c_.experts + e;
          const Row out = expert(x, gate.data<bf16>() + m * d * hidden, up.data<bf16>() + m * d * hidden,
                                 down.data<bf16>() + m * d * hidden);
          for (std::size_t j = 0; j < out.size(); ++j)
            sum[j] +=
                score[static_cast<std::size_t>(e)] / total * static_cast<double>(c_.route_scale) * out[j];
        }
        for (std::int64_t j = 0; j < d; ++j)
          y[i][static_cast<std::size_t>(h * d + j)] = r(sum[static_cast<std::size_t>(j)]);
      }
    other_choices_ = other;
    Rows result = linear(y, rows, "mlp.merge_linear", 1, c_.hidden);
    const Rows shared = gated(n, rows, "mlp.shared_expert_fc1", "mlp.shared_expert_fc2", 1, c_.shared_hidden);
    const Rows own = gated(n, rows, "mlp.modality_specific_shared_expert_fc1",
                           "mlp.modality_specific_shared_expert_fc2", kModalities, c_.modality_hidden);
    for (std::size_t i = 0; i < n.size(); ++i)
      for (std::size_t j = 0; j < result[i].size(); ++j)
        result[i][j] = r(result[i][j] + r(shared[i][j] + own[i][j]));
    return result;
  }

  /// E(x): matrices input-major.
  Row expert(const double* x, const bf16* gate, const bf16* up, const bf16* down) const {
    const auto d = static_cast<std::size_t>(c_.moe_width / c_.moe_heads),
               hidden = static_cast<std::size_t>(c_.expert_hidden);
    Row a(hidden), b(hidden), y(d);
    for (std::size_t i = 0; i < d; ++i)
      for (std::size_t j = 0; j < hidden; ++j) {
        a[j] += x[i] * static_cast<double>(static_cast<float>(gate[i * hidden + j]));
        b[j] += x[i] * static_cast<double>(static_cast<float>(up[i * hidden + j]));
      }
    for (std::size_t j = 0; j < hidden; ++j) {
      const double inner = swiglu7(r(a[j]), r(b[j]));
      for (std::size_t i = 0; i < d; ++i)
        y[i] += inner * static_cast<double>(static_cast<float>(down[j * d + i]));
    }
    for (double& v : y) v = r(v);
    return y;
  }

  PreviewConfig c_;
  const TensorStore& store_;
  Tensor rope_;
  bool rounds_;
  Tensor choices_;
  mutable std::int64_t other_choices_ = 0;
  std::vector<int> modality_;
};

}  // namespace magi::layer_reference
