// SPDX-License-Identifier: Apache-2.0
#include "model/refiner_rows.h"

#include <algorithm>

namespace magi {
namespace {

/// `rows` of a tensor whose first row is row `first` of the sequence.
Tensor rows_of(const Tensor& t, RowRange rows, std::int64_t first) {
  return t.rows(rows.first - first, rows.size());
}

AttentionOptions with_gate(AttentionOptions options, RowRange rows) {
  if (options.gate.defined()) options.gate = options.gate.rows(rows.first, rows.size());
  return options;
}

}  // namespace

RefinerRows::RefinerRows(const std::array<std::int64_t, 3>& grid, const std::array<std::int64_t, 3>& block,
                         std::int64_t rows, Group ranks)
    : cells_(grid),
      block_(block),
      grid_(grid, block),
      window_parts_(window_parts(grid_.size())),
      all_rows_(rows),
      ranks_(std::move(ranks)) {}

Share RefinerRows::dealt(int rank) const {
  const std::int64_t rows = others().first;
  const auto parts_before = [&](int r) {  // those whose middle lies in the first r shares of the rows
    return std::ranges::count_if(window_parts_, [&](const RowRange& blocks) {
      const RowRange part = grid_.rows(blocks);
      return (part.first + part.end) * ranks_.size() <= 2 * rows * r;
    });
  };
  const std::int64_t first = parts_before(rank);
  return {first, parts_before(rank + 1) - first};
}

RowRange RefinerRows::blocks(int rank) const {
  const Share own = dealt(rank);
  const auto begin = [&](std::int64_t part) {
    return part < std::ssize(window_parts_) ? window_parts_[static_cast<std::size_t>(part)].first
                                            : grid_.size();
  };
  return {begin(own.first), begin(own.end())};
}

RowRange RefinerRows::rows(int rank) const {
  const RowRange own = video(rank);
  return {own.first, rank == ranks_.size() - 1 ? all_rows_ : own.end};
}

std::vector<RowRange> RefinerRows::parts(int rank) const {
  const Share own = dealt(rank);
  std::vector<RowRange> parts;
  for (std::int64_t i = own.first; i < own.end(); ++i)
    parts.push_back(grid_.rows(window_parts_[static_cast<std::size_t>(i)]));
  if (rank == ranks_.size() - 1 && others().size() > 0) parts.push_back(others());
  return parts;
}

/// Audio and text rows with their gates, from the rank that holds them to all.
RefinerRows::Others RefinerRows::share_others(Ops& ops, const Tensor& qkv,
                                              const AttentionOptions& options) const {
  Others result;
  const Tensor& gate = options.gate;
  std::vector<Part> send, receive;
  if (last()) {
    result.qkv = rows_of(qkv, others(), rows().first);
    if (gate.defined()) result.gate = rows_of(gate, others(), rows().first);
  } else {
    result.qkv = ops.arena().alloc(qkv.dtype(), {others().size(), qkv.dim(1)});
    if (gate.defined()) result.gate = ops.arena().alloc(gate.dtype(), {others().size(), gate.dim(1)});
  }
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) continue;
    const bool from = r == ranks_.size() - 1;
    if (!last() && !from) continue;
    std::vector<Part>& list = last() ? send : receive;
    list.push_back({r, result.qkv});
    if (gate.defined()) list.push_back({r, result.gate});
  }
  ranks_.exchange(std::move(send), std::move(receive), "text rows");
  return result;
}

/// The keys that the own blocks' windows reach, on their way from the ranks that hold them.
RefinerRows::Keys RefinerRows::start_halo(Ops& ops, const Tensor& kv, const Tensor& others_kv,
                                          const std::array<std::int64_t, 3>& radius) const {
  const int me = ranks_.rank();
  const auto reach = [&](int rank) { return grid_.reach(blocks(rank), radius); };
  Keys keys;
  keys.video = reach(me);
  keys.kv = ops.arena().alloc(kv.dtype(), {keys.video.size() + others().size(), kv.dim(1)});
  const RowRange own = video(me);
  if (own.size() > 0) ops.copy(rows_of(keys.kv, own, keys.video.first), kv.rows(0, own.size()));
  if (others().size() > 0) ops.copy(keys.kv.rows(keys.video.size(), others().size()), others_kv);
  std::vector<Part> send, receive;
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == me) continue;
    const RowRange wanted = intersect(own, reach(r)), offered = intersect(video(r), keys.video);
    if (wanted.size() > 0) send.push_back({r, rows_of(keys.kv, wanted, keys.video.first)});
    if (offered.size() > 0) receive.push_back({r, rows_of(keys.kv, offered, keys.video.first)});
  }
  keys.halo = ranks_.start_exchange(std::move(send), std::move(receive), "halo");
  return keys;
}

Tensor RefinerRows::attention(Ops& ops, const Tensor& qkv, const AttentionOptions& options,
                              const std::array<std::int64_t, 3>& radius) const {
  const int me = ranks_.rank(), count = ranks_.size();
  const std::int64_t q_size = options.heads * options.head_dim, kv_size = qkv.dim(1) - q_size;
  const RowRange own_video{0, video(me).size()};
  const Tensor q = qkv.columns(0, q_size), kv = qkv.columns(q_size, kv_size);
  const Tensor y = ops.arena().alloc(qkv.dtype(), {qkv.dim(0), q_size});
  const Others all = share_others(ops, qkv, options);
  const std::int64_t rows = others().size();
  Keys keys = ranks_.alone() ? Keys{nullptr, kv, video(me)}
                             : start_halo(ops, kv, all.qkv.columns(q_size, kv_size), radius);

  // Audio and text queries over the own keys, which need no halo, while that is on its way.
  std::vector<RowRange> own_parts = parts(me);
  for (RowRange& part : own_parts) part = {part.first - this->rows().first, part.end - this->rows().first};
  const Tensor partials = ops.attention_partials(all.qkv.columns(0, q_size), kv, own_parts, options);
  const Share mine = share_of(rows, count, me);
  std::vector<Tensor> merged_from;
  std::vector<Part> send, receive;
  for (int r = 0; r < count; ++r) {
    const Share theirs = share_of(rows, count, r);
    if (r == me) {
      merged_from.push_back(partials.rows(mine.first, mine.count));
      continue;
    }
    merged_from.push_back(ops.arena().alloc(
        DType::f32,
        {mine.count, static_cast<std::int64_t>(parts(r).size()), options.heads, options.head_dim + 2}));
    send.push_back({r, partials.rows(theirs.first, theirs.count)});
    receive.push_back({r, merged_from.back()});
  }
  const auto partials_under_way =
      ranks_.start_exchange(std::move(send), std::move(receive), "partial results");

  if (keys.halo) keys.halo->wait();
  const WindowOptions window{cells_, block_, radius, blocks(me), keys.video};
  ops.window_attention(q.rows(0, own_video.size()), keys.kv, window, with_gate(options, own_video),
                       y.rows(0, own_video.size()));
  keys = {};
  partials_under_way->wait();

  // The rows that this rank merges go to the one that holds them.
  const std::int64_t first = own_video.size();
  const Tensor merged =
      last() ? y.rows(first + mine.first, mine.count) : ops.arena().alloc(qkv.dtype(), {mine.count, q_size});
  AttentionOptions merging = options;
  if (options.gate.defined()) merging.gate = all.gate.rows(mine.first, mine.count);
  ops.merge_attention(merged_from, merging, merged);
  std::vector<Part> back, finished;
  if (!last()) back.push_back({count - 1, merged});
  for (int r = 0; last() && r < me; ++r) {
    const Share theirs = share_of(rows, count, r);
    finished.push_back({r, y.rows(first + theirs.first, theirs.count)});
  }
  ranks_.exchange(std::move(back), std::move(finished), "text attention");
  return y;
}

void RefinerRows::gather(const Tensor& data, RowRange covers) const {
  std::vector<Part> send, receive;
  const RowRange own = intersect(rows(), covers);
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == ranks_.rank()) continue;
    const RowRange theirs = intersect(rows(r), covers);
    if (own.size() > 0) send.push_back({r, rows_of(data, own, covers.first)});
    if (theirs.size() > 0) receive.push_back({r, rows_of(data, theirs, covers.first)});
  }
  ranks_.exchange(std::move(send), std::move(receive), "velocity");
}

}  // namespace magi
