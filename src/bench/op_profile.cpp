// SPDX-License-Identifier: Apache-2.0
#include "bench/op_profile.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "io/atomic_file.h"

namespace magi {
namespace {

constexpr const char* kBetween = "(between operations)";
constexpr double kShown = 0.005;  // a shape's share of the profile, to get a line of its own

template <typename KeyOf>
std::vector<OpTotal> totals(const Profile& profile, KeyOf key_of) {
  std::map<decltype(key_of(OpSpan{})), std::pair<OpTotal, std::vector<double>>> by_key;
  for (const OpSpan& span : profile.spans) {
    auto& [total, durations] = by_key[key_of(span)];
    durations.push_back(span.duration);
    total.name = span.name;
    ++total.count;
    total.flops += span.flops;
    total.bytes += span.bytes;
    total.milliseconds += span.duration;
  }
  std::vector<OpTotal> list;
  for (auto& [key, entry] : by_key) {
    auto& [total, durations] = entry;
    std::nth_element(durations.begin(), durations.begin() + std::ssize(durations) / 2, durations.end());
    total.median = durations[durations.size() / 2];
    total.share = profile.milliseconds > 0 ? total.milliseconds / profile.milliseconds : 0;
    list.push_back(std::move(total));
  }
  std::stable_sort(list.begin(), list.end(),
                   [](const OpTotal& a, const OpTotal& b) { return a.milliseconds > b.milliseconds; });
  return list;
}

/// Of `amount` in the time of all calls, in 10⁹ a second.
double giga_per_second(double amount, const OpTotal& t) {
  return t.milliseconds > 0 ? amount / t.milliseconds / 1e6 : 0;
}

std::string rate(const OpTotal& t) {
  if (t.milliseconds <= 0 || t.count == 0) return "";
  // An operation is shown by what could bound it: few flops a byte mean memory.
  if (t.flops > 16 * t.bytes) return fmt::format("{:.3g} TFLOP/s", giga_per_second(t.flops, t) / 1e3);
  return fmt::format("{:.3g} GB/s", giga_per_second(t.bytes, t));
}

std::string line(const std::string& name, const OpTotal& t) {
  return fmt::format("{:<24} {:>6} {:>10.2f} ms {:>9.3f} ms {:>6.1f} %  {}\n", name, t.count, t.milliseconds,
                     t.median, 100 * t.share, rate(t));
}

}  // namespace

OpProfiler::OpProfiler(Ops& ops) : ops_(ops), clock_(ops.make_clock()) {
  clock_->mark();
  ops_.observe(this);
}

OpProfiler::~OpProfiler() {
  ops_.observe(nullptr);
}

void OpProfiler::begin(const OpCost& cost) {
  spans_.push_back({std::string(cost.name), cost.flops, cost.bytes, 0, 0});
  clock_->mark();
}

void OpProfiler::end() {
  clock_->mark();
}

Profile OpProfiler::finish() {
  ops_.observe(nullptr);
  clock_->mark();
  const std::vector<double> times = clock_->milliseconds();
  // A mark at the beginning, two for each operation (none calls another), one at the end.
  require(times.size() == 2 * spans_.size() + 2, "profile: {} marks of {} operations", times.size(),
          spans_.size());
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    spans_[i].start = times[2 * i + 1];
    spans_[i].duration = times[2 * i + 2] - times[2 * i + 1];
  }
  return {std::move(spans_), times.back()};
}

std::vector<OpTotal> totals_by_operation(const Profile& profile) {
  std::vector<OpTotal> list = totals(profile, [](const OpSpan& s) { return s.name; });
  OpTotal rest{kBetween, 0, 0, 0, profile.milliseconds, 0, 0};
  for (const OpTotal& t : list) rest.milliseconds -= t.milliseconds;
  rest.share = profile.milliseconds > 0 ? rest.milliseconds / profile.milliseconds : 1;
  list.push_back(rest);
  return list;
}

std::vector<OpTotal> totals_by_cost(const Profile& profile) {
  return totals(profile, [](const OpSpan& s) { return std::tuple(s.name, s.flops, s.bytes); });
}

std::string table_of(const Profile& profile) {
  const std::vector<OpTotal> shapes = totals_by_cost(profile);
  std::string table =
      fmt::format("{:<24} {:>6} {:>13} {:>12} {:>8}\n", "operation", "calls", "time", "median call", "share");
  for (const OpTotal& total : totals_by_operation(profile)) {
    table += line(total.name, total);
    for (const OpTotal& shape : shapes)
      if (shape.name == total.name && shape.count < total.count && shape.share >= kShown)
        table +=
            line(fmt::format("  {:.4g} GFLOP {:.3g} GB", shape.flops / static_cast<double>(shape.count) / 1e9,
                             shape.bytes / static_cast<double>(shape.count) / 1e9),
                 shape);
  }
  return table;
}

nlohmann::json json_of(const std::vector<OpTotal>& totals) {
  nlohmann::json list = nlohmann::json::array();
  for (const OpTotal& t : totals)
    list.push_back({{"name", t.name},
                    {"count", t.count},
                    {"ms", t.milliseconds},
                    {"median_ms", t.median},
                    {"share", t.share},
                    {"flops", t.flops},
                    {"bytes", t.bytes},
                    {"tflops", giga_per_second(t.flops, t) / 1e3},
                    {"gb_per_s", giga_per_second(t.bytes, t)}});
  return list;
}

void write_trace(const Profile& profile, const std::string& title, const std::filesystem::path& file) {
  nlohmann::json events = nlohmann::json::array();
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}, {"args", {{"name", title}}}});
  for (const OpSpan& s : profile.spans)
    events.push_back({{"name", s.name},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", 0},
                      {"ts", 1e3 * s.start},
                      {"dur", 1e3 * s.duration},
                      {"args", {{"flops", s.flops}, {"bytes", s.bytes}}}});
  const std::string text = nlohmann::json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump() + "\n";
  AtomicFile out(file);
  out.write(text.data(), text.size());
  out.commit();
}

}  // namespace magi
