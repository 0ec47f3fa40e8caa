// SPDX-License-Identifier: Apache-2.0
// What the pipeline's stages may take: where a part's layers go, how large the scratch memory is, what is
// refused.
#include <algorithm>

#include "core/memory_ledger.h"
#include "run/compute_device.h"
#include "run/pipeline.h"
#include "text/tokenizer.h"

namespace magi {
namespace {

/// Of a GPU's memory: cuBLASLt's workspace, kernels' code.
constexpr std::size_t kLibraries = std::size_t{3} << 28;

}  // namespace

bool Pipeline::has_budgets() const {
  return limits_.device_given || limits_.host_given;
}

MemoryLimits Pipeline::room() const {
  MemoryLimits room = has_budgets() ? limits_ : memory_limits(options_);
  room.host -= std::min(room.host, MemoryLedger::of({}).used_bytes());
  if (options_.device.kind == Device::Kind::cuda)
    room.device -= std::min(room.device, MemoryLedger::of(options_.device).used_bytes());
  return room;
}

Pipeline::Loading Pipeline::place(Stage stage, const Request& request, const StageSizes& sizes,
                                  const std::filesystem::path& weights) {
  if (options_.device.kind == Device::Kind::cpu && !has_budgets() && parts_->fits(bytes_on_disk(weights)))
    return {};
  set_scratch(kLeastScratch);  // the last stage's is given back
  const MemoryLimits room = this->room();
  const StageMemory memory = memory_of(stage, request, sizes);
  Loading how;
  how.placement = plan_stage(memory, room, options_.device, largest_stored_layer(stage, root_)).placement;
  if (how.placement.count(Place::disk) > 0)
    how.access = 2 * bytes_on_disk(weights) > room.host ? Access::direct : Access::copied;
  else if (limits_.host_given)
    how.access = Access::copied;  // pages of a mapping are not ours to count
  return how;
}

StageMemory Pipeline::memory_of(Stage stage, const Request& request, const StageSizes& sizes) const {
  return stage_memory(stage, root_, request, sizes, options_, dry_rank_);
}

void Pipeline::use_scratch(Stage stage, const Request& request, const StageSizes& sizes) {
  if (options_.device.kind == Device::Kind::cpu) return;
  set_scratch(memory_of(stage, request, sizes).scratch_bytes);
}

void Pipeline::set_scratch(std::size_t bytes) {
  bytes = std::max(bytes, kLeastScratch);
  if (options_.device.kind == Device::Kind::cpu || arena_.capacity_bytes() == bytes) return;
  arena_ =
      scratch_arena(options_.device, kLeastScratch);  // gives the old one back before the new one is taken
  arena_ = scratch_arena(options_.device, bytes);
}

StageSizes Pipeline::text_sizes(const Request& request) {
  StageSizes sizes = team_.everywhere([&]() -> StageSizes {
    if (!team_.first()) return {};
    if (!tokenizer_)
      tokenizer_ = std::make_shared<Tokenizer>(Tokenizer::load(root_.text_encoder() / "tokenizer.json"));
    return stage_sizes(*tokenizer_, request);
  });
  team_.share(sizes.prompt_rows);
  team_.share(sizes.negative_rows);
  return sizes;
}

void Pipeline::require_room(const Request& request) {
  join_ranks();
  if (options_.device.kind == Device::Kind::cpu) return;
  const StageSizes sizes = text_sizes(request);
  const MemoryLedger& ledger = MemoryLedger::of(options_.device);  // what this process holds can make way
  const std::size_t all = available_bytes(options_.device) + ledger.used_bytes();
  const std::size_t room = std::min(ledger.limit_bytes(), all - std::min(all, kLibraries));
  magi::require_room(root_, request, sizes, options_, room, dry_rank_);
}

std::size_t Pipeline::take_device_peak() {
  if (options_.device.kind == Device::Kind::cpu) return 0;
  MemoryLedger& ledger = MemoryLedger::of(options_.device);
  const std::size_t peak = ledger.peak_bytes();
  ledger.reset_peak();
  return peak;
}

std::size_t Pipeline::take_scratch_peak() {
  const std::size_t peak = arena_.peak_bytes();
  arena_.trim();
  arena_.reset_peak();
  return peak;
}

}  // namespace magi
