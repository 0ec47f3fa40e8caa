// SPDX-License-Identifier: Apache-2.0
#include "run/report.h"

#include <fstream>
#include <nlohmann/json.hpp>

namespace magi {
namespace {

nlohmann::json steps_json(const std::vector<StepRecord>& steps) {
  nlohmann::json list = nlohmann::json::array();
  for (const StepRecord& s : steps)
    list.push_back({{"step", s.step}, {"timestep", s.timestep}, {"sigma", s.sigma}, {"seconds", s.seconds}});
  return list;
}

}  // namespace

nlohmann::json RankRecord::to_json() const {
  return {{"rank", rank},
          {"place", place},
          {"sp", degrees.sp},
          {"cfg", degrees.cfg},
          {"ep", degrees.ep},
          {"bytes_sent", bytes_sent},
          {"bytes_received", bytes_received},
          {"tokens_share", tokens_share},
          {"weights_share", weights_share},
          {"refiner_tokens_share", refiner_tokens_share}};
}

RankRecord RankRecord::from_json(const nlohmann::json& o) {
  return {o.at("rank"),
          o.at("place"),
          {o.at("sp"), o.at("cfg"), o.at("ep")},
          o.at("bytes_sent"),
          o.at("bytes_received"),
          o.at("tokens_share"),
          o.at("weights_share"),
          o.at("refiner_tokens_share")};
}

nlohmann::json Report::to_json() const {
  if (!error.empty()) return {{"error", error}};
  nlohmann::json j;
  for (const StageRecord& s : stages)
    j["stages"].push_back({{"name", s.name},
                           {"seconds", s.seconds},
                           {"peak_bytes", s.peak_bytes},
                           {"peak_scratch_bytes", s.peak_scratch_bytes},
                           {"peak_device_bytes", s.peak_device_bytes}});
  j["steps"] = steps_json(steps);
  if (!refiner_steps.empty()) j["refiner_steps"] = steps_json(refiner_steps);
  j["sha256"] = sha256;
  j["bytes_exchanged"] = bytes_exchanged;
  for (const RankRecord& r : ranks) j["ranks"].push_back(r.to_json());
  return j;
}

std::size_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

void reset_peak_resident() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

}  // namespace magi
