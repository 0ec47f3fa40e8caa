// SPDX-License-Identifier: Apache-2.0
#include "io/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/json_file.h"
#include "io/safetensors.h"
#include "io/torch_pickle.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexEnding = ".safetensors.index.json";

/// Tensors spread over files by an index.
class ShardedStore final : public TensorStore {
 public:
  ShardedStore(const fs::path& index, Access access) : TensorStore(index.parent_path().string()) {
    const auto files = read_index(index);
    open_shards(index, files, access);
    for (const auto& [name, file] : files) {
      const TensorStore& shard = *shards_.at(file);
      require(shard.has(name), "{}: tensor {} is missing, though {} places it there", shard.where(),
              printable(name), index.filename().string());
      entries_.emplace(name, shard.entries().at(name));
      shard_of_.emplace(name, &shard);
    }
  }

 protected:
  Tensor read(const std::string& name, const TensorInfo&) const override {
    return shard_of_.at(name)->load(name);
  }

 private:
  static std::map<std::string, std::string> read_index(const fs::path& index) {
    const nlohmann::json json = read_json(index);
    require(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(),
            "{}: no weight_map object", index.string());
    std::map<std::string, std::string> files;
    for (const auto& [name, file] : json["weight_map"].items()) {
      const bool plain = file.is_string() && !file.get_ref<const std::string&>().empty() &&
                         fs::path(file.get<std::string>()).filename() == file.get<std::string>();
      require(plain, "{}: the file of tensor {} must be a plain file name", index.string(), printable(name));
      files.emplace(name, file.get<std::string>());
    }
    return files;
  }

  void open_shards(const fs::path& index, const std::map<std::string, std::string>& files, Access access) {
    std::set<std::string> names;
    for (const auto& [name, file] : files) names.insert(file);
    constexpr std::size_t kMostTold = 20;
    std::vector<std::string> missing;
    std::error_code error;  // names that no file can have are not there either
    for (const std::string& name : names)
      if (!fs::exists(index.parent_path() / name, error)) missing.push_back(printable(name));
    const std::size_t told = std::min(missing.size(), kMostTold);
    require(missing.empty(), "{}: {} of {} shards are missing: {}{}", where(), missing.size(), names.size(),
            fmt::join(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(told), ", "),
            missing.size() > told ? ", ..." : "");
    for (const std::string& name : names)
      shards_.emplace(name, open_safetensors(index.parent_path() / name, access));
  }

  std::map<std::string, std::shared_ptr<TensorStore>> shards_;
  std::map<std::string, const TensorStore*> shard_of_;
};

/// The file called `preferred`, else the only one whose name ends in `ending`, else an empty path.
fs::path choose(const fs::path& directory, const std::string& preferred, std::string_view ending) {
  if (fs::exists(directory / preferred)) return directory / preferred;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.path().filename().string().ends_with(ending)) found.push_back(entry.path());
  require(found.size() <= 1, "{}: {} files *{} and no {}: which one is meant?", directory.string(),
          found.size(), ending, preferred);
  return found.empty() ? fs::path() : found.front();
}

std::shared_ptr<TensorStore> open_directory(const fs::path& directory, Access access) {
  if (const fs::path index = choose(directory, "model.safetensors.index.json", kIndexEnding); !index.empty())
    return std::make_shared<ShardedStore>(index, access);
  if (const fs::path file = choose(directory, "model.safetensors", ".safetensors"); !file.empty())
    return open_safetensors(file, access);
  fail("{}: neither model.safetensors.index.json nor model.safetensors is there", directory.string());
}

}  // namespace

std::shared_ptr<TensorStore> open_checkpoint(const fs::path& path, Access access) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  require(fs::exists(status), "{}: no such checkpoint", path.string());
  if (fs::is_directory(status)) return open_directory(path, access);
  const std::string ending = path.extension().string();
  if (ending == ".safetensors") return open_safetensors(path, access);
  if (ending == ".pth" || ending == ".pt" || ending == ".ckpt") return open_torch(path);
  fail("{}: a checkpoint is a directory, .safetensors, .pth, .pt or .ckpt", path.string());
}

}  // namespace magi
