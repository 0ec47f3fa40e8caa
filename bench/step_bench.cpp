// SPDX-License-Identifier: Apache-2.0
// `magi2 bench` for machines without the libraries that the command line needs: random weights only.
//   step_bench --what preview --preset 272p --device cuda --ops 1 --json result.json
#include <charconv>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/bench.h"
#include "core/error.h"
#include "ops/devices.h"

namespace {

using namespace magi;

struct Arguments {
  BenchOptions options;
  std::string json;
};

template <typename T>
T number(const std::string& text) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(failure == std::errc() && end == text.data() + text.size(), "\"{}\" is not a number", text);
  return value;
}

/// Pairs of --name value.
Arguments parse(int argc, char** argv) {
  Arguments a;
  BenchOptions& o = a.options;
  const std::map<std::string, std::function<void(const std::string&)>> setters{
      {"--what", [&](auto& v) { o.model = bench_model(v); }},
      {"--device", [&](auto& v) { o.device = parse_device(v); }},
      {"--dtype",
       [&](auto& v) {
         require(v == "f32" || v == "bf16", "--dtype {}: expected f32 or bf16", v);
         o.dtype = v == "f32" ? DType::f32 : DType::bf16;
       }},
      {"--experts", [&](auto& v) { o.experts = expert_format(v); }},
      {"--config", [&](auto& v) { o.config = ConfigNode(load_config(v, ""), v); }},
      {"--preset", [&](auto& v) { o.preset = v; }},
      {"--width", [&](auto& v) { o.width = number<std::int64_t>(v); }},
      {"--height", [&](auto& v) { o.height = number<std::int64_t>(v); }},
      {"--seconds", [&](auto& v) { o.seconds = number<double>(v); }},
      {"--text-tokens", [&](auto& v) { o.text_tokens = number<std::int64_t>(v); }},
      {"--vram", [&](auto& v) { o.vram_bytes = static_cast<std::size_t>(number<double>(v) * (1 << 30)); }},
      {"--steps", [&](auto& v) { o.steps = number<std::int64_t>(v); }},
      {"--distinct", [&](auto& v) { o.distinct = number<std::int64_t>(v); }},
      {"--sp", [&](auto& v) { o.degrees.sp = number<int>(v); }},
      {"--cfg", [&](auto& v) { o.degrees.cfg = number<int>(v); }},
      {"--ep", [&](auto& v) { o.degrees.ep = number<int>(v); }},
      {"--windows", [&](auto& v) { o.windows = v != "0"; }},
      {"--head-groups", [&](auto& v) { o.head_groups = number<int>(v); }},
      {"--expert-overlap", [&](auto& v) { o.expert_overlap = v != "0"; }},
      {"--alone", [&](auto& v) { o.alone_seconds = number<double>(v); }},
      {"--ops", [&](auto& v) { o.operations = v != "0"; }},
      {"--profile", [&](auto& v) { o.trace = v; }},
      {"--json", [&](auto& v) { a.json = v; }}};
  for (int i = 1; i < argc; i += 2) {
    const auto setter = setters.find(argv[i]);
    require(setter != setters.end() && i + 1 < argc,
            "{}: expected --name value pairs, names among those of `magi2 bench`", argv[i]);
    setter->second(argv[i + 1]);
  }
  return a;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Arguments a = parse(argc, argv);
    const std::shared_ptr<World> world = a.options.world = World::join();
    try {
      Progress progress;
      const BenchResult result = run_bench(a.options, progress);
      if (world->rank() == 0) std::fputs(to_text(a.options, result).c_str(), stdout);
      if (world->rank() == 0 && !a.json.empty()) write_json(a.options, result, a.json);
    } catch (const std::exception& e) {
      world->fail(e.what());
      throw;
    }
    world->leave();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "step_bench: %s\n", e.what());
    return 1;
  }
}
