// SPDX-License-Identifier: Apache-2.0
// Figures for Prometheus (text format 0.0.4).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "serve/figures.h"
#include "serve/job_store.h"

namespace magi {

class Metrics {
 public:
  /// `route`: the pattern, not the path.
  void request(const std::string& route, int status, double seconds);

  std::string text(const JobStore::Counts& jobs, const WorkerFigures& worker, std::size_t listeners);

 private:
  static constexpr std::array<double, 7> kBounds{0.001, 0.005, 0.02, 0.05, 0.2, 1, 5};
  struct Route {
    std::array<std::uint64_t, kBounds.size() + 1> buckets{};  ///< not cumulative; the last one is beyond all
    double seconds = 0;
  };

  std::mutex mutex_;
  std::map<std::pair<std::string, int>, std::uint64_t> statuses_;
  std::map<std::string, Route> routes_;
};

}  // namespace magi
