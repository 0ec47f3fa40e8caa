// SPDX-License-Identifier: Apache-2.0
// Attention by a plan: keys and values of some heads are packed once, then every (head, query tile) walks
// through its chunks: scores, online softmax in base 2, weighted values. All sums run in the plan's order.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "ops/cpu/attention_plan.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/softmax.h"

namespace magi {
namespace {

constexpr std::int64_t kMinChunk = 64;

/// Products for chunks of one width (keys are padded to the next power of two).
struct Products {
  const Gemm* scores;  ///< [64, head_dim] · [head_dim, width]
  const Gemm* values;  ///< [64, width] · [width, head_dim]
};

const std::byte* at(const Tensor& t, std::int64_t row, std::int64_t column) {
  return static_cast<const std::byte*>(t.raw()) +
         static_cast<std::size_t>(row * t.pitch() + column) * size_of(t.dtype());
}

class Attention {
 public:
  /// y: finished rows [n, heads·head_dim], one tensor after another; or one tensor of partial ones [n, parts,
  /// heads, head_dim + 2].
  Attention(const Tensor& q, const Tensor& kv, const AttentionPlan& plan, const AttentionOptions& options,
            std::span<const Tensor> y)
      : q_(q),
        kv_(kv),
        plan_(plan),
        options_(options),
        y_(y),
        depth_(round_up(options.head_dim, kDepthStep)) {
    const float scale =
        options.scale != 0 ? options.scale : 1.0f / std::sqrt(static_cast<float>(options.head_dim));
    scale_ = scale * static_cast<float>(M_LOG2E);
    sinks_ = sink_logits(options.sinks, options.heads);
    offsets_.push_back(0);
    for (const RowRange& chunk : plan.chunks) {
      const Products& p = products(chunk.size());
      offsets_.push_back(offsets_.back() + p.scores->packed_bytes() + p.values->packed_bytes());
    }
  }

  void run() {
    const std::int64_t tiles = static_cast<std::int64_t>(plan_.tiles.size());
    const std::int64_t group = options_.heads / options_.kv_heads;
    if (tiles == 0) return;
    // As few heads at a time as keep all threads busy: packed keys and values are the only large scratch.
    const std::int64_t batch =
        std::clamp<std::int64_t>(8 * omp_get_max_threads() / (tiles * group) + 1, 1, options_.kv_heads);
    packed_ = Tensor::empty(DType::u8, {batch, static_cast<std::int64_t>(offsets_.back())});
#pragma omp parallel
    {
      Thread thread(*this);
      for (std::int64_t first = 0; first < options_.kv_heads; first += batch) {
        const std::int64_t heads = std::min(batch, options_.kv_heads - first);
        const std::int64_t chunks = static_cast<std::int64_t>(plan_.chunks.size());
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < heads * chunks; ++i) pack(first, i / chunks, i % chunks, thread);
#pragma omp for schedule(dynamic)
        for (std::int64_t i = 0; i < heads * group * tiles; ++i) {
          const std::int64_t head = first * group + i / tiles;
          attend_tile(head, head / group - first, plan_.tiles[static_cast<std::size_t>(i % tiles)], thread);
        }
      }
    }
  }

 private:
  struct Workers {
    Gemm::Worker scores, values;
  };

  /// Scratch of one thread.
  struct Thread {
    std::map<std::int64_t, Workers> workers;
    Tensor block, query, scores, weights, values, sum;
    SoftmaxRows rows;

    explicit Thread(const Attention& a) {
      std::int64_t widest = 0;
      for (const auto& [width, p] : a.products_) {
        workers.emplace(width, Workers{Gemm::Worker(*p.scores), Gemm::Worker(*p.values)});
        widest = std::max(widest, width);
      }
      block = Tensor::empty(DType::f32, {widest, a.depth_});
      query = Tensor::empty(DType::f32, {kTileRows, a.depth_});
      scores = Tensor::empty(DType::f32, {kTileRows, widest});
      weights = Tensor::empty(DType::f32, {kTileRows, widest});
      values = Tensor::empty(DType::f32, {kTileRows, a.depth_});
      sum = Tensor::empty(DType::f32, {kTileRows, a.depth_});
    }
  };

  static std::int64_t width_of(std::int64_t keys) {
    std::int64_t width = kMinChunk;
    while (width < keys) width *= 2;
    return width;
  }

  const Products& products(std::int64_t keys) {
    const std::int64_t width = width_of(keys);
    auto found = products_.find(width);
    if (found == products_.end()) {
      const Products p{&Gemm::of(q_.dtype(), depth_, width), &Gemm::of(q_.dtype(), width, depth_)};
      found = products_.emplace(width, p).first;
    }
    return found->second;
  }

  std::byte* packed(std::int64_t slot, std::int64_t chunk) {
    return static_cast<std::byte*>(packed_.raw()) + static_cast<std::size_t>(slot) * offsets_.back() +
           offsets_[static_cast<std::size_t>(chunk)];
  }

  void pack(std::int64_t first_head, std::int64_t slot, std::int64_t chunk, Thread& thread) {
    const RowRange rows = plan_.chunks[static_cast<std::size_t>(chunk)];
    const std::int64_t width = width_of(rows.size()), dim = options_.head_dim;
    const Products& p = products_.at(width);
    const std::int64_t key = (first_head + slot) * dim;
    const std::int64_t value = key + options_.kv_heads * dim;
    std::byte* to = packed(slot, chunk);
    const auto copy = [&](std::int64_t column, DType dtype) {
      copy_block(at(kv_, rows.first, column), kv_.dtype(), kv_.pitch(), rows.size(), dim, thread.block.raw(),
                 dtype, width, depth_);
    };
    copy(key, p.scores->input());
    p.scores->pack(thread.block.raw(), true, to);
    copy(value, p.values->input());
    p.values->pack(thread.block.raw(), false, to + p.scores->packed_bytes());
  }

  void attend_tile(std::int64_t head, std::int64_t slot, const AttentionPlan::QueryTile& tile,
                   Thread& thread) {
    std::optional<DType> query_dtype;
    thread.rows.reset(tile.rows);
    bool first_chunk = true;
    for (std::int32_t r = tile.first_run; r < tile.end_run; ++r) {
      const AttentionPlan::ChunkRun run = plan_.runs[static_cast<std::size_t>(r)];
      for (std::int64_t chunk = run.first; chunk < run.end; ++chunk) {
        const RowRange keys = plan_.chunks[static_cast<std::size_t>(chunk)];
        const std::int64_t width = width_of(keys.size());
        const Products& p = products_.at(width);
        Workers& multiply = thread.workers.at(width);
        if (query_dtype != p.scores->input()) {
          query_dtype = p.scores->input();
          copy_block(at(q_, tile.first, head * options_.head_dim), q_.dtype(), q_.pitch(), tile.rows,
                     options_.head_dim, thread.query.raw(), *query_dtype, kTileRows, depth_);
        }
        const std::byte* packed_keys = packed(slot, chunk);
        float* scores = thread.scores.data<float>();
        multiply.scores(thread.query.raw(), packed_keys, scores, tile.rows);
        const std::int64_t causal_from = plan_.causal ? tile.first - keys.first : keys.size();
        thread.rows.weigh(scores, width, keys.size(), causal_from, scale_, q_.dtype(), p.values->input(),
                          thread.weights.raw());
        float* values = (first_chunk ? thread.sum : thread.values).data<float>();
        multiply.values(thread.weights.raw(), packed_keys + p.scores->packed_bytes(), values, tile.rows);
        if (!first_chunk) thread.rows.accumulate(thread.sum.data<float>(), values, depth_);
        first_chunk = false;
      }
    }
    y_[0].rank() == 4 ? store_partly(head, tile, thread) : store(head, tile, thread);
  }

  void store_partly(std::int64_t head, const AttentionPlan::QueryTile& tile, Thread& thread) {
    const std::int64_t dim = options_.head_dim;
    Tensor partials = y_[0];
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const float* sum = thread.sum.data<float>() + r * depth_;
      const std::int64_t item = (tile.first + r) * partials.dim(1) + tile.part;
      float* to = partials.data<float>() + (item * options_.heads + head) * (dim + 2);
      std::copy(sum, sum + dim, to);
      to[dim] = thread.rows.highest(r);
      to[dim + 1] = thread.rows.total(r);
    }
  }

  void store(std::int64_t head, const AttentionPlan::QueryTile& tile, Thread& thread) {
    const bool gate_per_head = options_.gate.defined() && options_.gate.dim(1) == options_.heads;
    const std::int64_t gate_column = gate_per_head ? head : head * options_.head_dim;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const float factor = thread.rows.factor(r, sinks_[static_cast<std::size_t>(head)]);
      const void* gate = options_.gate.defined() ? at(options_.gate, tile.first + r, gate_column) : nullptr;
      const AttentionRow row{thread.sum.data<float>() + r * depth_,     options_.head_dim, factor, gate,
                             gate ? options_.gate.dtype() : DType::f32, gate_per_head};
      const std::int64_t column = head * options_.head_dim;
      with_type(q_.dtype(), [&]<typename T>(T) {
        store_row(row, element_of<T>(y_, tile.first + r, column), q_.dtype());
      });
    }
  }

  const Tensor& q_;
  const Tensor& kv_;
  const AttentionPlan& plan_;
  const AttentionOptions& options_;
  std::span<const Tensor> y_;
  std::int64_t depth_;  ///< head_dim, padded
  float scale_ = 0;     ///< of scores, to base 2
  std::vector<float> sinks_;
  std::map<std::int64_t, Products> products_;
  std::vector<std::size_t> offsets_;  ///< of each chunk in a head's packed memory
  Tensor packed_;
};

}  // namespace

void attend(const Tensor& q, const Tensor& kv, const AttentionPlan& plan, const AttentionOptions& options,
            std::span<const Tensor> y) {
  Attention(q, kv, plan, options, y).run();
}

void attend_partly(const Tensor& q, const Tensor& kv, const AttentionPlan& plan,
                   const AttentionOptions& options, Tensor& partials) {
  Attention(q, kv, plan, options, {&partials, 1}).run();
}

}  // namespace magi
