// SPDX-License-Identifier: Apache-2.0
// The Wan autoencoder computed directly: the whole clip at once, without chunks or caches, in double, one
// loop per formula of model.md section 6.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "io/tensor_store.h"
#include "model/latent_stats.h"
#include "model/tokens.h"

namespace magi::wan_reference {

/// [C,T,H,W]
struct Volume {
  std::int64_t c = 0, t = 0, h = 0, w = 0;
  std::vector<double> values;

  Volume(std::int64_t c_, std::int64_t t_, std::int64_t h_, std::int64_t w_)
      : c(c_), t(t_), h(h_), w(w_), values(static_cast<std::size_t>(c_ * t_ * h_ * w_)) {}
  std::size_t index(std::int64_t ci, std::int64_t ti, std::int64_t hi, std::int64_t wi) const {
    return static_cast<std::size_t>(((ci * t + ti) * h + hi) * w + wi);
  }
  double& at(std::int64_t ci, std::int64_t ti, std::int64_t hi, std::int64_t wi) {
    return values[index(ci, ti, hi, wi)];
  }
  double at(std::int64_t ci, std::int64_t ti, std::int64_t hi, std::int64_t wi) const {
    return values[index(ci, ti, hi, wi)];
  }
  /// Zero outside of the volume.
  double padded(std::int64_t ci, std::int64_t ti, std::int64_t hi, std::int64_t wi) const {
    return ti < 0 || ti >= t || hi < 0 || hi >= h || wi < 0 || wi >= w ? 0 : at(ci, ti, hi, wi);
  }
  template <typename F>
  void fill(const F& f) {
    for (std::int64_t ci = 0; ci < c; ++ci)
      for (std::int64_t ti = 0; ti < t; ++ti)
        for (std::int64_t hi = 0; hi < h; ++hi)
          for (std::int64_t wi = 0; wi < w; ++wi) at(ci, ti, hi, wi) = f(ci, ti, hi, wi);
  }
};

inline Volume from_tensor(const Tensor& x) {
  Volume v(x.dim(-4), x.dim(-3), x.dim(-2), x.dim(-1));
  const auto values = x.values<float>();
  v.values.assign(values.begin(), values.end());
  return v;
}
inline Tensor to_tensor(const Volume& v) {
  Tensor x = Tensor::empty(DType::f32, {v.c, v.t, v.h, v.w});
  for (std::size_t i = 0; i < v.values.size(); ++i) x.data<float>()[i] = static_cast<float>(v.values[i]);
  return x;
}
inline Volume plus(Volume a, const Volume& b) {
  require(a.c == b.c && a.t == b.t && a.h == b.h && a.w == b.w,
          "reference: adding volumes of different sizes");
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}
inline Volume frames(const Volume& x, std::int64_t first, std::int64_t count) {
  Volume y(x.c, count, x.h, x.w);
  y.fill([&](auto c, auto t, auto h, auto w) { return x.at(c, first + t, h, w); });
  return y;
}
/// Frame 0 of a, then all of b.
inline Volume first_then(const Volume& a, const Volume& b) {
  Volume y(b.c, b.t + 1, b.h, b.w);
  y.fill([&](auto c, auto t, auto h, auto w) { return t == 0 ? a.at(c, 0, h, w) : b.at(c, t - 1, h, w); });
  return y;
}

class Model {
 public:
  explicit Model(const TensorStore& store) : store_(store) {}

  /// video [3,T,H,W] → normalised latent [48,t,h,w]
  Tensor encode(const Tensor& video) const {
    Volume x = patchify(from_tensor(video));
    x = causal(x, "encoder.conv1");
    for (int i = 0; has(stage("encoder.downsamples.", i, ".downsamples.0.residual.2.weight")); ++i)
      x = down_stage(x, stage("encoder.downsamples.", i, ".downsamples."));
    x = middle(x, "encoder.middle.");
    x = causal(silu(norm(x, "encoder.head.0.gamma")), "encoder.head.2");
    x = causal(x, "conv1");
    Volume mean(x.c / 2, x.t, x.h, x.w);
    mean.fill([&](auto c, auto t, auto h, auto w) { return x.at(c, t, h, w); });
    Tensor cells = cells_from_latent(to_tensor(mean));
    normalise_latent(cells);
    return latent_from_cells(cells, {mean.t, mean.h, mean.w});
  }

  /// normalised latent [48,t,h,w] → video [3,T,H,W]
  Tensor decode(const Tensor& latent) const {
    Tensor cells = cells_from_latent(latent);
    denormalise_latent(cells);
    Volume x = from_tensor(latent_from_cells(cells, {latent.dim(1), latent.dim(2), latent.dim(3)}));
    x = causal(x, "conv2");
    x = causal(x, "decoder.conv1");
    x = middle(x, "decoder.middle.");
    for (int i = 0; has(stage("decoder.upsamples.", i, ".upsamples.0.residual.2.weight")); ++i)
      x = up_stage(x, stage("decoder.upsamples.", i, ".upsamples."));
    x = causal(silu(norm(x, "decoder.head.0.gamma")), "decoder.head.2");
    return to_tensor(unpatchify(x));
  }

 private:
  static std::string stage(const std::string& before, int i, const std::string& after) {
    return before + std::to_string(i) + after;
  }
  bool has(const std::string& name) const { return store_.has(name); }

  /// Output (t,h,w) reads from (t·st − front, h·ss − pad, w·ss − pad) on; missing input is zero.
  Volume conv(const Volume& x, const std::string& name, std::int64_t front, std::int64_t pad, std::int64_t st,
              std::int64_t ss, std::int64_t out_t, std::int64_t out_h, std::int64_t out_w) const {
    const Tensor weight = store_.load(name + ".weight"), bias = store_.load(name + ".bias");
    const std::int64_t kt = weight.rank() == 5 ? weight.dim(2) : 1, kh = weight.dim(-2), kw = weight.dim(-1);
    Volume y(weight.dim(0), out_t, out_h, out_w);
    y.fill([&](auto o, auto t, auto h, auto w) {
      double sum = bias.data<float>()[o];
      const float* k = weight.data<float>() + o * x.c * kt * kh * kw;
      for (std::int64_t c = 0; c < x.c; ++c)
        for (std::int64_t a = 0; a < kt; ++a)
          for (std::int64_t b = 0; b < kh; ++b)
            for (std::int64_t d = 0; d < kw; ++d)
              sum += double{*k++} * x.padded(c, t * st - front + a, h * ss - pad + b, w * ss - pad + d);
      return sum;
    });
    return y;
  }
  Volume causal(const Volume& x, const std::string& name) const {
    const Tensor weight = store_.load(name + ".weight");
    const std::int64_t kt = weight.rank() == 5 ? weight.dim(2) : 1;
    return conv(x, name, kt - 1, weight.dim(-1) / 2, 1, 1, x.t, x.h, x.w);
  }

  Volume norm(const Volume& x, const std::string& name) const {
    const Tensor gamma = store_.load(name);
    Volume y(x.c, x.t, x.h, x.w);
    y.fill([&](auto c, auto t, auto h, auto w) {
      double square = 0;
      for (std::int64_t i = 0; i < x.c; ++i) square += x.at(i, t, h, w) * x.at(i, t, h, w);
      return x.at(c, t, h, w) / std::max(std::sqrt(square), 1e-12) * std::sqrt(static_cast<double>(x.c)) *
             double{gamma.data<float>()[c]};
    });
    return y;
  }
  static Volume silu(Volume x) {
    for (double& v : x.values) v = v / (1 + std::exp(-v));
    return x;
  }

  Volume residual(const Volume& x, const std::string& name) const {
    Volume h = causal(silu(norm(x, name + ".residual.0.gamma")), name + ".residual.2");
    h = causal(silu(norm(h, name + ".residual.3.gamma")), name + ".residual.6");
    return plus(h, has(name + ".shortcut.weight") ? causal(x, name + ".shortcut") : x);
  }
  Volume attention(const Volume& x, const std::string& name) const {
    const Volume qkv = causal(norm(x, name + ".norm.gamma"), name + ".to_qkv");
    const std::int64_t n = x.h * x.w;
    const auto at = [&](std::int64_t part, std::int64_t c, std::int64_t t, std::int64_t i) {
      return qkv.at(part * x.c + c, t, i / x.w, i % x.w);
    };
    Volume mixed(x.c, x.t, x.h, x.w);
    for (std::int64_t t = 0; t < x.t; ++t)
      for (std::int64_t i = 0; i < n; ++i) {
        std::vector<double> share(static_cast<std::size_t>(n));
        double sum = 0;
        for (std::int64_t j = 0; j < n; ++j) {
          double dot = 0;
          for (std::int64_t c = 0; c < x.c; ++c) dot += at(0, c, t, i) * at(1, c, t, j);
          sum += share[static_cast<std::size_t>(j)] = std::exp(dot / std::sqrt(static_cast<double>(x.c)));
        }
        for (std::int64_t c = 0; c < x.c; ++c) {
          double value = 0;
          for (std::int64_t j = 0; j < n; ++j)
            value += share[static_cast<std::size_t>(j)] / sum * at(2, c, t, j);
          mixed.at(c, t, i / x.w, i % x.w) = value;
        }
      }
    return plus(causal(mixed, name + ".proj"), x);
  }
  Volume middle(const Volume& x, const std::string& name) const {
    return residual(attention(residual(x, name + "0"), name + "1"), name + "2");
  }

  Volume down_stage(const Volume& x, const std::string& name) const {
    Volume h = x;
    int i = 0;
    for (; has(name + std::to_string(i) + ".residual.2.weight"); ++i)
      h = residual(h, name + std::to_string(i));
    const std::string down = name + std::to_string(i);
    const bool space = has(down + ".resample.1.weight"), time = has(down + ".time_conv.weight");
    if (space) h = conv(h, down + ".resample.1", 0, 0, 1, 2, h.t, h.h / 2, h.w / 2);
    if (time) h = first_then(h, conv(h, down + ".time_conv", 0, 0, 2, 1, (h.t - 1) / 2, h.h, h.w));
    return plus(h, average(x, h.c, time ? 2 : 1, space ? 2 : 1));
  }
  static Volume average(const Volume& x, std::int64_t out, std::int64_t ft, std::int64_t fs) {
    const std::int64_t front = (ft - x.t % ft) % ft, group = x.c * ft * fs * fs / out;
    Volume y(out, (x.t + front) / ft, x.h / fs, x.w / fs);
    y.fill([&](auto o, auto t, auto h, auto w) {
      double sum = 0;
      for (std::int64_t g = o * group; g < (o + 1) * group; ++g)
        sum += x.padded(g / (ft * fs * fs), t * ft + g / (fs * fs) % ft - front, h * fs + g / fs % fs,
                        w * fs + g % fs);
      return sum / static_cast<double>(group);
    });
    return y;
  }

  Volume up_stage(const Volume& x, const std::string& name) const {
    Volume h = x;
    int i = 0;
    for (; has(name + std::to_string(i) + ".residual.2.weight"); ++i)
      h = residual(h, name + std::to_string(i));
    const std::string up = name + std::to_string(i);
    if (!has(up + ".resample.1.weight")) return h;
    const bool time = has(up + ".time_conv.weight");
    if (time) h = double_time(h, up + ".time_conv");
    Volume big(h.c, h.t, 2 * h.h, 2 * h.w);
    big.fill([&](auto c, auto t, auto hi, auto wi) { return h.at(c, t, hi / 2, wi / 2); });
    return plus(causal(big, up + ".resample.1"), duplicate(x, h.c, time ? 2 : 1));
  }
  /// The first frame stays alone; the others, among themselves, become two each.
  Volume double_time(const Volume& x, const std::string& name) const {
    if (x.t == 1) return x;
    const Volume both = causal(frames(x, 1, x.t - 1), name);
    Volume later(x.c, 2 * both.t, x.h, x.w);
    later.fill([&](auto c, auto t, auto h, auto w) { return both.at(t % 2 * x.c + c, t / 2, h, w); });
    return first_then(x, later);
  }
  static Volume duplicate(const Volume& x, std::int64_t out, std::int64_t ft) {
    const std::int64_t repeats = out * ft * 4 / x.c;
    Volume y(out, x.t * ft - (ft - 1), 2 * x.h, 2 * x.w);
    y.fill([&](auto c, auto t, auto h, auto w) {
      const std::int64_t full = t + ft - 1;
      return x.at((((c * ft + full % ft) * 2 + h % 2) * 2 + w % 2) / repeats, full / ft, h / 2, w / 2);
    });
    return y;
  }

  static Volume patchify(const Volume& x) {
    Volume y(4 * x.c, x.t, x.h / 2, x.w / 2);
    y.fill([&](auto c, auto t, auto h, auto w) { return x.at(c / 4, t, 2 * h + c % 2, 2 * w + c / 2 % 2); });
    return y;
  }
  static Volume unpatchify(const Volume& x) {
    Volume y(x.c / 4, x.t, 2 * x.h, 2 * x.w);
    y.fill([&](auto c, auto t, auto h, auto w) { return x.at(c * 4 + w % 2 * 2 + h % 2, t, h / 2, w / 2); });
    return y;
  }

  const TensorStore& store_;
};

}  // namespace magi::wan_reference
