// SPDX-License-Identifier: Apache-2.0
// The pipeline over ranks: who holds what of the preview, and what was exchanged.
#include <algorithm>

#include "run/compute_device.h"
#include "run/pipeline.h"

namespace magi {

const Parallel& Pipeline::parallel(const PreviewConfig& config, const TensorStore& store) {
  double experts = 0, all = 0;
  for (const auto& [name, info] : store.entries()) {
    const double bytes = static_cast<double>(numel(info.shape)) * static_cast<double>(size_of(info.dtype));
    all += bytes;
    if (name.find("moe_mlp.W_") != name.npos || name.find(kPackedExperts) != name.npos) experts += bytes;
  }
  join_ranks(experts);
  const double share = static_cast<double>(parallel_.expert_heads(config.moe_heads).count) /
                       static_cast<double>(config.moe_heads);
  record_.weights_share = all > 0 ? 1 - experts / all * (1 - share) : 1;
  return parallel_;
}

void Pipeline::join_ranks(double expert_bytes) {
  if (team_.alone() || !parallel_.alone()) return;
  const double free = static_cast<double>(available_bytes(ops_->device()));
  const Degrees chosen =
      choose_degrees(team_.world().size(), options_.degrees, expert_bytes, kExpertsShare * free);
  std::int64_t ep = chosen.ep;  // depends on the free memory, of which rank 0's counts
  team_.share(ep);
  parallel_ = Parallel(data_group(team_.world(), *ops_), {chosen.sp, chosen.cfg, static_cast<int>(ep)});
}

RankRecord Pipeline::rank_record() const {
  RankRecord record = record_;
  if (team_.alone()) return record;
  record.rank = team_.world().rank();
  record.place = RankName::own(record.rank).host;
  record.degrees = parallel_.degrees();
  const Group& host = team_.world().host();
  std::vector<const Transport*> seen;
  for (const Group* group : {&host, &parallel_.all()}) {
    if (std::find(seen.begin(), seen.end(), &group->transport()) != seen.end()) continue;
    seen.push_back(&group->transport());
    for (const auto& [what, traffic] : group->transport().traffic()) {
      record.bytes_sent += traffic.bytes_sent;
      record.bytes_received += traffic.bytes_received;
    }
  }
  return record;
}

}  // namespace magi
