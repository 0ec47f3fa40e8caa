// SPDX-License-Identifier: Apache-2.0
// The pipeline over ranks: who holds what of the preview, and what was exchanged.
#include <algorithm>

#include "io/checkpoint.h"
#include "run/compute_device.h"
#include "run/pipeline.h"

namespace magi {

namespace {

/// Bytes of the preview's weights.
struct PreviewBytes {
  double experts = 0, all = 0;
};

PreviewBytes preview_bytes(const std::filesystem::path& preview) {
  PreviewBytes sum;
  const auto store = open_checkpoint(preview);
  for (const auto& [name, info] : store->entries()) {
    const auto bytes = static_cast<double>(info.bytes);
    sum.all += bytes;
    if (name.find("moe_mlp.W_") != name.npos || name.find(kPackedExperts) != name.npos) sum.experts += bytes;
  }
  return sum;
}

}  // namespace

void Pipeline::join_ranks() {
  if (team_.alone()) return;
  if (parallel_.alone()) choose_shares();
  parallel_.all().transport().close_idle_windows();
}

void Pipeline::choose_shares() {
  const PreviewBytes bytes = team_.everywhere([&] { return preview_bytes(root_.preview()); });
  const double free = static_cast<double>(available_bytes(ops_->device()));
  Degrees degrees =
      choose_degrees(team_.world().size(), options_.degrees, bytes.experts, kExpertsShare * free);
  std::int64_t ep = degrees.ep;  // depends on the free memory, of which rank 0's counts
  team_.share(ep);
  degrees.ep = static_cast<int>(ep);
  parallel_ = Parallel(data_group(team_.world(), *ops_), degrees);
  // Whether there are windows is known by trying.
  dry_rank_ = {team_.world().rank(), degrees, parallel_.all().open_window(1) != nullptr};
  const std::int64_t heads = PreviewConfig::from(root_.config()).moe_heads;
  const double share = static_cast<double>(parallel_.expert_heads(heads).count) / static_cast<double>(heads);
  record_.weights_share = bytes.experts > 0 ? 1 - bytes.experts / bytes.all * (1 - share) : 1;
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
