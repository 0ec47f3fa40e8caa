// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run share one denoising problem (pipeline.md section 8). A default Parallel is one rank:
// the calls below then hand their input on.
//
// Rank r of sp·cfg ranks belongs to guidance half r / sp and holds share r % sp of that half's rows (with cfg
// 1 the half is the whole packed sequence). Around attention the ranks of a half trade rows for heads; around
// the routed experts the ranks of an expert group, ep neighbours, trade rows for MoE heads, of which each
// rank has the weights of its own alone. Sizes are known beforehand, never a matter of routing. A row's bits
// depend on that row and its keys alone, so any degrees give the same bits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "core/segments.h"
#include "ops/ops.h"

namespace magi {

struct Degrees {
  int sp = 1;   ///< sequence parallelism: ranks that share a guidance half's tokens
  int cfg = 1;  ///< guidance halves on different ranks: 1 or 2
  int ep = 1;   ///< ranks that share the MoE heads; it divides sp·cfg
  bool operator==(const Degrees&) const = default;
};

/// Every possible choice for `ranks` ranks.
std::vector<Degrees> possible_degrees(int ranks);
/// "--sp 4 --cfg 2 --ep 1, 2, 4 or 8; …"
std::string list_possible_degrees(int ranks);
/// Fills in what is not given (0): guidance halves first, since they exchange nothing inside a layer; then
/// the smallest expert group of at least four ranks, or all, whose ranks can hold their share of the experts,
/// `expert_bytes` altogether in `bytes_a_rank`. Throws Error that lists what is possible for the ranks.
Degrees choose_degrees(int ranks, Degrees given, double expert_bytes = 0, double bytes_a_rank = 0);

/// Of the free memory, what experts may take where degrees are chosen; the rest computes.
inline constexpr double kExpertsShare = 0.6;

/// Segments of the rows in `range`, counted from its first row and its first sample.
Segments clip(const Segments& segments, RowRange range);

/// Rows that were sent on their way to become columns, or the reverse.
class Trade {
 public:
  Trade(std::unique_ptr<Exchange> transfer, Tensor result)
      : transfer_(std::move(transfer)), result_(std::move(result)) {}
  Tensor wait() {
    if (transfer_) transfer_->wait();
    return result_;
  }

 private:
  std::unique_ptr<Exchange> transfer_;
  Tensor result_;
};

/// All ranks, for tensors where `ops` computes: MPI between CPUs, NCCL between GPUs.
Group data_group(const World& world, Ops& ops);

class Parallel {
 public:
  /// One rank.
  Parallel() = default;
  /// This rank's place among `all`. Throws Error for degrees that do not fit.
  Parallel(Group all, Degrees degrees);

  const Degrees& degrees() const { return degrees_; }
  bool alone() const { return all_.alone(); }
  const Group& all() const { return all_; }            ///< every rank
  const Group& sequence() const { return sequence_; }  ///< the ranks of a guidance half
  const Group& experts() const { return experts_; }    ///< the ranks that share the experts

  /// Rows of the guidance half that rank `rank` of all works on.
  RowRange half(const Segments& sequence, int rank) const;
  RowRange half(const Segments& sequence) const { return half(sequence, all_.rank()); }
  /// Rows that it holds.
  RowRange rows(const Segments& sequence, int rank) const;
  RowRange rows(const Segments& sequence) const { return rows(sequence, all_.rank()); }
  /// The samples of its half, counted from the half's first row.
  std::vector<RowRange> samples(const Segments& sequence) const {
    return sample_ranges(clip(sequence, half(sequence)));
  }
  /// MoE heads whose experts this rank has.
  Share expert_heads(std::int64_t heads) const { return share_of(heads, experts_.size(), experts_.rank()); }

  /// Attention of whole samples: own rows of qkv, sinks and gate for all heads → own rows of all heads.
  /// `finish` completes qkv (norm, rotary), at once where the heads leave from. `attend` gets all rows of
  /// this half for some heads. Exchanges and computes head group by head group, so that one hides the other.
  using Finish = std::function<void(const Tensor& qkv, std::span<const HeadPart> parts)>;
  using Attend = std::function<Tensor(const Tensor& qkv, const AttentionOptions&)>;
  Tensor attention(Ops& ops, const Segments& sequence, const Tensor& qkv, const AttentionOptions& options,
                   const Finish& finish, const Attend& attend) const;

  /// z [own rows, heads·d] → [rows of the expert group, own heads·d].
  Trade to_expert_heads(Ops& ops, const Segments& sequence, const Tensor& z, std::int64_t heads) const;
  /// The reverse, into [own rows, heads·d].
  Tensor to_own_rows(Ops& ops, const Segments& sequence, const Tensor& y, std::int64_t heads,
                     std::int64_t width) const;

  /// Tensors whose rows are rows `covers` of the sequence: the rows that this rank holds are filled in;
  /// afterwards all are.
  struct Gathered {
    Tensor data;
    RowRange covers;
  };
  void gather_rows(const Segments& sequence, const std::vector<Gathered>& tensors) const;

  /// Head groups an attention exchange is cut into: one travels while another is computed.
  void set_head_groups(int groups) { head_groups_ = groups; }
  /// Whether the shared experts run while rows travel to the routed ones. Measured: docs/ranks.md.
  void set_expert_overlap(bool overlap) { expert_overlap_ = overlap; }

 private:
  std::vector<std::int64_t> row_counts(const Segments& sequence, const Group& group) const;

  Group all_, sequence_, experts_;
  Degrees degrees_;
  int head_groups_ = 1;
  bool expert_overlap_ = false;
};

}  // namespace magi
