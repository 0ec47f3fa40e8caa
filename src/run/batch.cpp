// SPDX-License-Identifier: Apache-2.0
#include "run/batch.h"

#include <map>
#include <nlohmann/json.hpp>

#include "io/json_file.h"
#include "io/read_file.h"

namespace magi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kMaxClips = 10'000;
constexpr std::size_t kMaxPromptFile = 1 << 24;

/// clip.mp4 → clip-3.mp4
fs::path numbered(const fs::path& path, std::size_t i) {
  fs::path name = path.stem();
  name += "-" + std::to_string(i);
  name += path.extension();
  return path.parent_path() / name;
}

/// Paths of an entry are relative to its file; values of other types are left for the request to refuse.
void resolve(Json& value, const fs::path& base) {
  if (value.is_string() && !value.get_ref<std::string&>().empty())
    value = (base / value.get<std::string>()).string();
  else if (value.is_structured())
    for (Json& element : value) resolve(element, base);
}

std::string take_text(Json& entry, const char* key) {
  const Json value = entry.at(key);
  require(value.is_string() && !value.get_ref<const std::string&>().empty(),
          "{}: expected the name of a file, found {}", key,
          value.dump(-1, ' ', true, Json::error_handler_t::replace));
  entry.erase(key);
  return value.get<std::string>();
}

/// The request of entry i; its output is filled in.
Json request_of(Json entry, std::size_t i, const fs::path& base, const BatchDefaults& common,
                fs::path& output) {
  require(entry.is_object(), "expected an object with a prompt, found {}", entry.type_name());
  output = entry.contains("output") ? base / take_text(entry, "output") : numbered(common.output, i);
  if (entry.contains("prompt_file")) {
    require(!entry.contains("prompt"), "prompt and prompt_file exclude each other");
    entry["prompt"] = read_prompt_file(base / take_text(entry, "prompt_file"));
  }
  if (entry.contains("image")) resolve(entry["image"], base);

  Json request = common.request;
  if (entry.contains("preset"))
    for (const char* key : {"width", "height", "refine"}) request.erase(key);
  if (!entry.contains("seed")) request["seed"] = request.value("seed", kDefaultSeed) + i;
  request.update(entry);
  return request;
}

std::optional<fs::path> latents_directory(const BatchDefaults& common, std::size_t i) {
  if (!common.latents_directory) return std::nullopt;
  return *common.latents_directory / std::to_string(i);
}

void require_own_outputs(const std::vector<ClipTask>& tasks, const fs::path& file) {
  std::map<fs::path, std::string> taken;
  for (const ClipTask& task : tasks) {
    if (task.output.empty()) continue;
    std::error_code error;
    const fs::path absolute = fs::weakly_canonical(fs::absolute(task.output), error);
    const auto [other, added] = taken.try_emplace(absolute, task.label);
    require(added, "{}: also the output of {}: {}; nothing was made of {}", task.label, other->second,
            task.output.string(), file.string());
  }
}

}  // namespace

std::vector<ClipTask> read_batch(const fs::path& file, const BatchDefaults& common,
                                 const GenerationDefaults& defaults) {
  std::vector<std::size_t> lines;
  const Json entries = read_json(file, &lines);
  require(entries.is_array() && !entries.empty(), "{}: a batch is a list of objects, each with a prompt",
          file.string());
  require(entries.size() <= kMaxClips, "{}: {} entries, at most {} are taken", file.string(), entries.size(),
          kMaxClips);
  std::vector<ClipTask> tasks;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    ClipTask task;
    task.label = fmt::format("{}:{}: [{}]", file.string(), lines.at(i), i);
    task.latents_directory = latents_directory(common, i);
    try {
      const Json request = request_of(entries[i], i, file.parent_path(), common, task.output);
      task.request = Request::from_json(request, defaults, "request");
    } catch (const Error& e) {
      task.error = e.what();
    }
    tasks.push_back(std::move(task));
  }
  require_own_outputs(tasks, file);
  return tasks;
}

std::vector<ClipTask> make_variants(std::int64_t count, const BatchDefaults& common,
                                    const GenerationDefaults& defaults) {
  require(count >= 1 && count <= static_cast<std::int64_t>(kMaxClips), "count: expected 1 to {}, found {}",
          kMaxClips, count);
  const Request request = Request::from_json(common.request, defaults, "request");
  if (count == 1) return {{request, common.output, common.latents_directory, {}, {}}};
  std::vector<ClipTask> tasks;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    ClipTask task{request, numbered(common.output, i), latents_directory(common, i), {}, {}};
    task.request.seed += i;
    task.label = task.output.string();
    tasks.push_back(std::move(task));
  }
  return tasks;
}

void enhance_tasks(std::vector<ClipTask>& tasks, const EnhanceOptions& options, Progress& progress) {
  for (ClipTask& task : tasks) {
    if (!task.error.empty()) continue;
    try {
      enhance_request(task.request, options, progress);
    } catch (const Cancelled&) {
      throw;
    } catch (const Error& e) {
      task.error = e.what();
    }
  }
}

std::string read_prompt_file(const fs::path& file) {
  std::string text = read_file(file, kMaxPromptFile);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

}  // namespace magi
