// SPDX-License-Identifier: Apache-2.0
// What the operations of a stretch of work took: a table by operation, and a trace to look at.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace magi {

/// One call of an operation; times in milliseconds, `start` since the profile began.
struct OpSpan {
  std::string name;
  double flops = 0, bytes = 0;
  double start = 0, duration = 0;
};

struct Profile {
  std::vector<OpSpan> spans;
  double milliseconds = 0;  ///< from the profile's begin to its end, what lies between operations included
};

/// Calls of one operation with the same cost, or all calls of one operation.
struct OpTotal {
  std::string name;
  std::int64_t count = 0;
  double flops = 0, bytes = 0, milliseconds = 0;
  double median = 0;  ///< milliseconds of a call
  double share = 0;   ///< of the profile, 0…1
};

/// Observes an Ops while it lives.
class OpProfiler final : public OpObserver {
 public:
  explicit OpProfiler(Ops& ops);
  ~OpProfiler() override;
  OpProfiler(const OpProfiler&) = delete;
  OpProfiler& operator=(const OpProfiler&) = delete;

  void begin(const OpCost& cost) override;
  void end() override;
  /// Everything since construction; waits for the device. To be called once.
  Profile finish();

 private:
  Ops& ops_;
  std::unique_ptr<OpClock> clock_;
  std::vector<OpSpan> spans_;
};

/// By name, the longest first. The last one, "(between operations)", is what the host, transfers and gaps
/// took: shares add up to 1.
std::vector<OpTotal> totals_by_operation(const Profile& profile);
/// By name and cost, i.e. by shape, in the same order.
std::vector<OpTotal> totals_by_cost(const Profile& profile);

/// A table for people, with a line for each shape of an operation that has several.
std::string table_of(const Profile& profile);
nlohmann::json json_of(const std::vector<OpTotal>& totals);
/// Chrome's trace format: for chrome://tracing or ui.perfetto.dev. `title` names the process.
void write_trace(const Profile& profile, const std::string& title, const std::filesystem::path& file);

}  // namespace magi
