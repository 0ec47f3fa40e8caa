// SPDX-License-Identifier: Apache-2.0
#include "bench/ranks.h"

#include <algorithm>

namespace magi {
namespace {

double exposed(const nlohmann::json& rank) {
  double total = 0;
  for (const auto& [what, t] : rank.at("collectives").items()) total += t.at("exposed_seconds").get<double>();
  return total;
}

}  // namespace

nlohmann::json gather_rank_reports(const World& world, const Group& data, const RankShare& share,
                                   const std::vector<double>& seconds, std::int64_t counted_steps) {
  const auto steps = static_cast<double>(counted_steps);
  nlohmann::json own{{"rank", world.rank()},
                     {"place", RankName::own(world.rank()).describe()},
                     {"rows", {share.rows.first, share.rows.end}},
                     {"expert_heads", {share.expert_heads.first, share.expert_heads.end()}},
                     {"seconds", seconds},
                     {"collectives", nlohmann::json::object()}};
  for (const auto& [what, t] : data.transport().traffic())
    own["collectives"][what] = {{"calls", static_cast<double>(t.calls) / steps},
                                {"bytes_sent", static_cast<double>(t.bytes_sent) / steps},
                                {"bytes_received", static_cast<double>(t.bytes_received) / steps},
                                {"seconds", t.seconds / steps},
                                {"exposed_seconds", t.exposed_seconds / steps}};
  const std::vector<std::string> all = world.host().gather_texts(own.dump());
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t r = 0; r < all.size() && world.rank() == 0; ++r)
    list.push_back(nlohmann::json::parse(all[r]));
  return list;
}

std::vector<double> slowest(const nlohmann::json& ranks) {
  std::vector<double> seconds;
  for (const nlohmann::json& rank : ranks) {
    const auto own = rank.at("seconds").get<std::vector<double>>();
    seconds.resize(std::max(seconds.size(), own.size()), 0);
    for (std::size_t i = 0; i < own.size(); ++i) seconds[i] = std::max(seconds[i], own[i]);
  }
  return seconds;
}

std::string ranks_table(const nlohmann::json& ranks, double mean, double alone) {
  const auto busiest = std::max_element(ranks.begin(), ranks.end(),
                                        [](const auto& a, const auto& b) { return exposed(a) < exposed(b); });
  std::string text = fmt::format("\n{:<40} {:>6} {:>10} {:>10} {:>10} {:>9}\n",
                                 fmt::format("a step's exchanges (rank {})", busiest->at("rank").get<int>()),
                                 "calls", "sent", "time", "exposed", "rate");
  double under_way = 0;
  for (const auto& [what, t] : busiest->at("collectives").items()) {
    const double bytes = t.at("bytes_sent"), seconds = t.at("seconds");
    under_way += seconds;
    text += fmt::format("{:<40} {:>6.0f} {:>7.3f} GB {:>7.2f} ms {:>7.2f} ms {:>4.0f} GB/s\n", what,
                        t.at("calls").get<double>(), bytes / 1e9, seconds * 1e3,
                        t.at("exposed_seconds").get<double>() * 1e3, seconds > 0 ? bytes / seconds / 1e9 : 0);
  }
  double least = mean, most = 0;
  for (const nlohmann::json& rank : ranks) {
    const double busy = mean - exposed(rank);
    least = std::min(least, busy);
    most = std::max(most, busy);
    text +=
        fmt::format("{}: rows {} to {}, MoE heads {} to {}, computes {:.4f} s of a step\n",
                    rank.at("place").get<std::string>(), rank.at("rows")[0].get<std::int64_t>(),
                    rank.at("rows")[1].get<std::int64_t>(), rank.at("expert_heads")[0].get<std::int64_t>(),
                    rank.at("expert_heads")[1].get<std::int64_t>(), busy);
  }
  text += fmt::format("overlap {:.0f} % of the exchanges' time; balance {:.3f}",
                      under_way > 0 ? 100 * (1 - exposed(*busiest) / under_way) : 100,
                      most > 0 ? least / most : 1);
  if (alone > 0)
    text += fmt::format("; {:.3f} times one rank's {:.4f} s, parallel efficiency {:.1f} %", alone / mean,
                        alone, 100 * alone / mean / static_cast<double>(ranks.size()));
  return text + "\n";
}

}  // namespace magi
