// SPDX-License-Identifier: Apache-2.0
// How the ranks of a guidance half share a refiner sequence. 8 kv heads are too few to trade rows for heads,
// so a rank keeps its rows in attention too: video blocks, part by part (window_parts), and on the last rank
// audio and text besides. A video query needs the keys of the blocks around it, which their ranks send it
// (the halo), and those of audio and text. Audio and text queries go to every rank, which attends its own
// parts; the partial results are merged in the order of the parts, rows shared out evenly. One rank computes
// the same without the exchanges, so the bits are the same.
#pragma once

#include <vector>

#include "comm/group.h"
#include "ops/ops.h"

namespace magi {

class RefinerRows {
 public:
  /// A sequence of `rows` rows that begins with `grid` cells in blocks.
  RefinerRows(const std::array<std::int64_t, 3>& grid, const std::array<std::int64_t, 3>& block,
              std::int64_t rows, Group ranks);

  /// Rows of the sequence that a rank holds.
  RowRange rows(int rank) const;
  RowRange rows() const { return rows(ranks_.rank()); }

  /// Attention of the own rows: qkv [own rows, (heads + 2·kv_heads)·head_dim] → [own rows, heads·head_dim].
  /// radius: of the windows, in blocks. On a device nothing waits on the host.
  Tensor attention(Ops& ops, const Tensor& qkv, const AttentionOptions& options,
                   const std::array<std::int64_t, 3>& radius) const;

  /// data holds rows `covers` of the sequence, of which this rank has filled in its own; afterwards all are.
  void gather(const Tensor& data, RowRange covers) const;

 private:
  /// Which window parts a rank has: neighbours, dealt so that rows are as even as whole parts allow.
  Share dealt(int rank) const;
  std::vector<RowRange> parts(int rank) const;  ///< rows, of which the last rank's are audio's and text's
  RowRange blocks(int rank) const;
  RowRange video(int rank) const { return grid_.rows(blocks(rank)); }
  RowRange others() const { return {grid_.first_row(grid_.size()), all_rows_}; }
  bool last() const { return ranks_.rank() == ranks_.size() - 1; }

  struct Keys {
    std::unique_ptr<Exchange> halo;
    Tensor kv;
    RowRange video;
  };
  struct Others {
    Tensor qkv, gate;
  };
  Others share_others(Ops& ops, const Tensor& qkv, const AttentionOptions& options) const;
  Keys start_halo(Ops& ops, const Tensor& kv, const Tensor& others_kv,
                  const std::array<std::int64_t, 3>& radius) const;

  std::array<std::int64_t, 3> cells_, block_;
  BlockGrid grid_;
  std::vector<RowRange> window_parts_;
  std::int64_t all_rows_;
  Group ranks_;
};

}  // namespace magi
