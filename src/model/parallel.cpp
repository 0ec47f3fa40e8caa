// SPDX-License-Identifier: Apache-2.0
#include "model/parallel.h"

#include <algorithm>
#include <numeric>

#include "comm/nccl.h"

namespace magi {
namespace {

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
  return world.host();
}

void require_ranks(const World& world, Device device, const Degrees& given) {
  if (world.alone()) return;
  require(device.kind == Device::Kind::cuda || world.host_carries_data(),
          "ranks that compute on CPUs exchange data by MPI: start them with mpirun (needs a build with "
          "MAGI2_MPI)");
  choose_degrees(world.size(), given);
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

/// Of the ranks of `group`, to which rank `member` of all belongs in the place that this rank has in it.
std::vector<std::int64_t> Parallel::row_counts(const Segments& sequence, const Group& group,
                                               int member) const {
  std::vector<std::int64_t> counts;
  const int first = member / group.size() * group.size();  // groups are neighbours
  for (int r = 0; r < group.size(); ++r) counts.push_back(rows(sequence, first + r).size());
  return counts;
}

Landings Parallel::open_landings(const Segments& sequence, const ExchangeSizes& s) const {
  const int members = std::max(sequence_.size(), experts_.size());
  if (!windows_ || members == 1 || members > static_cast<int>(kRowParts)) return {};
  const std::int64_t ratio = s.heads / s.kv_heads;
  const std::int64_t head_columns = (ratio + 2) * s.head_dim + (s.gated ? ratio : 0);
  const std::int64_t moe_dim = s.moe_heads > 0 ? s.moe_width / s.moe_heads : 0;
  std::size_t end = 0;
  std::vector<std::pair<Landing*, std::size_t>> places;
  Landings landings;
  // As much as any rank of the run needs, so that all places are the same.
  const auto add = [&](Landing& landing, const Group& group, const auto& elements) {
    if (group.alone()) return;
    std::int64_t most = 0;
    for (int r = 0; r < all_.size(); ++r) {
      const std::vector<std::int64_t> counts = row_counts(sequence, group, r);
      const int place = r % group.size();
      most = std::max(most, elements(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
                                     counts[static_cast<std::size_t>(place)], place));
    }
    places.emplace_back(&landing, end);
    end += (static_cast<std::size_t>(most) * size_of(s.dtype) + 255) / 256 * 256;
  };
  const auto width = [&](std::int64_t units, const Group& group, int place, std::int64_t columns) {
    return aligned_columns(share_of(units, group.size(), place).count * columns);
  };
  add(landings.columns, sequence_, [&](std::int64_t all, std::int64_t, int place) {
    return all * width(s.kv_heads, sequence_, place, head_columns);
  });
  add(landings.rows, sequence_,
      [&](std::int64_t, std::int64_t own, int) { return own * s.heads * s.head_dim; });
  if (s.moe_heads > 0) {
    add(landings.expert_columns, experts_, [&](std::int64_t all, std::int64_t, int place) {
      return all * width(s.moe_heads, experts_, place, moe_dim);
    });
    add(landings.expert_rows, experts_,
        [&](std::int64_t, std::int64_t own, int) { return own * s.moe_width; });
  }
  const std::shared_ptr<Window> window = all_.open_window(end);
  for (const auto& [landing, offset] : places) *landing = {window, offset};
  return landings;
}

Tensor Parallel::attention(Ops& ops, const Segments& sequence, const Landings& landings, const Tensor& qkv,
                           const AttentionOptions& o, const Finish& finish, const Attend& attend) const {
  if (sequence_.alone()) {
    finish(qkv, {});
    const Tensor y = ops.arena().alloc(qkv.dtype(), {qkv.dim(0), o.heads * o.head_dim});
    attend(qkv, o, {&y, 1});
    return y;
  }
  require(!o.gate.defined() || o.gate.dim(1) == o.heads, "attention over ranks: only gates of whole heads");
  const int ranks = sequence_.size(), me = sequence_.rank();
  const int groups = landings.columns ? 1 : head_groups_;
  const std::int64_t d = o.head_dim, ratio = o.heads / o.kv_heads;
  // Heads are dealt as kv heads with their query heads; a group has a part of every rank's.
  const auto units = [&](int rank, int group) { return group_of(o.kv_heads, ranks, rank, groups, group); };
  const auto qkv_columns = [&](const Share& kv) { return kv.count * (ratio + 2) * d; };
  const auto trade = [&](const Landing& landing, const auto& columns_of) {
    Trade t{&sequence_, row_counts(sequence, sequence_, all_.rank()), {}, qkv.dtype(), landing};
    for (int r = 0; r < ranks; ++r) t.columns.push_back(columns_of(r));
    return t;
  };

  std::vector<ToColumns> leaving;
  std::vector<HeadPart> parts;
  for (int g = 0; g < groups; ++g)
    leaving.emplace_back(
        ops, trade(landings.columns, [&](int r) {
          const Share kv = units(r, g);
          return Trade::Columns{0, qkv_columns(kv) + (o.gate.defined() ? kv.count * ratio : 0)};
        }));
  for (int r = 0; r < ranks; ++r)
    for (int g = 0; g < groups; ++g) {
      const Share kv = units(r, g);
      if (kv.count == 0) continue;
      const Tensor to = leaving[static_cast<std::size_t>(g)].place(r);
      parts.push_back({to.columns(0, qkv_columns(kv)), kv.first, kv.count});
      if (o.gate.defined() && to.dim(0) > 0)
        ops.copy(to.columns(qkv_columns(kv), kv.count * ratio),
                 o.gate.columns(kv.first * ratio, kv.count * ratio));
    }
  finish(qkv, parts);
  parts.clear();
  for (ToColumns& group : leaving) group.depart();

  std::vector<ToRows> back;
  Tensor y;
  for (int g = 0; g < groups; ++g) {
    const Share kv = units(me, g);
    const Trade rows = trade(landings.rows, [&](int r) {
      return Trade::Columns{units(r, g).first * ratio * d, units(r, g).count * ratio * d};
    });
    const Tensor mine = leaving[static_cast<std::size_t>(g)].arrive();
    if (!y.defined()) y = place_for_rows(ops, rows, o.heads * d);
    back.emplace_back(ops, rows, y);
    if (kv.count > 0) {
      AttentionOptions own = o;
      own.kv_heads = kv.count;
      own.heads = kv.count * ratio;
      if (o.gate.defined()) own.gate = mine.columns(qkv_columns(kv), own.heads);
      if (o.sinks.defined()) {
        own.sinks = ops.arena().alloc(DType::f32, {o.sinks.dim(0), own.heads});
        ops.copy(own.sinks, o.sinks.columns(kv.first * ratio, own.heads));
      }
      attend(mine.columns(0, qkv_columns(kv)), own, back.back().places());
    }
    back.back().depart();
  }
  leaving.clear();
  for (ToRows& group : back) group.arrive();
  return y;
}

Trade Parallel::expert_trade(const Segments& sequence, const std::vector<std::int64_t>& widths, DType dtype,
                             const Landing& landing) const {
  Trade t{&experts_, row_counts(sequence, experts_, all_.rank()), {}, dtype, landing};
  std::int64_t first = 0;
  for (const std::int64_t width : widths) {
    t.columns.push_back({first, width});
    first += width;
  }
  return t;
}

Dispatch Parallel::to_expert_heads(Ops& ops, const Segments& sequence, const Landings& landings,
                                   const Tensor& n, const std::vector<LinearWeight>& split) const {
  if (experts_.alone()) return Dispatch(ops.linear(n, split.front()));
  std::vector<std::int64_t> widths;
  for (const LinearWeight& part : split) widths.push_back(part.out);
  ToColumns leaving(ops, expert_trade(sequence, widths, n.dtype(), landings.expert_columns));
  for (int r = 0; r < experts_.size(); ++r)
    if (const LinearWeight& part = split[static_cast<std::size_t>(r)]; part.out > 0 && n.dim(0) > 0)
      ops.linear_into(leaving.place(r), n, part);
  leaving.depart();
  if (!expert_overlap_) leaving.arrive();
  return Dispatch(std::move(leaving));
}

Tensor Parallel::from_expert_heads(Ops& ops, const Segments& sequence, const Landings& landings,
                                   std::int64_t heads, std::int64_t width, DType dtype,
                                   const ComputeRows& compute) const {
  if (experts_.alone()) {
    const Tensor y = ops.arena().alloc(dtype, {rows(sequence).size(), heads * width});
    compute({&y, 1});
    return y;
  }
  std::vector<std::int64_t> widths;
  for (int r = 0; r < experts_.size(); ++r)
    widths.push_back(share_of(heads, experts_.size(), r).count * width);
  const Trade trade = expert_trade(sequence, widths, dtype, landings.expert_rows);
  const Tensor y = place_for_rows(ops, trade, heads * width);
  ToRows back(ops, trade, y);
  if (trade.own_columns() > 0) compute(back.places());
  back.depart();
  back.arrive();
  return y;
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
