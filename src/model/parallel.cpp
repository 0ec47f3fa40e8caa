// SPDX-License-Identifier: Apache-2.0
#include "model/parallel.h"

#include <algorithm>
#include <numeric>

#include "comm/nccl.h"

namespace magi {
namespace {

constexpr std::int64_t kAligned = 8;  // columns: 16 bytes of bf16, what wide loads ask of a row's beginning

std::int64_t aligned(std::int64_t columns) {
  return (columns + kAligned - 1) / kAligned * kAligned;
}

std::int64_t first_row(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

/// Own rows of every rank's columns, about to become all rows of the own columns.
struct Departure {
  Tensor result;  ///< [all rows, own width]
  std::vector<Tensor>
      columns;  ///< by rank: [own rows, its width], to be filled in; the own ones lie in `result`
};

/// `widths`: of each rank's columns; padded to kAligned.
Departure places_for(Ops& ops, const Group& group, const std::vector<std::int64_t>& counts,
                     const std::vector<std::int64_t>& widths, DType dtype) {
  const auto me = static_cast<std::size_t>(group.rank());
  const std::int64_t all_rows = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  Departure d{ops.arena().alloc(dtype, {all_rows, aligned(widths[me])}), {}};
  for (std::size_t r = 0; r < widths.size(); ++r)
    d.columns.push_back(r == me ? d.result.rows(first_row(counts, group.rank()), counts[me])
                                : ops.arena().alloc(dtype, {counts[me], aligned(widths[r])}));
  return d;
}

Trade depart(const Group& group, const std::vector<std::int64_t>& counts, const Departure& d) {
  std::vector<Part> send, receive;
  for (int r = 0; r < group.size(); ++r) {
    if (r == group.rank()) continue;
    const auto i = static_cast<std::size_t>(r);
    send.push_back({r, d.columns[i]});
    receive.push_back({r, d.result.rows(first_row(counts, r), counts[i])});
  }
  return {group.start_exchange(std::move(send), std::move(receive), "rows to columns"), d.result};
}

/// All rows of the own columns on their way back: from rank r come its columns of the own rows.
struct Returning {
  std::unique_ptr<Exchange> transfer;
  std::vector<Tensor> parts;
};

Returning to_rows(Ops& ops, const Group& group, const std::vector<std::int64_t>& counts,
                  const Tensor& columns, const std::vector<std::int64_t>& widths) {
  Returning back;
  std::vector<Part> send, receive;
  for (int r = 0; r < group.size(); ++r) {
    const auto i = static_cast<std::size_t>(r);
    const Tensor rows = columns.rows(first_row(counts, r), counts[i]);
    if (r == group.rank()) {
      back.parts.push_back(rows);
      continue;
    }
    back.parts.push_back(
        ops.arena().alloc(columns.dtype(), {counts[static_cast<std::size_t>(group.rank())], widths[i]}));
    send.push_back({r, rows});
    receive.push_back({r, back.parts.back()});
  }
  back.transfer = group.start_exchange(std::move(send), std::move(receive), "columns to rows");
  return back;
}

void unpack(Ops& ops, const Tensor& part, const Tensor& y, std::int64_t column) {
  if (part.numel() > 0) ops.copy(y.columns(column, part.dim(1)), part);
}

/// Part `group` of `groups` of rank `rank`'s share of `units`.
Share group_of(std::int64_t units, int ranks, int rank, int groups, int group) {
  const Share own = share_of(units, ranks, rank);
  const Share part = share_of(own.count, groups, group);
  return {own.first + part.first, part.count};
}

}  // namespace

std::vector<Degrees> possible_degrees(int ranks) {
  std::vector<Degrees> list;
  for (const int cfg : {1, 2})
    for (int ep = 1; ep <= ranks && ranks % cfg == 0; ++ep)
      if (ranks % ep == 0) list.push_back({ranks / cfg, cfg, ep});
  return list;
}

std::string list_possible_degrees(int ranks) {
  std::vector<int> divisors;
  for (const Degrees& d : possible_degrees(ranks))
    if (d.cfg == 1) divisors.push_back(d.ep);
  std::string text = fmt::format("--sp {} --cfg 1", ranks);
  if (ranks % 2 == 0) text += fmt::format(" or --sp {} --cfg 2", ranks / 2);
  return text + fmt::format(", with --ep {}", fmt::join(divisors, " or "));
}

Degrees choose_degrees(int ranks, Degrees given, double expert_bytes, double bytes_a_rank) {
  const auto fits = [&](const Degrees& d) {
    return (given.sp == 0 || given.sp == d.sp) && (given.cfg == 0 || given.cfg == d.cfg) &&
           (given.ep == 0 || given.ep == d.ep);
  };
  const auto is_better = [&](const Degrees& a, const Degrees& b) {
    if (a.cfg != b.cfg) return a.cfg > b.cfg;
    const auto enough = [&](const Degrees& d) {
      return d.ep >= std::min(4, ranks) && (bytes_a_rank <= 0 || expert_bytes / d.ep <= bytes_a_rank);
    };
    return enough(a) != enough(b) ? enough(a) : enough(a) ? a.ep < b.ep : a.ep > b.ep;
  };
  std::vector<Degrees> list = possible_degrees(ranks);
  std::erase_if(list, [&](const Degrees& d) { return !fits(d); });
  const auto asked = [](const char* name, int value) {
    return value ? fmt::format(" --{} {}", name, value) : std::string();
  };
  require(!list.empty(), "{} rank{} cannot work with{}{}{}; possible: {}", ranks, ranks == 1 ? "" : "s",
          asked("sp", given.sp), asked("cfg", given.cfg), asked("ep", given.ep),
          list_possible_degrees(ranks));
  return *std::min_element(list.begin(), list.end(), is_better);
}

Segments clip(const Segments& segments, RowRange range) {
  Segments own;
  std::int32_t first_sample = 0;
  for (Segment s : segments) {
    const RowRange part = intersect({s.first, s.first + s.rows}, range);
    if (part.size() == 0) continue;
    s.first = part.first - range.first;
    s.rows = part.size();
    if (own.empty()) first_sample = s.sample;
    s.sample -= first_sample;
    own.push_back(s);
  }
  return own;
}

Group data_group(const World& world, Ops& ops) {
  if (world.alone()) return {};
  if (ops.device().kind == Device::Kind::cuda)
    return {make_nccl_transport(world, ops.device(), ops.native_stream()), "all GPUs"};
  require(world.host_carries_data(),
          "ranks that compute on CPUs need MPI: build with MAGI2_MPI and start with mpirun");
  return world.host();
}

Parallel::Parallel(Group all, Degrees degrees) : all_(std::move(all)), degrees_(degrees) {
  const int n = all_.size(), me = all_.rank();
  require(choose_degrees(n, degrees) == degrees, "degrees of parallelism must be given");
  const auto neighbours = [&](int count, const char* name) {
    std::vector<int> ranks(static_cast<std::size_t>(count));
    std::iota(ranks.begin(), ranks.end(), me / count * count);
    return all_.subgroup(ranks, name);
  };
  sequence_ = neighbours(degrees.sp, "the sequence");
  experts_ = neighbours(degrees.ep, "the experts");
}

RowRange Parallel::half(const Segments& sequence, int rank) const {
  if (degrees_.cfg == 1) return {0, row_count(sequence)};
  const std::vector<RowRange> samples = sample_ranges(sequence);
  require(samples.size() == 2, "--cfg 2 needs two guidance branches, not {}", samples.size());
  return samples[static_cast<std::size_t>(rank / degrees_.sp)];
}

RowRange Parallel::rows(const Segments& sequence, int rank) const {
  const RowRange all = half(sequence, rank);
  const Share own = share_of(all.size(), degrees_.sp, rank % degrees_.sp);
  return {all.first + own.first, all.first + own.end()};
}

std::vector<std::int64_t> Parallel::row_counts(const Segments& sequence, const Group& group) const {
  std::vector<std::int64_t> counts;
  for (int r = 0; r < group.size(); ++r)
    counts.push_back(rows(sequence, all_.rank() - group.rank() + r).size());  // groups are neighbours
  return counts;
}

Tensor Parallel::attention(Ops& ops, const Segments& sequence, const Tensor& qkv, const AttentionOptions& o,
                           const Finish& finish, const Attend& attend) const {
  if (sequence_.alone()) {
    finish(qkv, {});
    return attend(qkv, o);
  }
  require(!o.gate.defined() || o.gate.dim(1) == o.heads, "attention over ranks: only gates of whole heads");
  const int ranks = sequence_.size(), me = sequence_.rank();
  const std::int64_t d = o.head_dim, ratio = o.heads / o.kv_heads;
  const std::vector<std::int64_t> counts = row_counts(sequence, sequence_);
  // Heads are dealt as kv heads with their query heads; a group has a part of every rank's.
  const auto units = [&](int rank, int group) {
    return group_of(o.kv_heads, ranks, rank, head_groups_, group);
  };
  const auto width = [&](const Share& kv) { return kv.count * (ratio + 2) * d; };

  std::vector<Departure> departures;
  for (int g = 0; g < head_groups_; ++g) {
    std::vector<std::int64_t> widths;
    for (int r = 0; r < ranks; ++r)
      widths.push_back(width(units(r, g)) + (o.gate.defined() ? units(r, g).count * ratio : 0));
    departures.push_back(places_for(ops, sequence_, counts, widths, qkv.dtype()));
  }
  std::vector<HeadPart> parts;
  for (int r = 0; r < ranks; ++r)
    for (int g = 0; g < head_groups_; ++g) {
      const Share kv = units(r, g);
      if (kv.count == 0) continue;
      const Tensor& to = departures[static_cast<std::size_t>(g)].columns[static_cast<std::size_t>(r)];
      parts.push_back({to.columns(0, width(kv)), kv.first, kv.count});
      if (o.gate.defined() && to.dim(0) > 0)
        ops.copy(to.columns(width(kv), kv.count * ratio), o.gate.columns(kv.first * ratio, kv.count * ratio));
    }
  finish(qkv, parts);
  parts.clear();
  std::vector<Trade> gone;
  for (Departure& departure : departures) gone.push_back(depart(sequence_, counts, departure));
  departures.clear();

  std::vector<Returning> back;
  for (int g = 0; g < head_groups_; ++g) {
    const Tensor mine = gone[static_cast<std::size_t>(g)].wait();
    const Share kv = units(me, g);
    AttentionOptions own = o;
    own.kv_heads = kv.count;
    own.heads = kv.count * ratio;
    if (o.gate.defined()) own.gate = mine.columns(width(kv), own.heads);
    Tensor y = ops.arena().alloc(qkv.dtype(), {mine.dim(0), 0});
    if (kv.count > 0) {
      if (o.sinks.defined()) {
        own.sinks = ops.arena().alloc(DType::f32, {o.sinks.dim(0), own.heads});
        ops.copy(own.sinks, o.sinks.columns(kv.first * ratio, own.heads));
      }
      y = attend(mine.columns(0, width(kv)), own);
    }
    gone[static_cast<std::size_t>(g)] = {nullptr, {}};
    std::vector<std::int64_t> widths;
    for (int r = 0; r < ranks; ++r) widths.push_back(units(r, g).count * ratio * d);
    back.push_back(to_rows(ops, sequence_, counts, y, widths));
  }

  const Tensor y = ops.arena().alloc(qkv.dtype(), {qkv.dim(0), o.heads * d});
  for (int g = 0; g < head_groups_; ++g) {
    Returning& part = back[static_cast<std::size_t>(g)];
    part.transfer->wait();
    for (int r = 0; r < ranks; ++r)
      unpack(ops, part.parts[static_cast<std::size_t>(r)], y, units(r, g).first * ratio * d);
    part = {};
  }
  return y;
}

Trade Parallel::to_expert_heads(Ops& ops, const Segments& sequence, const Tensor& z,
                                std::int64_t heads) const {
  if (experts_.alone()) return {nullptr, z};
  const std::int64_t d = z.dim(1) / heads;
  const auto share = [&](int r) { return share_of(heads, experts_.size(), r); };
  std::vector<std::int64_t> widths;
  for (int r = 0; r < experts_.size(); ++r) widths.push_back(share(r).count * d);
  const std::vector<std::int64_t> counts = row_counts(sequence, experts_);
  const Departure departure = places_for(ops, experts_, counts, widths, z.dtype());
  for (int r = 0; r < experts_.size(); ++r) {
    const Tensor& to = departure.columns[static_cast<std::size_t>(r)];
    if (to.numel() > 0)
      ops.copy(to.columns(0, share(r).count * d), z.columns(share(r).first * d, share(r).count * d));
  }
  Trade trade = depart(experts_, counts, departure);
  if (!expert_overlap_) trade.wait();
  return trade;
}

Tensor Parallel::to_own_rows(Ops& ops, const Segments& sequence, const Tensor& y, std::int64_t heads,
                             std::int64_t width) const {
  if (experts_.alone()) return y;
  std::vector<std::int64_t> widths;
  for (int r = 0; r < experts_.size(); ++r)
    widths.push_back(share_of(heads, experts_.size(), r).count * width);
  Returning back = to_rows(ops, experts_, row_counts(sequence, experts_), y, widths);
  const Tensor own = ops.arena().alloc(y.dtype(), {rows(sequence).size(), heads * width});
  back.transfer->wait();
  for (int r = 0; r < experts_.size(); ++r)
    unpack(ops, back.parts[static_cast<std::size_t>(r)], own,
           share_of(heads, experts_.size(), r).first * width);
  return own;
}

void Parallel::gather_rows(const Segments& sequence, const std::vector<Gathered>& tensors) const {
  if (alone()) return;
  const int me = all_.rank();
  std::vector<Part> send, receive;
  for (int r = 0; r < all_.size(); ++r) {
    if (r == me) continue;
    for (const Gathered& t : tensors) {
      const auto held_by = [&](int rank) {
        const RowRange part = intersect(t.covers, rows(sequence, rank));
        return part.size() > 0 ? t.data.rows(part.first - t.covers.first, part.size()) : Tensor();
      };
      send.push_back({r, held_by(me)});
      receive.push_back({r, held_by(r)});
    }
  }
  all_.exchange(std::move(send), std::move(receive), "velocities");
}

}  // namespace magi
