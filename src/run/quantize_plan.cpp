// SPDX-License-Identifier: Apache-2.0
#include "run/quantize_plan.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "io/checkpoint.h"
#include "io/native_manifest.h"
#include "model/nvfp4_store.h"
#include "model/preview.h"
#include "model/text_encoder.h"
#include "run/noting_store.h"

namespace magi {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGate = "moe_mlp.W_gate", kUp = "moe_mlp.W_up", kDown = "moe_mlp.W_down";

/// Larger powers of two first: then every tensor begins at a multiple of the one that divides its size.
std::size_t alignment(const PlannedTensor& t) {
  const std::size_t bytes = t.entry.bytes();
  return std::min(bytes & (~bytes + 1), SafetensorsWriter::kAlign);
}

/// Collects what loaders ask for, file by file.
class Planner {
 public:
  Planner(std::string directory, const fs::path& checkpoint, bool pack_experts, bool pack_matrices)
      : directory_(std::move(directory)),
        store_(open_checkpoint(checkpoint)),
        noting_(*store_, problems_),
        pack_experts_(pack_experts),
        pack_matrices_(pack_matrices) {}

  /// `load` runs with a loader whose requests become the tensors of `name`.safetensors.
  void file(const std::string& name, const std::string& prefix,
            const std::function<void(const WeightLoader&)>& load) {
    file_ = {directory_ + "/" + name + ".safetensors", store_, {}};
    load({*ops_, noting_, DType::bf16, prefix,
          [this](const std::string& tensor, const Shape& shape, DType use) { add(tensor, shape, use); }});
    require(problems_.empty(), "{}: {}", store_->where(), problems_.empty() ? "" : problems_.front());
    std::ranges::stable_sort(file_.tensors, [](const PlannedTensor& a, const PlannedTensor& b) {
      return alignment(a) != alignment(b) ? alignment(a) > alignment(b) : a.entry.name < b.entry.name;
    });
    for (const PlannedTensor& tensor : file_.tensors)
      index_["weight_map"][tensor.entry.name] = fs::path(file_.name).filename().string();
    files_.push_back(std::move(file_));
  }

  void finish(QuantizePlan& plan) {
    std::ranges::move(files_, std::back_inserter(plan.files));
    plan.texts.emplace_back(directory_ + "/model.safetensors.index.json", index_.dump(1) + "\n");
  }

 private:
  void add(const std::string& name, const Shape& shape, DType use) {
    if (!added_.insert(name).second) return;
    const std::size_t stored = store_->has(name) ? store_->entries().at(name).bytes : 0;
    if (pack_experts_ && (name.ends_with(kGate) || name.ends_with(kUp) || name.ends_with(kDown)))
      add_experts(name, shape, stored);
    else if (pack_matrices_ && packs(name, shape, use))
      add_matrix(name, shape, stored);
    else
      file_.tensors.push_back({PlannedTensor::Kind::numbers, {name, use, shape}, name, stored});
  }

  /// The three tensors together become one.
  void add_experts(const std::string& name, const Shape& shape, std::size_t stored) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    const auto same = [&](const PlannedTensor& t) { return t.source == prefix; };
    const auto known = std::ranges::find_if(file_.tensors, same);
    if (known != file_.tensors.end()) {
      known->source_bytes += stored;
      return;
    }
    require(name.ends_with(kGate), "{}: asked for before W_gate", name);
    const Nvfp4Layout layout{shape.at(0) / heads, shape.at(1), shape.at(2)};
    file_.tensors.push_back({PlannedTensor::Kind::experts,
                             {prefix + kPackedExperts, DType::u8, {heads, layout.head_bytes()}},
                             prefix,
                             stored,
                             layout});
  }

  void add_matrix(const std::string& name, const Shape& shape, std::size_t stored) {
    const Shape packed{shape[0], shape[1] / kNvfp4Block * 9};
    file_.tensors.push_back(
        {PlannedTensor::Kind::matrix, {name + kPackedMatrix, DType::u8, packed}, name, stored});
    file_.tensors.push_back(
        {PlannedTensor::Kind::matrix_scale, {name + kPackedMatrixScale, DType::f32, {1}}, name, 0});
  }

  /// Linear layers. Not the embedding, whose rows are the input itself, nor the DeltaNet's gates: they are
  /// small, and their error would add up over a whole sequence.
  static bool packs(const std::string& name, const Shape& shape, DType use) {
    return use == DType::bf16 && shape.size() == 2 && shape[1] % kNvfp4Block == 0 &&
           name.find("embed_tokens") == name.npos && name.find("in_proj_a") == name.npos &&
           name.find("in_proj_b") == name.npos;
  }

 public:
  std::int64_t heads = 1;  ///< of the experts

 private:
  std::string directory_;
  std::shared_ptr<TensorStore> store_;
  std::vector<std::string> problems_;
  NotingStore noting_;
  bool pack_experts_, pack_matrices_;
  Arena arena_ = Arena::counting({});
  std::unique_ptr<Ops> ops_ = make_cpu_ops(arena_);
  PlannedFile file_;
  std::vector<PlannedFile> files_;
  std::set<std::string> added_;
  nlohmann::json index_ = nlohmann::json::object();
};

std::string layer_file(std::int64_t layer) {
  return fmt::format("layer-{:03}", layer);
}

void plan_preview(const CheckpointRoot& root, const QuantizeFormat& format, QuantizePlan& plan) {
  auto config = PreviewConfig::from(root.config());
  config.expert_format = ExpertFormat::bf16;
  Planner planner(root_paths::kPreview, root.preview(), format.pack_experts, false);
  planner.heads = config.moe_heads;
  planner.file("adapters", "", [&](const WeightLoader& weights) {
    load_adapters(weights, config.channels, config.streams * config.hidden, config.attention.head_dim / 8);
  });
  for (std::int64_t i = 0; i < config.layers; ++i)
    planner.file(layer_file(i), "",
                 [&](const WeightLoader& weights) { load_preview_layer(weights, config, i); });
  planner.finish(plan);
}

void plan_text_encoder(const CheckpointRoot& root, const QuantizeFormat& format, QuantizePlan& plan) {
  const auto config = TextEncoderConfig::from(ConfigNode::read(root.text_encoder() / "config.json"));
  Planner planner(root_paths::kTextEncoder, root.text_encoder(), false, format.pack_text_encoder);
  planner.file("embedding", kTextEncoderPrefix, [&](const WeightLoader& weights) {
    weights.stored(kTextEmbedding, {config.vocabulary, config.hidden});
  });
  for (std::int64_t i = 0; i < config.run_layers(); ++i)
    planner.file(layer_file(i), kTextEncoderPrefix,
                 [&](const WeightLoader& weights) { load_text_encoder_layer(weights, config, i); });
  planner.finish(plan);
}

/// Files that go over as they are.
class Carrier {
 public:
  explicit Carrier(QuantizePlan& plan) : plan_(plan) {}

  void file(const std::string& name, const fs::path& from, bool needed) {
    std::error_code error;
    const auto bytes = fs::file_size(from, error);
    require(!error || !needed, "{}: {}", from.string(), error.message());
    if (error)
      plan_.left_out.push_back(from.string());
    else
      plan_.carried.push_back({name, from, bytes});
  }

  /// The weights and configurations that lie in a directory.
  void directory(const std::string& name, const fs::path& from, bool needed) {
    std::set<fs::path> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(from, error))
      if (entry.path().extension() == ".json" || entry.path().extension() == ".safetensors")
        files.insert(entry.path());
    require(!files.empty() || !needed, "{}: nothing to carry over: {}", from.string(),
            error ? error.message() : "no .json, no .safetensors");
    if (files.empty()) plan_.left_out.push_back(from.string());
    for (const fs::path& path : files) file(name + "/" + path.filename().string(), path, true);
  }

 private:
  QuantizePlan& plan_;
};

/// The configuration with all that it extends; parts lie where they lie by default.
void plan_config(const CheckpointRoot& root, QuantizePlan& plan) {
  nlohmann::json config = root.config().json();
  if (config.empty()) return;
  const auto forget = [&](const char* section, std::initializer_list<const char*> keys) {
    if (!config.contains(section) || !config[section].is_object()) return;
    for (const char* key : keys) config[section].erase(key);
  };
  forget("engine_config", {"load"});
  forget("evaluation_config", {"magi2_refiner_model_path", "txt_model_path", "vae_model_path",
                               "student_config", "student_ckpt", "audio_model_path"});
  plan.texts.emplace_back(root_paths::kConfig, config.dump(1) + "\n");
}

template <typename List, typename Size>
std::size_t total(const List& list, Size size) {
  std::size_t sum = 0;
  for (const auto& item : list) sum += size(item);
  return sum;
}

}  // namespace

std::size_t PlannedFile::source_bytes() const {
  return total(tensors, [](const PlannedTensor& t) { return t.source_bytes; });
}

std::size_t PlannedFile::bytes() const {
  return total(tensors, [](const PlannedTensor& t) { return t.entry.bytes(); });
}

QuantizePlan plan_quantize(const CheckpointRoot& root, const QuantizeFormat& format) {
  require(!read_manifest(root.path()), "{}: this root is native already; quantize the released one",
          root.path().string());
  QuantizePlan plan;
  plan_preview(root, format, plan);
  plan_text_encoder(root, format, plan);
  Carrier carrier(plan);
  for (const char* name : {"config.json", "tokenizer.json"})
    carrier.file(std::string(root_paths::kTextEncoder) + "/" + name, root.text_encoder() / name, true);
  carrier.directory(root_paths::kRefiner, root.refiner(), false);
  carrier.file(root_paths::kTurboConfig, root.turbo_decoder_config(), true);
  carrier.file(root_paths::kTurboWeights, root.turbo_decoder_weights(), true);
  carrier.directory(root_paths::kAudio, root.audio_decoder(), true);
  carrier.file(std::string(root_paths::kVae) + "/" + root_paths::kWanVae, root.wan_vae(), false);
  plan_config(root, plan);
  return plan;
}

}  // namespace magi
