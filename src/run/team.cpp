// SPDX-License-Identifier: Apache-2.0
#include "run/team.h"

#include <map>
#include <new>
#include <nlohmann/json.hpp>

#include "io/json_file.h"
#include "io/read_file.h"
#include "ops/devices.h"
#include "run/components.h"
#include "run/sha256.h"
#include "text/json_text.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

/// Names and sizes of a part's files, and its index: enough to tell two checkpoints apart without reading
/// them.
std::string describe_files(const fs::path& path) {
  std::map<std::string, std::string> files;
  const auto add = [&](const fs::path& file) {
    std::string text = std::to_string(fs::file_size(file));
    if (file.extension() == ".json") text += sha256_of(read_file(file, kMaxJsonBytes));
    files[file.filename().string()] = text;
  };
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) add(path);
  if (fs::is_directory(path, ignored))
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file()) add(entry.path());
  return nlohmann::json(files).dump();
}

/// The configuration, wherever the root lies on this machine.
std::string describe_config(const CheckpointRoot& root) {
  std::string text = root.config().json().dump();
  replace_all(text, root.path().string(), "ROOT");
  return text;
}

}  // namespace

Outcome Team::outcome_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const RankLost&) {
    throw;  // nobody is left to agree with
  } catch (const Cancelled&) {
    return {true, ""};
  } catch (const std::bad_alloc&) {
    return {false, "out of memory"};
  } catch (const std::exception& e) {
    return {false, e.what()};
  }
}

void Team::raise(const Outcome& outcome) {
  if (outcome.cancelled) throw Cancelled();
  require(outcome.error.empty(), "{}", outcome.error);
}

Outcome Team::agree(Outcome own) const {
  if (alone()) return own;
  const std::string text = own.cancelled ? "c" : own.error.empty() ? "" : "e" + own.error;
  // The others may be in the middle of a step, waiting for this rank.
  world_->monitor()->set_excuse(own.error);
  const std::vector<std::string> all = world_->host().gather_texts(text, own.error.empty() ? kPatient : 10);
  world_->monitor()->set_excuse("");
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (all[r][0] == 'c') return {true, ""};
    const std::string error = all[r].substr(1);
    return {false, r == 0 || error == own.error ? error : fmt::format("rank {}: {}", r, error)};
  }
  return {};
}

std::string Team::first_text(const std::string& own) const {
  if (alone()) return own;
  const std::vector<std::string> all = world_->host().gather_texts(own, kPatient);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) return fmt::format("rank {}: {}", r, all[r]);
  return "";
}

void Team::share(Tensor& tensor) const {
  if (alone()) return;
  nlohmann::json head;
  if (first() && tensor.defined()) {
    tensor = tensor.contiguous() ? tensor : tensor.clone();
    head = {{"dtype", static_cast<int>(tensor.dtype())}, {"shape", tensor.shape()}};
  }
  head = nlohmann::json::parse(world_->host().broadcast(head.dump(), 0));
  if (head.is_null()) return;
  if (!first())
    tensor = Tensor::empty(static_cast<DType>(head.at("dtype").get<int>()), head.at("shape").get<Shape>());
  world_->host().broadcast(tensor, 0);
}

void Team::share(std::vector<Tensor>& tensors) const {
  auto count = static_cast<std::int64_t>(tensors.size());
  share(count);
  tensors.resize(static_cast<std::size_t>(count));
  for (Tensor& tensor : tensors) share(tensor);
}

void Team::share(std::int64_t& value) const {
  if (alone()) return;
  value = std::stoll(world_->host().broadcast(std::to_string(value), 0));
}

void Team::require_same(const CheckpointRoot& root, const EngineOptions& options) const {
  if (alone()) return;
  const nlohmann::json own{
      {"version of magi2", MAGI2_VERSION},
      {"kind of device", options.device.kind == Device::Kind::cuda ? "cuda" : "cpu"},
      {"expert format", static_cast<int>(options.experts)},
      {"choice of --sp, --cfg and --ep",
       fmt::format("{} {} {}", options.degrees.sp, options.degrees.cfg, options.degrees.ep)},
      {"configuration", sha256_of(describe_config(root))},
      {"preview checkpoint", sha256_of(describe_files(root.preview()))},
      {"refiner checkpoint", sha256_of(describe_files(root.refiner()))},
      {"video decoder", sha256_of(describe_files(root.turbo_decoder_weights().parent_path()))}};
  world_->host().wait_for_all();  // rank 0 may have asked a language model first
  const std::vector<std::string> all = world_->host().gather_texts(own.dump());
  const nlohmann::json wanted = nlohmann::json::parse(all.front());
  for (std::size_t r = 1; r < all.size(); ++r) {
    const nlohmann::json found = nlohmann::json::parse(all[r]);
    for (const auto& [what, value] : wanted.items())
      require(found.contains(what) && found.at(what) == value,
              "rank {} has another {} than rank 0; every rank needs the same program, options and checkpoint "
              "root ({})",
              r, what, root.path().string());
  }
  require_ranks(*world_, options.device, options.degrees);
}

void TeamProgress::stage(std::string_view name, std::int64_t total) {
  owner_.stage(name, total);
  name_ = name;
  total_ = total;
  advance(0);
}

void TeamProgress::advance(std::int64_t done) {
  owner_.advance(done);
  team_.world().set_stage(fmt::format("{}, {} of {} done", name_, done, total_));
  if (alone_ && owner_.cancelled()) cancel();
}

}  // namespace magi
