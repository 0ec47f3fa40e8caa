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

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "core/segments.h"
#include "model/row_trade.h"
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

/// The sizes of what a preview's layers exchange.
struct ExchangeSizes {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  bool gated = false;
  std::int64_t moe_heads = 0, moe_width = 0;
  DType dtype = DType::bf16;
};

/// Where the exchanges of a sequence end (see Landing).
struct Landings {
  Landing columns, rows;                ///< around attention
  Landing expert_columns, expert_rows;  ///< around the routed experts
};

/// Rows for the experts: here, or on their way.
class Dispatch {
 public:
  Dispatch() = default;
  explicit Dispatch(Tensor here) : here_(std::move(here)) {}
  explicit Dispatch(ToColumns trade) : trade_(std::move(trade)) {}
  Tensor arrive() { return trade_ ? trade_->arrive() : here_; }

 private:
  Tensor here_;
  std::optional<ToColumns> trade_;
};

/// All ranks, for tensors where `ops` computes: MPI between CPUs, NCCL between GPUs.
Group data_group(const World& world, Ops& ops);
/// Throws Error where the ranks cannot exchange data, or cannot share a model so; known before they connect.
void require_ranks(const World& world, Device device, const Degrees& given);

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

  /// Room for the exchanges of `sequence`, where the ranks' devices write to each other's memory and a group
  /// has at most kRowParts of them; all ranks ask together, and keep it for as long as they compute.
  Landings open_landings(const Segments& sequence, const ExchangeSizes& sizes) const;

  /// Attention of whole samples: own rows of qkv, sinks and gate for all heads → own rows of all heads.
  /// `finish` completes qkv (norm, rotary), at once where the heads are needed or leave from. `attend` gets
  /// all rows of this half for some heads, and where its result goes (see Ops::attention_into). With
  /// messages, exchanges and computes head group by head group, so that one may hide the other.
  using Finish = std::function<void(const Tensor& qkv, std::span<const HeadPart> parts)>;
  using Attend = std::function<void(const Tensor& qkv, const AttentionOptions&, std::span<const Tensor> y)>;
  Tensor attention(Ops& ops, const Segments& sequence, const Landings& landings, const Tensor& qkv,
                   const AttentionOptions& options, const Finish& finish, const Attend& attend) const;

  /// n [own rows, D] → z [rows of the expert group, own heads·d]; `split`: of each rank, what makes z for its
  /// heads, at once where it is needed or leaves from.
  Dispatch to_expert_heads(Ops& ops, const Segments& sequence, const Landings& landings, const Tensor& n,
                           const std::vector<LinearWeight>& split) const;
  /// The reverse, → [own rows, heads·width]: `compute` makes all rows of the own heads, if this rank has any.
  using ComputeRows = std::function<void(std::span<const Tensor> y)>;
  Tensor from_expert_heads(Ops& ops, const Segments& sequence, const Landings& landings, std::int64_t heads,
                           std::int64_t width, DType dtype, const ComputeRows& compute) const;

  /// Tensors whose rows are rows `covers` of the sequence: the rows that this rank holds are filled in;
  /// afterwards all are.
  struct Gathered {
    Tensor data;
    RowRange covers;
  };
  void gather_rows(const Segments& sequence, const std::vector<Gathered>& tensors) const;

  /// Whether ranks may write to each other's memory; otherwise messages carry everything.
  void set_windows(bool windows) { windows_ = windows; }
  /// Head groups a message exchange around attention is cut into: one travels while another is computed.
  void set_head_groups(int groups) { head_groups_ = groups; }
  /// Whether the shared experts run while rows travel to the routed ones. Measured: docs/ranks.md.
  void set_expert_overlap(bool overlap) { expert_overlap_ = overlap; }

 private:
  std::vector<std::int64_t> row_counts(const Segments& sequence, const Group& group, int member) const;
  Trade expert_trade(const Segments& sequence, const std::vector<std::int64_t>& widths, DType dtype,
                     const Landing& landing) const;

  Group all_, sequence_, experts_;
  Degrees degrees_;
  int head_groups_ = 1;
  bool expert_overlap_ = false;
  bool windows_ = true;
};

}  // namespace magi
